"""What an exported page holds: traces and a training's history as one JSON object.

    title      what the page is called
    weft       the version that wrote it
    summary    [[name, text], ...]
    examples   [{name, model, sequences, layers}, ...], a trace each
    history    {steps, losses, curves, sequences, layers}, or null

A layer of an example:

    name, kind, index          as in a trace
    queries, keys              the sequences that its queries and keys are made from
    shape                      [heads, queries, keys]
    kept                       edges of a row at most
    edge_keys                  uint16 (heads, queries, kept), strongest first; 65535: no edge
    edge_weights               float32, likewise: exact, score = log(weight) + lse
    lse, entropy, rest         float32 (heads, queries)
    count                      uint16 (heads, queries)

A layer of the history:

    name, kind, index, queries, keys, shape
    weights                    uint8 (snapshots, heads, queries, keys): 255 sqrt(weight), of the
                               probe; or absent
    norm, effective_rank, symmetry   [snapshots][heads], 5 significant digits; or absent
    products                   int8 (snapshots, heads, product_size, product_size): W_Q W_K^T as
                               127 sign(m) sqrt(|m| / product_scale); or absent

Arrays are base64 of little-endian numbers, row after row.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.errors import InputError
from weft.formats.tokens import visible
from weft.formats.trace import Trace, TraceLayer
from weft.version import __version__

__all__ = ["NO_EDGE", "example", "history", "page_payload"]

#: The key of a place without an edge; so a page holds at most as many tokens.
NO_EDGE = 65535
#: Kept edges of a page at most, about 90 MB.
_MOST_EDGES = 10_000_000
#: Rows and columns of W_Q W_K^T on a page; more are joined, the strongest of each block shown.
_PRODUCT_SIZE = 40
#: Points of a curve at most.
_CURVE_POINTS = 500
_MEASURES = ("norm", "effective_rank", "symmetry")

Array = np.ndarray[Any, Any]


def page_payload(
    traces: Sequence[Trace],
    title: str,
    names: Sequence[str] | None,
    history_of: Sequence[Mapping[str, Any]] | None,
    curves: Mapping[str, Sequence[tuple[float, float]]] | None,
    probe: Trace | None,
    summary: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The whole object; see above and `weft.studio.page.export_page`."""
    if not traces or not all(trace.layers for trace in traces):
        raise InputError("page: nothing to show: expected at least one trace, each with a layer.")
    if names is not None and len(names) != len(traces):
        raise InputError(f"page: {len(names)} names for {len(traces)} traces; expected one each.")
    return {
        "title": title,
        "weft": __version__,
        "summary": [[str(name), str(value)] for name, value in (summary or {}).items()],
        "examples": [
            example(trace, names[place] if names else _name(trace))
            for place, trace in enumerate(traces)
        ],
        "history": history(history_of, curves or {}, probe or traces[0]) if history_of else None,
    }


def _name(trace: Trace) -> str:
    """A short name made of a trace's tokens."""
    texts = []
    for tokens in trace.sequences.values():
        # Characters and word pieces follow each other; words are set apart.
        joint = "" if sum(map(len, tokens)) <= 2 * len(tokens) else " "
        texts.append(joint.join(visible(token) for token in tokens[:60]).replace("␣", " ").strip())
    return visible(" → ".join(texts), 100)


def _packed(array: Array, kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(array, dtype=kind).tobytes()).decode("ascii")


def example(trace: Trace, name: str) -> dict[str, Any]:
    """A trace as the page holds it."""
    edges = sum(math.prod(layer.shape[:2]) * layer.graph.k for layer in trace.layers)
    longest = max(map(len, trace.sequences.values()), default=0)
    if edges > _MOST_EDGES or longest >= NO_EDGE:
        raise InputError(
            f"page: {edges:,} edges over {longest:,} tokens are too many for one page. Keep fewer "
            "(keep=weft.Top(8)), or choose a shorter text."
        )
    return {
        "name": name,
        "model": dict(trace.model),
        "sequences": {key: list(tokens) for key, tokens in trace.sequences.items()},
        "layers": [_layer(layer) for layer in trace.layers],
    }


def _layer(layer: TraceLayer) -> dict[str, Any]:
    graph = layer.graph.detach().cpu()
    most = int((graph.keys >= 0).sum(-1).max()) if graph.keys.numel() else 0
    keys = graph.keys[..., :most].numpy()
    return {
        "name": layer.name,
        "kind": layer.kind,
        "index": layer.index,
        "queries": layer.queries_from,
        "keys": layer.keys_from,
        "shape": list(layer.shape),
        "kept": most,
        "edge_keys": _packed(np.where(keys < 0, NO_EDGE, keys), "<u2"),
        "edge_weights": _packed(graph.weights[..., :most].float().numpy(), "<f4"),
        "lse": _packed(graph.lse.float().numpy(), "<f4"),
        "entropy": _packed(graph.entropy.float().numpy(), "<f4"),
        "rest": _packed(graph.rest.float().numpy(), "<f4"),
        "count": _packed(graph.count.numpy(), "<u2"),
    }


