"""Errors of the library about an argument, which name it as Python does, by the option's name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from weft.errors import InputError

__all__ = ["options_named"]

_KIND = {"the trace has no ": "--kind: the trace has no "}
_HEADS = {"heads: ": "--heads: "}

#: By verb: how an error begins, and how it begins where an option was given.
_BEGINNINGS: Mapping[str, Mapping[str, str]] = {
    "ablate": {
        "intervening: a patch of ": "--patch: the patch of ",
        "estimate: on the other input ": "--patch: on that text ",
        "intervening: no position ": "--at: no position ",
        "estimate: no position ": "--at: no position ",
    },
    "align": _HEADS,
    "clusters": {
        "token_clusters: no position ": "--without: no position ",
        "token_clusters: no layer ": "--layer: no layer ",
        "token_clusters: no head ": "--head: no head ",
    },
    "evict": {
        "evict: budget ": "--budget ",
        "evict: no policy ": "--policy: no policy ",
        "evict: a prompt of ": "--prompt-tokens: a prompt of ",
        "evict: no layer ": "--layer: no layer ",
        "evict: by=": "--by ",
    },
    "flow": {
        "flow: no position ": "--token: no position ",
        "flow: no input position ": "--from: no input position ",
        **_KIND,
    },
    "heads": {
        "head_roles: alpha=": "--alpha ",
        "head_roles: least=": "--least ",
        "clusters: count": "--clusters: their number",
    },
    "measures": {
        "measures: by=": "--by ",
        "measures: share=": "--share ",
        "measures: threshold=": "--threshold ",
    },
    "import": {
        "from_queries_keys: layout=": "--layout ",
        "from_queries_keys: scale is ": "--scale ",
        **{f"from_{made}: kind=": "--kind " for made in ("queries_keys", "weights", "edges")},
    },
    "projections": {"projections: by=": "--by "},
    "rollout": {"rollout: no position ": "--token: no position ", **_KIND},
    "steps": {
        "give matrices, or their width and heads": "--matrices, --width, --num-heads and --model: "
        "give matrices, or their width and heads",
        "head ": "--head ",
        "kind=": "--kind ",
        "kind ": "--kind ",
        "layer ": "--layer ",
        "model: ": "--model: ",
        "positions=": "--positions ",
        "query ": "--query ",
        "query: ": "--query: ",
        "target: ": "--target: ",
    },
    "trace": {"trace: no layer ": "--layers: no layer "},
    "translate": _HEADS,
    "weights": {"projections: by=": "--by "},
}


@contextmanager
def options_named(verb: str) -> Iterator[None]:
    """Let an error that is about an option of a verb begin with its name.

    >>> with options_named("measures"):
    ...     raise InputError("measures: share=2.0; expected a number above 0, at most 1.")
    Traceback (most recent call last):
    weft.errors.InputError: --share 2.0; expected a number above 0, at most 1.
    """
    try:
        yield
    except InputError as error:
        text = str(error)
        for start, option in _BEGINNINGS.get(verb, {}).items():
            if text.startswith(start):
                raise InputError(option + text.removeprefix(start)) from error
        raise
