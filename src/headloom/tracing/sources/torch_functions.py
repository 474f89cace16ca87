"""Attention calls of any module, by torch's attention functions.

`scaled_dot_product_attention`, the inside of `multi_head_attention_forward`
(`nn.MultiheadAttention`, and through it `nn.TransformerEncoder` and `nn.Transformer`, which take no
fast path inside a mode), and `flex_attention`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import FunctionType
from typing import Any, Protocol, TypedDict

import torch
from torch import Tensor
from torch.nn import functional

from headloom.mechanism.graph import AttentionGraph, Keep
from headloom.mechanism.masks import causal
from headloom.tracing.recording.layer_call import LayerCall
from headloom.tracing.recording.score_terms import lowest_of, score_mask
from headloom.tracing.recording.sequences import kind_of_name
from headloom.tracing.sources.flex import FlexCall, UnreadableRuleError, beside_output
from headloom.tracing.sources.provenance import Provenance

_FUSED = functional.scaled_dot_product_attention


class Recording(Protocol):
    """Protocol of the recorder: see `headloom.tracing.sources.functions.Functions`."""

    keep: Keep
    around: tuple[Tensor, Tensor] | None
    provenance: Provenance

    def compute(self, call: LayerCall) -> Tensor | None:
        """Send a call to the session; return its output."""

    def take(self, call: LayerCall, graph: AttentionGraph) -> None:
        """Send a call computed by its layer to the session."""

    def refuse(self, path: str, reason: str) -> None:
        """Note a call that cannot be recorded."""


@dataclass(frozen=True, eq=False)
class FunctionCall:
    """Call of an attention function. path: of the module that called it."""

    functions: Recording
    path: str
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def result(self) -> object:
        """Call the function itself."""
        return self.func(*self.args, **self.kwargs)

    def refused(self, reason: str) -> object:
        """Call the function itself, noting that the call cannot be recorded."""
        self.functions.refuse(self.path, reason)
        return self.result()


class _Origin(TypedDict):
    path: str
    kind: str
    tracks: tuple[int, int]


def origin(function: FunctionCall, query: Tensor, key: Tensor, is_causal: bool) -> _Origin:
    """Return path and tracks of a call, and its kind: one origin of queries and keys, or two."""
    functions, path = function.functions, function.path
    lengths = query.shape[-2], key.shape[-2]
    query, key = functions.around or (query, key)
    shared = functions.provenance.shared(query, key)
    kind = kind_of_name(path, is_causal)
    if not shared:
        kind = "cross"
    elif kind == "cross":
        kind = "decoder" if is_causal else "encoder"
    tracks = functions.provenance.call(path, query, key, lengths)
    return {"path": path, "kind": kind, "tracks": tracks}


# torch's fused attention


@dataclass(frozen=True, eq=False)
class _Fused:
    """Arguments of `scaled_dot_product_attention`, by name."""

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False

    @property
    def axis_of_heads(self) -> int | None:
        """Dimension of the heads, from the end, contiguous in memory; None: unknown."""
        if self.query.ndim <= 4 or self.enable_gqa:
            return -3
        value = self.value
        beside = value.shape[-1] * value.stride(-1)
        axes = [axis for axis in range(-value.ndim, -2) if value.stride(axis) == beside]
        return axes[0] if len(axes) == 1 else None

    def turned(self, axis: int) -> _Fused:
        """Return the call with the dimension of its heads before positions and depth."""
        if axis == -3:
            return self
        size = self.query.ndim

        def moved(tensor: Tensor) -> Tensor:
            return tensor.reshape((1,) * (size - tensor.ndim) + tensor.shape).movedim(axis, -3)

        mask = None if self.attn_mask is None else moved(self.attn_mask)
        queries, keys, values = moved(self.query), moved(self.key), moved(self.value)
        return replace(self, query=queries, key=keys, value=values, attn_mask=mask)

    @property
    def leading(self) -> torch.Size:
        """Dimensions of the output before positions and depth."""
        if self.enable_gqa:
            return self.query.shape[:-2]
        broadcast: Callable[..., torch.Size] = torch.broadcast_shapes
        return broadcast(self.query.shape[:-2], self.key.shape[:-2])

    def of_four_dimensions(self) -> tuple[list[Tensor], Tensor | None]:
        """Return queries, keys and values as (batch, heads, positions, depth), and the mask too.

        They have the type in which torch computes, which autocast may change. Without heads there
        is one head; all dimensions before the heads form the batch. With grouped heads, these are
        the last leading dimension, and keys and values may have different groups.
        """
        tensors, device = [self.query, self.key, self.value], self.query.device.type
        grouped, mask, leading = self.enable_gqa, self.attn_mask, self.leading
        if torch.is_autocast_enabled(device) and self.query.dtype != torch.float64:
            tensors = [tensor.to(torch.get_autocast_dtype(device)) for tensor in tensors]
        if not grouped:
            tensors = [tensor.expand(*leading, *tensor.shape[-2:]) for tensor in tensors]

        def of_four(tensor: Tensor) -> Tensor:
            if len(leading) < 2:
                return tensor.reshape(*((1, -1) if grouped else (-1, 1)), *tensor.shape[-2:])
            return tensor.flatten(0, -4) if tensor.ndim > 4 else tensor

        if mask is not None:
            mask = mask.reshape((1,) * (len(leading) + 2 - mask.ndim) + mask.shape)
            if len(leading) > 2 and any(size > 1 for size in mask.shape[:-3]):
                mask = mask.expand(*leading[:-1], *mask.shape[-3:])
            mask = of_four(mask)
        queries, *shared = [of_four(tensor) for tensor in tensors]
        if grouped and shared[0].shape[1] != shared[1].shape[1]:
            heads = math.lcm(*(tensor.shape[1] for tensor in shared))
            shared = [tensor.repeat_interleave(heads // tensor.shape[1], 1) for tensor in shared]
        return [queries, *shared], mask


def fused_attention(function: FunctionCall) -> object:
    """Record a call of `scaled_dot_product_attention`."""
    whole = _Fused(*function.args, **function.kwargs)
    reason, axis = None, whole.axis_of_heads
    if whole.query.is_nested or whole.key.is_nested:
        reason = "its queries are a nested tensor; give a padded batch and a mask"
    elif axis is None:
        shape = tuple(whole.query.shape)
        reason = f"the dimension of the heads of its queries, {shape}, is not clear"
    elif whole.attn_mask is not None and bool(whole.attn_mask.isnan().any()):
        reason = "its mask holds NaN"
    if reason is not None or axis is None:
        return function.refused(str(reason))
    call = whole.turned(axis)
    (queries, keys, values), cells = call.of_four_dimensions()
    if cells is not None and call.is_causal:  # torch applies both
        cells = _causal_too(cells, torch.arange(queries.shape[2]), keys.shape[2])
    read = None
    if cells is not None:
        read = score_mask(cells, queries.shape[2], keys.shape[2], lowest_of(cells.dtype))
    is_causal = call.is_causal and read is None
    ahead = False if is_causal else None if read is None else read.ahead
    output = function.functions.compute(
        LayerCall(
            **origin(function, whole.query, whole.key, ahead is False),
            queries=queries,
            keys=keys,
            values=values,
            scale=queries.shape[-1] ** -0.5 if call.scale is None else float(call.scale),
            mask=causal() if is_causal else None if read is None else read.mask,
            bias=None if read is None else read.bias,
            positions="none" if read is None or read.bias is None else "bias",
            is_causal=ahead is False,
            own_output=partial(_own_rows, function.func, call, (queries, keys, values), cells),
        )
    )
    if output is None or call.dropout_p or values.dtype == torch.float64:
        # Dropout is torch's; float64 has more digits than headloom's scores.
        return function.result()
    # Restore the leading dimensions: a batch, or a batch of parts, before the heads.
    output = output.reshape(*call.leading, *output.shape[-2:])
    return output if axis == -3 else output.movedim(-3, axis)


def _causal_too(mask: Tensor, rows: Tensor, keys: int) -> Tensor:
    """Return a mask (True = visible, or added to scores) that hides later keys too."""
    below = torch.arange(keys, device=mask.device) <= rows.to(mask.device)[:, None]
    return mask & below if mask.dtype == torch.bool else mask.masked_fill(~below, -torch.inf)


@torch.no_grad()
def _own_rows(
    function: Callable[..., Tensor], call: _Fused, tensors: tuple[Tensor, Tensor, Tensor],
    cells: Tensor | None, rows: Tensor,
) -> Tensor:  # fmt: skip
    """Return the output of torch's function for some rows of a call."""
    queries, keys, values = tensors
    mask = cells
    if cells is not None and cells.shape[2] > 1:
        mask = cells[:, :, rows]
    if call.is_causal:
        if mask is None:
            mask = torch.ones(1, dtype=torch.bool, device=keys.device)
        mask = _causal_too(mask, rows, keys.shape[2])
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(queries.dtype)
    return function(
        queries[:, :, rows], keys, values, mask, scale=call.scale, enable_gqa=call.enable_gqa
    )


