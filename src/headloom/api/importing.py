"""`headloom.from_files`: make a trace from arrays or edge lists of other programs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headloom.api.questions import check_output
from headloom.api.trace import Trace, from_edges, from_queries_keys, from_weights
from headloom.errors import DataError, InputError
from headloom.formats.files import is_there, read_json, read_text, text_lines
from headloom.formats.stored_arrays import EDGE_SUFFIXES, read_arrays, read_edges
from headloom.mechanism.graph import KeepLike
from headloom.mechanism.masks import Mask, causal, window
from headloom.tracing.given_sequences import TokensGiven

_TOKENS = ("tokens", "input_ids", "token_ids")
_NAME = re.compile(
    r"(?i)(?P<layer>.*?)[._/ -]*(?<![a-z])((?P<queries>q|query|queries)|(?P<keys>k|keys?)|"
    r"(?P<values>v|values?)|(?P<weights>weights|attentions?|attn|probs|pattern))"
    r"(_?(proj|states?|vectors?))?"
)

#: Array names by role, for each layer.
Layers = dict[str, dict[str, str]]


def from_files(
    path: Path | str,
    *,
    tokens: Path | str | TokensGiven | None = None,
    mask: str | None = None,
    layout: str = "HND",
    strongest: bool = False,
    keep: KeepLike = 32,
    save: Path | str | None = None,
    overwrite: bool = False,
) -> Trace:
    """Make a trace from queries and keys, weights or edges in files of other programs.

    Args:
        path: arrays (.npz, .npy, .safetensors), or a folder of them, with names such as layer_0_q;
            or a Parquet or CSV table of edges.
        tokens: as in `headloom.from_weights`; or a file: a JSON list of texts or ids, or a text
            with one on each line. None: those of the arrays.
        mask: "causal", "all", or "window:N" for a causal window of N keys; not needed for weights.
        layout: "HND": (heads, positions, depth); "NHD": (positions, heads, depth).
        strongest: whether the edges are only the strongest of each row.
        keep: edges kept per query.
        save: a folder to write the trace to.
        overwrite: whether to replace an existing trace.

    Returns: the trace; ``trace.model["left_out"]`` names the arrays of no layer.

    Raises: InputError, DataError: files that are missing, damaged, or of another format.
    """
    path = Path(path)
    if save is not None:
        check_output(Path(save), overwrite)
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
            f"import: {'edges' if edges else 'queries and keys'} need a mask. Give causal for a "
            "decoder, such as a language model, or all."
        )
    named = _read_tokens(Path(tokens)) if isinstance(tokens, str | Path) else tokens
    named = ids[0] if named is None and ids else named
    shown, model = _mask(mask), path.stem or str(path)
    # One array without a layer name may be a stack of all layers.
    whole = list(layers) == [""]
    names = None if whole else list(layers)

    def stack(role: str) -> NDArray[np.generic] | Tensor | list[NDArray[np.generic] | Tensor]:
        of_role = [arrays[layer[role]] for layer in layers.values()]
        return of_role[0] if whole else of_role

    if edges:
        made = from_edges(
            read_edges(path), mask=shown, tokens=named, strongest=strongest, model=model,
            save=save, overwrite=overwrite,
        )  # fmt: skip
    elif "weights" in roles:
        made = from_weights(
            stack("weights"), mask=shown, tokens=named, names=names, model=model, keep=keep,
            save=save, overwrite=overwrite,
        )  # fmt: skip
    else:
        made = from_queries_keys(
            stack("queries"), stack("keys"), stack("values") if "values" in roles else None,
            mask=shown, layout=layout, tokens=named, names=names, model=model, keep=keep,
            save=save, overwrite=overwrite,
        )  # fmt: skip
    if isinstance(made, list):
        raise InputError(f"import: {path} holds a batch of {len(made)} inputs. Give one.")
    left = sorted(arrays.keys() - {name for layer in layers.values() for name in layer.values()})
    return replace(made, model={**made.model, "left_out": left}) if left else made


def _mask(mask: str | None) -> Mask | None:
    kind, _, keys = (mask or "all").partition(":")
    if kind == "window" and keys.isdecimal() and int(keys) > 0:
        return window(int(keys) - 1, 0)
    if mask not in (None, "causal", "all"):
        raise InputError(f"mask {mask}: expected causal, all, or window:N for the last N keys.")
    return causal() if kind == "causal" else None


def _read_tokens(path: Path) -> TokensGiven:
    """Read tokens from a JSON file, or from the lines of a text."""
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
    """Return the layers of a dump, in order, from the names of its arrays.

    Raises: InputError: unclear names; queries without keys.

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
    if any("queries" in arrays for arrays in layers.values()):
        # Weights beside queries and keys are computed again from these.
        layers = {layer: arrays for layer, arrays in layers.items() if set(arrays) != {"weights"}}
    roles_of = [set(arrays) for arrays in layers.values()]
    whole = roles_of and (roles_of[0] == {"weights"} or {"queries", "keys"} <= roles_of[0])
    if not whole or any(roles != roles_of[0] for roles in roles_of):
        has = "; ".join(
            f"{layer or 'all'}: {', '.join(arrays)}" for layer, arrays in layers.items()
        )
        raise InputError(
            f"import: found {has or 'no queries, keys or weights'} among {', '.join(names)[:200]}; "
            "expected queries and keys of every layer, such as layer_0_q, layer_0_k, or weights. "
            "Pass arrays of other names in Python: headloom.from_queries_keys, from_weights."
        )
    return dict(sorted(layers.items(), key=lambda entry: _place(entry[0])))


def _place(layer: str) -> tuple[bool, list[int], bool, str]:
    """Return a sort key of a layer: encoder before decoder, by number, cross layers last.

    >>> names = ["decoder.0.self_attn", "decoder.0.encoder_attn", "encoder.10", "encoder.9"]
    >>> sorted(names, key=_place)
    ['encoder.9', 'encoder.10', 'decoder.0.self_attn', 'decoder.0.encoder_attn']
    """
    numbers = [int(number) for number in re.findall(r"\d+", layer)]
    cross = re.search("cross|decoder.*encoder|encdec", layer.lower())
    return "decoder" in layer, numbers, bool(cross), layer
