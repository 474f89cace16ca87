"""Attention calls of any module by torch's attention functions.

`scaled_dot_product_attention`, the inside of `multi_head_attention_forward`
(`nn.MultiheadAttention`, and through it `nn.TransformerEncoder` and `nn.Transformer`, which leave
their fast paths while a mode watches), and `flex_attention`.
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
    """What has calls recorded: see `headloom.tracing.sources.functions.Functions`."""

    keep: Keep
    around: tuple[Tensor, Tensor] | None
    provenance: Provenance

    def compute(self, call: LayerCall) -> Tensor | None:
        """Hand a call on; returns its output."""

    def take(self, call: LayerCall, graph: AttentionGraph) -> None:
        """Hand on a call that its layer has computed itself."""

    def refuse(self, path: str, reason: str) -> None:
        """A call was seen and cannot be recorded."""


@dataclass(frozen=True, eq=False)
class FunctionCall:
    """A call of a function that takes attention. path: of the module that called it."""

    functions: Recording
    path: str
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def own(self) -> object:
        """What the function gives."""
        return self.func(*self.args, **self.kwargs)

    def refused(self, reason: str) -> object:
        """What the function gives, where the call cannot be recorded."""
        self.functions.refuse(self.path, reason)
        return self.own()


class _Whence(TypedDict):
    path: str
    kind: str
    tracks: tuple[int, int]


def whence(asked: FunctionCall, query: Tensor, key: Tensor, is_causal: bool) -> _Whence:
    """Path and tracks of a call, and its kind: whether queries and keys come from one tensor."""
    functions, path = asked.functions, asked.path
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
    """The arguments of `scaled_dot_product_attention`, by its names."""

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
        """The dimension of the heads, from the end, side by side in memory; None: not known."""
        if self.query.ndim <= 4 or self.enable_gqa:
            return -3
        value = self.value
        beside = value.shape[-1] * value.stride(-1)
        axes = [axis for axis in range(-value.ndim, -2) if value.stride(axis) == beside]
        return axes[0] if len(axes) == 1 else None

    def turned(self, axis: int) -> _Fused:
        """The same call with the dimension of its heads before positions and depth."""
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
        """The dimensions before positions and depth of what the call gives."""
        if self.enable_gqa:
            return self.query.shape[:-2]
        broadcast: Callable[..., torch.Size] = torch.broadcast_shapes
        return broadcast(self.query.shape[:-2], self.key.shape[:-2])

    def of_four_dimensions(self) -> tuple[list[Tensor], Tensor | None]:
        """Queries, keys and values as (batch, heads, positions, depth), and the mask likewise.

        In the type in which torch computes with them: under autocast it is another. Without heads
        there is one; what stands before the heads is one batch. Where heads are grouped they are
        the last of what stands there, and keys and values may be of different groups.
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


def fused_attention(asked: FunctionCall) -> object:
    """Have a call of `scaled_dot_product_attention` recorded."""
    whole = _Fused(*asked.args, **asked.kwargs)
    reason, axis = None, whole.axis_of_heads
    if whole.query.is_nested or whole.key.is_nested:
        reason = "its queries are a nested tensor; give a padded batch and a mask"
    elif axis is None:
        shape = tuple(whole.query.shape)
        reason = f"nothing says which dimension of its queries, {shape}, is the heads"
    elif whole.attn_mask is not None and bool(whole.attn_mask.isnan().any()):
        reason = "its mask holds numbers that are none (NaN)"
    if reason is not None or axis is None:
        return asked.refused(str(reason))
    call = whole.turned(axis)
    (queries, keys, values), cells = call.of_four_dimensions()
    if cells is not None and call.is_causal:  # torch applies both
        cells = _causal_too(cells, torch.arange(queries.shape[2]), keys.shape[2])
    read = None
    if cells is not None:
        read = score_mask(cells, queries.shape[2], keys.shape[2], lowest_of(cells.dtype))
    is_causal = call.is_causal and read is None
    ahead = False if is_causal else None if read is None else read.ahead
    output = asked.functions.compute(
        LayerCall(
            **whence(asked, whole.query, whole.key, ahead is False),
            queries=queries,
            keys=keys,
            values=values,
            scale=queries.shape[-1] ** -0.5 if call.scale is None else float(call.scale),
            mask=causal() if is_causal else None if read is None else read.mask,
            bias=None if read is None else read.bias,
            positions="none" if read is None or read.bias is None else "bias",
            is_causal=ahead is False,
            own_output=partial(_own_rows, asked.func, call, (queries, keys, values), cells),
        )
    )
    if output is None or call.dropout_p or values.dtype == torch.float64:
        # What is dropped is drawn by torch; float64 has more digits than headloom's scores.
        return asked.own()
    # Leading dimensions are torch's own: a batch, or a batch of parts, before the heads.
    output = output.reshape(*call.leading, *output.shape[-2:])
    return output if axis == -3 else output.movedim(-3, axis)


def _causal_too(mask: Tensor, rows: Tensor, keys: int) -> Tensor:
    """A mask, True = may look or to be added, that hides what comes after each of some rows too."""
    below = torch.arange(keys, device=mask.device) <= rows.to(mask.device)[:, None]
    return mask & below if mask.dtype == torch.bool else mask.masked_fill(~below, -torch.inf)


@torch.no_grad()
def _own_rows(
    function: Callable[..., Tensor],
    call: _Fused,
    tensors: tuple[Tensor, Tensor, Tensor],
    cells: Tensor | None,
    rows: Tensor,
) -> Tensor:
    """What torch's function gives for some rows of a call."""
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


def heads(asked: FunctionCall) -> object:
    """Have a call of `multi_head_attention_forward` recorded."""
    functions = asked.functions
    given = inspect.signature(asked.func).bind(*asked.args, **asked.kwargs).arguments
    before, functions.around = functions.around, (given["query"], given["key"])

    def fused(*args: object, **kwargs: object) -> object:
        return fused_attention(replace(asked, func=_FUSED, args=args, kwargs=kwargs))

    try:
        inside = _renamed(asked.func, fused)
        if not given.get("need_weights", True):
            return inside(**given)
        # With weights asked for the mask counts, and not what a flag says of it. Nothing is
        # dropped here: the function itself draws its numbers below.
        inside(**given | {"need_weights": False, "is_causal": False, "training": False})
    finally:
        functions.around = before
    return asked.own()


def _renamed(function: FunctionType, fused: Callable[..., object]) -> Callable[..., object]:
    """A function of torch that calls another fused attention, and asks no mode."""
    names = {
        **function.__globals__,
        "scaled_dot_product_attention": fused,
        "has_torch_function": lambda tensors: False,
    }
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


# flex_attention


def flex(asked: FunctionCall) -> object:
    """Have a call of `flex_attention` recorded."""
    call = FlexCall(*asked.args, **asked.kwargs)
    try:
        terms = call.terms()
    except UnreadableRuleError as error:
        return asked.refused(str(error))
    output = asked.functions.compute(
        LayerCall(
            **whence(asked, call.query, call.key, terms["is_causal"]),
            **terms,
            queries=call.query,
            keys=call.key,
            values=call.value,
            scale=call.scale,
            own_output=call.own_rows,
        )
    )
    # Log-sum-exps or largest scores may be asked for beside the output.
    more = any(call.kernel_options.get(name) for name in ("OUTPUT_LOGSUMEXP", "OUTPUT_MAX"))
    if output is None or more or call.value.dtype == torch.float64:
        return asked.own()
    return output, *[output.new_empty(0)] * beside_output()