# nn.MultiheadAttention


def heads(function: FunctionCall) -> object:
    """Record a call of `multi_head_attention_forward`."""
    functions = function.functions
    bound = inspect.signature(function.func).bind(*function.args, **function.kwargs)
    arguments = bound.arguments
    before, functions.around = functions.around, (arguments["query"], arguments["key"])

    def fused(*args: object, **kwargs: object) -> object:
        return fused_attention(replace(function, func=_FUSED, args=args, kwargs=kwargs))

    try:
        inside = _renamed(function.func, fused)
        if not arguments.get("need_weights", True):
            return inside(**arguments)
        # A call that returns weights uses the mask, not the flag is_causal. No dropout here: the
        # original function below applies it.
        inside(**arguments | {"need_weights": False, "is_causal": False, "training": False})
    finally:
        functions.around = before
    return function.result()


def _renamed(function: FunctionType, fused: Callable[..., object]) -> Callable[..., object]:
    """Return a copy of a torch function that calls another fused attention, and no mode."""
    names = {
        **function.__globals__,
        "scaled_dot_product_attention": fused,
        "has_torch_function": lambda tensors: False,
    }
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


# flex_attention


def flex(function: FunctionCall) -> object:
    """Record a call of `flex_attention`."""
    call = FlexCall(*function.args, **function.kwargs)
    try:
        terms = call.terms()
    except UnreadableRuleError as error:
        return function.refused(str(error))
    output = function.functions.compute(
        LayerCall(
            **origin(function, call.query, call.key, terms["is_causal"]), **terms,
            queries=call.query, keys=call.key, values=call.value, scale=call.scale,
            own_output=call.own_rows,
        )
    )  # fmt: skip
    # A call may return log-sum-exps or largest scores beside the output.
    more = any(call.kernel_options.get(name) for name in ("OUTPUT_LOGSUMEXP", "OUTPUT_MAX"))
    if output is None or more or call.value.dtype == torch.float64:
        return function.result()
    return output, *[output.new_empty(0)] * beside_output()
