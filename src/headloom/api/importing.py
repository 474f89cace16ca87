"""Arrays and edge lists of other programs, from their files to a trace."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headloom.api.tracing import Report, check_output, report_of
from headloom.errors import DataError, InputError
from headloom.formats.files import is_there, read_json, read_text, text_lines
from headloom.formats.stored_arrays import EDGE_SUFFIXES, read_arrays, read_edges
from headloom.formats.trace import TraceData
from headloom.mechanism.graph import Top
from headloom.mechanism.masks import Mask, causal, window
from headloom.tracing.given import TokensGiven, from_queries_keys, from_weights
from headloom.tracing.given_edges import from_edges

_TOKENS = ("tokens", "input_ids", "token_ids")
_NAME = re.compile(
    r"(?i)(?P<layer>.*?)[._/ -]*(?<![a-z])((?P<queries>q|query|queries)|(?P<keys>k|keys?)|"
    r"(?P<values>v|values?)|(?P<weights>weights|attentions?|attn|probs|pattern))"
    r"(_?(proj|states?|vectors?))?"
)

#: The names of the arrays of each layer, by what they are, by the name of the layer.
Layers = dict[str, dict[str, str]]


def import_files(
    path: Path,
    output: Path,
    *,
    tokens: Path | None,
    mask: str | None,
    layout: str,
    strongest: bool,
    keep: int,
    overwrite: bool,
) -> Report:
    """Make a trace of queries and keys, of weights or of edges, and write it.

    Args:
        path: a Parquet or CSV table of edges; or a file of arrays, or a folder of them.
        output: the trace folder to write, whole or not at all.
        tokens: a JSON list of texts or ids, or a text with one on each line.
        mask: "causal", "all", or "window:N" for a causal window of N keys.
        layout, strongest, keep, overwrite: see `headloom.from_queries_keys`, `from_edges`.

    Returns: what is said of it, with the arrays that were left out.

    Raises: InputError, DataError: files that are missing, damaged, or not what they should be.
    """
    check_output(output, overwrite)
    if not is_there(path, "file of arrays"):
        raise DataError(f"{path}: no such file or folder. Check the path.")
    edges = path.suffix.lower() in EDGE_SUFFIXES
    arrays = {} if edges else read_arrays(path)
    in_dump = [name for name in arrays if name.split("/")[-1].lower() in _TOKENS]
    ids = [np.asarray(arrays.pop(name)).reshape(-1) for name in in_dump]
    layers = {} if edges else layers_of_names(list(arrays))
    roles = set().union(*layers.values())
    if mask is None and "weights" not in roles:
        raise InputError(
            f"import: {'edges' if edges else 'queries and keys'} do not say who may look at whom. "
            "Give --mask causal for a decoder, as a language model is, or --mask all."
        )
    named = _read_tokens(tokens) if tokens else ids[0] if ids else None
    shown, model = _mask(mask), path.stem or str(path)
    if edges:
        trace = from_edges(
            read_edges(path), mask=shown, tokens=named, strongest=strongest, model=model,
            save=output, overwrite=overwrite,
        )  # fmt: skip
        return report_of(trace, output)
    # One array without a name of its layer may be a stack of them all.
    whole = list(layers) == [""]
    names = None if whole else list(layers)

    def stack(role: str) -> NDArray[np.generic] | Tensor | list[NDArray[np.generic] | Tensor]:
        own = [arrays[layer[role]] for layer in layers.values()]
        return own[0] if whole else own

    if "weights" in roles:
        made = from_weights(
            stack("weights"), mask=shown, tokens=named, names=names, model=model, keep=Top(keep),
            save=output, overwrite=overwrite,
        )  # fmt: skip
    else:
        made = from_queries_keys(
            stack("queries"), stack("keys"), stack("values") if "values" in roles else None,
            mask=shown, layout=layout, tokens=named, names=names, model=model, keep=Top(keep),
            save=output, overwrite=overwrite,
        )  # fmt: skip
    assert isinstance(made, TraceData)  # a batch cannot be saved
    report = report_of(made, output)
    left = sorted(arrays.keys() - {name for layer in layers.values() for name in layer.values()})
    lines = list(report.lines)
    if left:
        some = ", ".join(left[:5]) + ", ..." * (len(left) > 5)
        lines.insert(-1, f"left out: {len(left)} arrays, which are not queries or keys: {some}")
    return Report(lines, {**report.content, "left_out": left})


def _mask(mask: str | None) -> Mask | None:
    kind, _, keys = (mask or "all").partition(":")
    if kind == "window" and keys.isdecimal() and int(keys) > 0:
        return window(int(keys) - 1, 0)
    if mask not in (None, "causal", "all"):
        raise InputError(f"--mask {mask}: expected causal, all, or window:N for the last N keys.")
    return causal() if kind == "causal" else None


def _read_tokens(path: Path) -> TokensGiven:
    """Tokens from a JSON file, or one from each line of a text."""
    if path.suffix.lower() != ".json":
        return text_lines(read_text(path, "file of tokens"))
    content = read_json(path, "file of tokens")
    for tokens in content.values() if isinstance(content, dict) else [content]:
        if not isinstance(tokens, list) or not all(type(token) in (str, int) for token in tokens):
            raise DataError(
                f"{path}: expected a list of texts or ids, or an object with such lists for "
                '"source" and "target".'
            )
    tokens_of: TokensGiven = content
    return tokens_of


def layers_of_names(names: Sequence[str]) -> Layers:
    """Return the layers of a dump, in their order, by the ends of the names of its arrays.

    Raises: InputError: names that do not say what is what; queries without keys.

    >>> layers_of_names(["layer_9_q", "layer_9_k", "mask"])
    {'layer_9': {'queries': 'layer_9_q', 'keys': 'layer_9_k'}}
    """
    layers: Layers = {}
    for name in names:
        if match := _NAME.fullmatch(name):
            roles = match.groupdict()
            layer = roles.pop("layer").replace("/", ".")
            role = next(role for role, word in roles.items() if word)
            other = layers.setdefault(layer, {}).setdefault(role, name)
            if other != name:
                raise InputError(f"{name} and {other} are both {role} of one layer; expected one.")
    if any("queries" in own for own in layers.values()):
        # Weights beside queries and keys are computed again from these.
        layers = {layer: own for layer, own in layers.items() if set(own) != {"weights"}}
    roles_of = [set(own) for own in layers.values()]
    whole = roles_of and (roles_of[0] == {"weights"} or {"queries", "keys"} <= roles_of[0])
    if not whole or any(own != roles_of[0] for own in roles_of):
        has = "; ".join(f"{layer or 'all'}: {', '.join(own)}" for layer, own in layers.items())
        raise InputError(
            f"import: found {has or 'no queries, keys or weights'} among {', '.join(names)[:200]}; "
            "expected queries and keys of every layer, as layer_0_q and layer_0_k, or weights. "
            "Arrays of other names are given in Python: headloom.from_queries_keys, from_weights."
        )
    return dict(sorted(layers.items(), key=lambda entry: _place(entry[0])))


def _place(layer: str) -> tuple[bool, list[int], bool, str]:
    """Where a layer comes: an encoder's before a decoder's, by number, and cross layers last there.

    >>> names = ["decoder.0.self_attn", "decoder.0.encoder_attn", "encoder.10", "encoder.9"]
    >>> sorted(names, key=_place)
    ['encoder.9', 'encoder.10', 'decoder.0.self_attn', 'decoder.0.encoder_attn']
    """
    numbers = [int(number) for number in re.findall(r"\d+", layer)]
    cross = re.search("cross|decoder.*encoder|encdec", layer.lower())
    return "decoder" in layer, numbers, bool(cross), layer
