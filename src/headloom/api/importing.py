"""`headloom.from_files`: arrays and edge lists of other programs, from their files to a trace."""

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
from headloom.tracing.given import TokensGiven

_TOKENS = ("tokens", "input_ids", "token_ids")
_NAME = re.compile(
    r"(?i)(?P<layer>.*?)[._/ -]*(?<![a-z])((?P<queries>q|query|queries)|(?P<keys>k|keys?)|"
    r"(?P<values>v|values?)|(?P<weights>weights|attentions?|attn|probs|pattern))"
    r"(_?(proj|states?|vectors?))?"
)

#: The names of the arrays of each layer, by what they are, by the name of the layer.
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
    """Make a trace of queries and keys, weights or edges that other programs saved.

    Args:
        path: arrays (.npz, .npy, .safetensors), or a folder of them, whose names say what they are,
            as layer_0_q; or a Parquet or CSV table of edges.
        tokens: as of `headloom.from_weights`; or a file: a JSON list of texts or ids, or a text
            with one on each line. None: those of the arrays.
        mask: "causal", "all", or "window:N" for a causal window of N keys; not needed for weights.
        layout: "HND": (heads, positions, depth); "NHD": (positions, heads, depth).
        strongest: whether the edges are the strongest of each row, which has others.
        keep: edges kept of each query.
        save, overwrite: a folder to write the trace to; whether to replace one that is there.

    Returns: the trace; ``trace.model["left_out"]`` names the arrays that are none of a layer.

    Raises: InputError, DataError: files that are missing, damaged, or not what they should be.
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
            f"import: {'edges' if edges else 'queries and keys'} do not say who may look at whom. "
            "Give the mask: causal for a decoder, as a language model is, or all."
        )
    named = _read_tokens(Path(tokens)) if isinstance(tokens, str | Path) else tokens
    named = ids[0] if named is None and ids else named
    shown, model = _mask(mask), path.stem or str(path)
    # One array without a name of its layer may be a stack of them all.
    whole = list(layers) == [""]
    names = None if whole else list(layers)

    def stack(role: str) -> NDArray[np.generic] | Tensor | list[NDArray[np.generic] | Tensor]:
        own = [arrays[layer[role]] for layer in layers.values()]
        return own[0] if whole else own

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
