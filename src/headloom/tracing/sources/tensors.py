"""Arrays of any library (with `__dlpack__` or `__array__`) as tensors, and weights as edges."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.dlpack import from_dlpack

from headloom.errors import InputError, ShapeError
from headloom.mechanism.backends.torch_blocks import strongest
from headloom.mechanism.graph import AttentionGraph, Top
from headloom.mechanism.masks import Mask
from headloom.mechanism.shapes import describe
from headloom.tracing.recording.layer_call import LayerCall

#: Allowed difference of a row's sum from 1: for float32, and for half precision, which rounds each
#: weight.
NEAR, NEAR_HALF = 1e-4, 2e-2

_EXPECTED = "an array of numbers of NumPy, torch, JAX or MLX, or a list with one for each layer"


def as_tensor(name: str, array: object) -> Tensor:
    """Return an array as a floating-point tensor on the CPU, without gradients.

    Raises: InputError: not an array (neither `__dlpack__` nor `__array__`), or other numbers.

    >>> as_tensor("queries", np.ones((1, 2), ">f4")).dtype
    torch.float32
    """
    if isinstance(array, Tensor):
        tensor = array.detach().cpu()
    elif hasattr(array, "__dlpack__") and not isinstance(array, np.ndarray):
        try:
            tensor = from_dlpack(array).cpu()
        except (BufferError, RuntimeError):  # a device that torch does not have, as MLX's on a Mac
            return as_tensor(name, np.asarray(array))
    elif hasattr(array, "__array__"):
        numbers = np.asarray(array)
        # In native byte order and writable memory, as torch requires.
        plain = numbers.dtype.newbyteorder("=")
        numbers = numbers.astype(plain, copy=not numbers.flags.writeable)
        try:
            tensor = torch.from_numpy(np.ascontiguousarray(numbers))
        except TypeError:
            raise InputError(
                f"{name}: an array of {numbers.dtype}; expected floating-point numbers. NumPy "
                "files lose the type bfloat16: save as float32, or in a safetensors file."
            ) from None
    else:
        fused = ' Fused attention has no weights: load the model with attn_implementation="eager".'
        fused *= array is None
        raise InputError(f"{name}: a {type(array).__name__}; expected {_EXPECTED}.{fused}")
    if not tensor.is_floating_point():
        kind = str(tensor.dtype).removeprefix("torch.")
        raise InputError(f"{name}: numbers of type {kind}; expected floating-point numbers.")
    # Eight-bit types are for storage only.
    return tensor.float() if tensor.element_size() == 1 else tensor


def layer_tensors(name: str, arrays: object) -> list[Tensor]:
    """Return the layers of a stack of arrays, or of a list, each (batch, a, b, c).

    Args:
        name: of the arrays in errors, such as "queries".
        arrays: one layer, (a, b, c); all layers, (layers, a, b, c) or (layers, batch, a, b, c); or
            a sequence with an array for each layer, with or without a batch before its dimensions.

    Raises: InputError: no arrays, or other dimensions.
    """
    if not isinstance(arrays, (list, tuple)):
        whole = as_tensor(name, arrays)
        layers = [whole] if whole.ndim == 3 else list(whole)
    else:
        layers = [as_tensor(f"{name} of layer {at}", array) for at, array in enumerate(arrays)]
    if not layers:
        raise InputError(f"{name}: no layers; expected {_EXPECTED}.")
    for number, layer in enumerate(layers):
        if layer.ndim not in (3, 4) or not layer.numel():
            raise ShapeError(
                f"{name} of layer {number}: an array {describe(layer)}; expected 3 dimensions, or "
                "4 with a batch, 1 or more of each."
            )
    batched = [layer if layer.ndim == 4 else layer[None] for layer in layers]
    sizes = {len(layer) for layer in batched}
    if len(sizes) > 1:
        raise ShapeError(f"{name}: layers of {sizes} inputs; expected one batch for all layers.")
    return batched


def check_numbers(label: str, wrong: Tensor, tensor: Tensor, what: str) -> None:
    """Raise an InputError if a number, (input, head, row, column), is marked as wrong."""
    if bool(wrong.any()):
        place = tuple(wrong.nonzero()[0].tolist())
        raise InputError(
            f"{label}: {float(tensor[place]):.6g} at head {place[1]}, row {place[2]}, column "
            f"{place[3]}; {int(wrong.sum()):,} of {wrong.numel():,} numbers {what}."
        )


def is_causal(weights: Tensor) -> bool:
    """Return whether some input has no weight on later keys; its queries are its last positions.

    A row of padding before a text may have no visible key, and then equal weights.
    """
    queries, keys = weights.shape[-2:]
    ahead = weights.triu(1 + keys - queries).any(-1)
    uneven = weights.amin(-1) < weights.amax(-1)
    behind = (~ahead[..., :-1]).flatten(1).any(-1)
    return bool((behind & ~(ahead & uneven).flatten(1).any(-1)).any())


def graph_of_weights(
    label: str, weights: Tensor, keep: Top, mask: Mask | None, *, partial: bool
) -> AttentionGraph:
    """Return the graph of dense weights: their strongest edges, unchanged.

        score = log weight;  lse = 0;  rest = mass of the row - mass of the kept edges

    Args:
        label: of the weights in errors.
        weights: (batch, heads, queries, keys).
        keep: edges of each query.
        mask: of visible keys; None: keys whose weight is 0 are hidden.
        partial: whether rows may sum to less than 1, with mass on other keys. A row of zeros is
            always allowed: its query sees no key.

    Raises: InputError: numbers below 0 or not finite; rows that do not sum to 1; a weight at a
        hidden key.
    """
    check_numbers(label, ~weights.isfinite(), weights, "are not finite; expected none")
    expected = (
        "are below 0, like scores before the softmax, or logarithms; expected weights of 0 or more,"
        " as scores.softmax(-1)"
    )
    check_numbers(label, weights < 0, weights, expected)
    totals = weights.sum(-1, dtype=torch.float64)
    if not bool(totals.any()):
        raise InputError(f"{label}: every weight is 0; expected rows that sum to 1.")
    # Half precision saved in a wider type, as NumPy requires, still has its few digits.
    halves = (torch.bfloat16, torch.float16)
    half = any(torch.equal(weights.to(dtype).to(weights.dtype), weights) for dtype in halves)
    near = NEAR_HALF if half else NEAR
    wrong = (totals > 1 + near) | ((totals < 1 - near) & (totals > 0) & (not partial))
    if bool(wrong.any()):
        _, head, query = wrong.nonzero()[0].tolist()
        raise InputError(
            f"{label}: head {head}, query {query}: the row sums to {float(totals[wrong][0]):.6g}, "
            f"and {int(wrong.sum()):,} of {wrong.numel():,} rows do not sum to 1. Give weights "
            "after the softmax, without dropout, queries before keys; if sinks or missing keys "
            "have the rest, give partial=True."
        )
    weights = weights.float()
    allowed = weights > 0
    if mask is not None:
        mask.check(*weights.shape)
        shown = mask.dense(*weights.shape[2:]).expand(weights.shape)
        hidden = "are where the mask hides the key; expected 0. Give the model's own mask"
        check_numbers(label, allowed & ~shown, weights, hidden)
        # A row of zeros is a query without visible keys, such as padding.
        allowed = shown & allowed.any(-1, keepdim=True)
    # A visible key has a finite score, even if its weight is too small for float32.
    scores = weights.clamp(min=torch.finfo(torch.float32).smallest_normal).log()
    places = keep.places(weights.shape[-1])
    kept_scores, kept_keys = strongest(scores.masked_fill(~allowed, -torch.inf), places)
    empty = kept_scores == -torch.inf
    kept_weights = weights.gather(-1, kept_keys).masked_fill(empty, 0)
    sees_keys = allowed.any(-1)
    mass = sees_keys.double() if partial else weights.sum(-1, dtype=torch.float64)
    rest = mass - kept_weights.sum(-1, dtype=torch.float64)
    missing = (0, places - kept_keys.shape[-1])
    return AttentionGraph(
        keys=pad(kept_keys.masked_fill(empty, -1).int(), missing, value=-1),
        scores=pad(kept_scores, missing, value=-torch.inf), weights=pad(kept_weights, missing),
        lse=torch.where(sees_keys, 0.0, -torch.inf),
        entropy=torch.special.entr(weights.double()).sum(-1).float(),
        rest=rest.clamp(min=0).float(), count=allowed.sum(-1).int(), length=weights.shape[-1],
    )  # fmt: skip


def weights_call(name: str, kind: str, graph: AttentionGraph, mask: Mask | None) -> LayerCall:
    """Return the call of a layer with a known graph, and perhaps a mask, only."""
    batch, heads, queries, keys = graph.shape
    nothing = graph.lse.new_zeros(batch, heads, keys, 1)
    rows = graph.lse.new_zeros(batch, heads, queries, 1)
    return LayerCall(
        name, kind, rows, nothing, nothing, scale=1.0, mask=mask, positions="bias",
        weights_only=True,
    )  # fmt: skip
