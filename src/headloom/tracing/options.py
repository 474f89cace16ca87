"""What is asked of a trace, checked: layers, edges, tokens to generate."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from headloom.errors import InputError
from headloom.mechanism.graph import All, Keep, Top
from headloom.mechanism.received import LastQueries, last_queries
from headloom.mechanism.shapes import check_flag, in_words

__all__ = [
    "TOKENS",
    "TraceOptions",
    "Verify",
    "check_keep",
    "check_save",
    "checked_layers",
    "checked_tokens",
    "tokens_to_verify",
    "whole_number",
]

#: How many tokens are verified where nothing else is asked for. 64 of 8,192 are 0.8 percent.
TOKENS = 64

#: How much is verified: a number of tokens, "all", True or None for `TOKENS`, False for nothing.
Verify = int | str | None


@dataclass(frozen=True)
class TraceOptions:
    """What is asked of a trace: see `headloom.trace`."""

    tokenizer: Any = None
    keep: Keep = Top(32)  # noqa: RUF009 - frozen
    queries_keys: bool = True
    layers: Sequence[int | str] | None = None
    save: Path | str | None = None
    dtype: torch.dtype | None = None
    overwrite: bool = False
    verify: Verify = None
    #: Whether a sample of the rows of each layer is held against the model's own attention.
    sampled: bool = True
    received: bool | LastQueries = False

    def __post_init__(self) -> None:
        """Raise an InputError for what cannot be asked."""
        object.__setattr__(self, "layers", checked_layers(self.layers, "trace"))
        check_keep(self.keep, "trace")
        check_save(self.save, "trace")
        for name in ("queries_keys", "overwrite"):
            check_flag("trace", name, getattr(self, name))
        last_queries(self.received, "trace")

    @property
    def received_last(self) -> int | None:
        """As AttentionCall.received has it."""
        return last_queries(self.received, "trace")


def whole_number(value: object) -> int | None:
    """A whole number of any library as one of Python; None: it is none. True is none.

    >>> whole_number(3), whole_number(True), whole_number(3.0)
    (3, None, None)
    """
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def checked_layers(layers: object, operation: str) -> tuple[int | str, ...] | None:
    """The layers that are asked for: their numbers in the order of the run, or their paths.

    Raises: InputError: something else, or none at all.
    """
    if layers is None:
        return None
    expected = (
        f"{operation}: layers={in_words(layers)}; expected a list of numbers or paths, as [0, 5] "
        'or ["*.self_attn"]; None traces every layer.'
    )
    if isinstance(layers, str | Mapping) or not isinstance(layers, Iterable):
        raise InputError(expected)
    entries = [entry if isinstance(entry, str) else whole_number(entry) for entry in layers]
    wanted: Sequence[int | str] = [entry for entry in entries if entry is not None]
    if len(wanted) < len(entries):
        raise InputError(expected)
    if not wanted:
        raise InputError(f"{operation}: layers=[] asks for no layer; None traces every one.")
    return tuple(wanted)


def check_keep(keep: Keep, operation: str) -> None:
    """Raise an InputError unless edges are asked for by `Top` or `All`."""
    if not isinstance(keep, Top | All):
        raise InputError(
            f"{operation}: keep={in_words(keep)}; expected headloom.Top(k), the k strongest "
            f"edges of "
            "each query, or headloom.All(), every edge."
        )


def check_save(save: object, operation: str) -> None:
    """Raise an InputError unless a trace is to be saved nowhere, or at a path."""
    if save is not None and (not isinstance(save, str | os.PathLike) or not str(save)):
        raise InputError(
            f"{operation}: save={in_words(save)}; expected the path of a folder, as 't.loom', or "
            "None."
        )


def checked_tokens(tokens: object) -> int:
    """How many tokens are to be generated.

    Raises: InputError: it is no whole number, or none at all.
    """
    number = whole_number(tokens)
    if number is None or number < 1:
        raise InputError(
            f"trace: generate={in_words(tokens)}; expected a number of tokens, 1 or more."
        )
    return number


def tokens_to_verify(verify: Verify) -> int | None:
    """How many tokens are to be verified: 0 of none, None of all.

    >>> tokens_to_verify(None), tokens_to_verify(True), tokens_to_verify(9), tokens_to_verify("all")
    (64, 64, 9, None)

    Raises: InputError: it is none of what `Verify` says.
    """
    if verify is None or verify is True:
        return TOKENS
    if verify is False:
        return 0
    if isinstance(verify, str) and verify == "all":
        return None
    tokens = whole_number(verify)
    if tokens is not None and tokens > 0:
        return tokens
    raise InputError(
        f"trace: verify={in_words(verify)}; expected a number of tokens, 1 or more, 'all', True "
        f"(the first {TOKENS}) or False (nothing is verified)."
    )