def history(
    snapshots: Sequence[Mapping[str, Any]],
    curves: Mapping[str, Sequence[tuple[float, float]]],
    probe: Trace,
) -> dict[str, Any]:
    """Snapshots along a training as the page holds them.

    Raises: InputError: steps that do not ascend, layers or sizes that differ between snapshots or
    from the probe.
    """
    steps = [int(snapshot["step"]) for snapshot in snapshots]
    if any(later <= earlier for earlier, later in pairwise(steps)):
        raise InputError("page: the steps of the history do not ascend.")
    names = list(snapshots[0]["layers"])
    for snapshot in snapshots:
        if list(snapshot["layers"]) != names:
            raise InputError(
                f"page: the snapshot of step {snapshot['step']} has other layers than the first."
            )
    known = {layer.name: layer for layer in probe.layers}
    missing = [name for name in names if name not in known]
    if missing or not names:
        raise InputError(
            f"page: the history's layers {missing} are not in the probe's trace, which has "
            f"{', '.join(known)}."
        )
    return {
        "steps": steps,
        "losses": [_number(snapshot.get("loss")) for snapshot in snapshots],
        "curves": {
            str(name): _thinned([(_number(x), _number(y)) for x, y in points])
            for name, points in curves.items()
        },
        "sequences": {key: list(tokens) for key, tokens in probe.sequences.items()},
        "layers": [
            _history_layer(known[name], [snapshot["layers"][name] for snapshot in snapshots])
            for name in names
        ],
    }


def _thinned(points: list[tuple[float | None, float | None]]) -> list[list[float]]:
    """At most a few hundred points, evenly chosen, the last among them; none that is not finite."""
    finite = [[x, y] for x, y in points if x is not None and y is not None]
    if len(finite) <= _CURVE_POINTS:
        return finite
    chosen = sorted({round(place) for place in np.linspace(0, len(finite) - 1, _CURVE_POINTS)})
    return [finite[place] for place in chosen]


def _number(value: Any) -> float | None:
    """A number with 5 significant digits; None where there is none or it is not finite."""
    if value is None or not math.isfinite(float(value)):
        return None
    return float(f"{float(value):.5g}")


def _array(value: Any) -> Array:
    if isinstance(value, Tensor):
        return value.detach().cpu().to(torch.float32).numpy()
    return np.asarray(value, dtype=np.float32)


def _history_layer(layer: TraceLayer, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    heads = layer.heads
    found: dict[str, Any] = {
        "name": layer.name,
        "kind": layer.kind,
        "index": layer.index,
        "queries": layer.queries_from,
        "keys": layer.keys_from,
        "shape": list(layer.shape),
    }
    for measure in _MEASURES:
        if all(measure in entry for entry in entries):
            rows = [_array(entry[measure]).ravel() for entry in entries]
            _same(layer, measure, [row.shape for row in rows], (heads,))
            found[measure] = [[_number(value) for value in row] for row in rows]
    if all("weights" in entry for entry in entries):
        weights = [_array(entry["weights"]) for entry in entries]
        _same(layer, "weights", [matrix.shape for matrix in weights], layer.shape)
        root = np.sqrt(np.nan_to_num(np.stack(weights)).clip(0, 1))
        found["weights"] = _packed(np.rint(255 * root), "u1")
    if all("product" in entry for entry in entries):
        products = np.stack([_joined(_array(entry["product"]), layer) for entry in entries])
        scale = float(np.quantile(np.abs(products), 0.999)) or 1.0
        root = np.sqrt(np.abs(products / scale).clip(0, 1)) * np.sign(products)
        found["products"] = _packed(np.rint(127 * root), "i1")
        found["product_size"] = products.shape[-1]
        found["product_scale"] = _number(scale)
    return found


def _same(
    layer: TraceLayer, what: str, shapes: Sequence[tuple[int, ...]], expected: tuple[int, ...]
) -> None:
    for shape in shapes:
        if shape != expected:
            raise InputError(
                f"page: {what} of layer {layer.name} in the history are {shape}; the probe's trace "
                f"expects {expected}."
            )


def _joined(product: Array, layer: TraceLayer) -> Array:
    """(heads, n, n) of at most 40 rows and columns: of each block the cell furthest from 0."""
    if product.ndim != 3 or len(product) != layer.heads or product.shape[1] != product.shape[2]:
        raise InputError(
            f"page: the product of layer {layer.name} is {product.shape}; expected (heads, n, n)."
        )
    size = product.shape[-1]
    if size <= _PRODUCT_SIZE:
        return product
    block = -(-size // _PRODUCT_SIZE)
    padded = -(-size // block) * block
    whole = np.zeros((len(product), padded, padded), np.float32)
    whole[:, :size, :size] = product
    small = padded // block
    blocks = whole.reshape(len(product), small, block, small, block).transpose(0, 1, 3, 2, 4)
    cells = blocks.reshape(len(product), small, small, block * block)
    furthest = np.abs(cells).argmax(-1)[..., None]
    joined: Array = np.take_along_axis(cells, furthest, -1)[..., 0]
    return joined
