"""Attention calls of any module: of torch's attention functions, and of headloom's.

A `TorchFunctionMode` sees every function of torch that a model calls, wherever the model comes
from. Those that take attention are sent to the recorder: `scaled_dot_product_attention`, the inside
of `multi_head_attention_forward` (`nn.MultiheadAttention`, and through it `nn.TransformerEncoder`
and `nn.Transformer`, which leave their fast paths while a mode watches), `flex_attention`, and
`headloom.attention` and `headloom.attend`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from types import FunctionType
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from headloom.mechanism.function import attend, attention
from headloom.mechanism.graph import All, Keep, Top
from headloom.mechanism.masks import causal
from headloom.tracing.recording.layer_call import LayerCall
from headloom.tracing.recording.sequences import kind_of_name
from headloom.tracing.sources.flex import FlexCall, UnreadableRuleError, beside_output
from headloom.tracing.sources.headloom_calls import HeadloomCall
from headloom.tracing.sources.provenance import Provenance
from headloom.tracing.sources.score_masks import lowest_of, score_mask
from headloom.tracing.sources.source import Receivers

__all__ = ["AttentionCalls"]

_FUSED = functional.scaled_dot_product_attention
_HEADS = functional.multi_head_attention_forward
#: Functions in which a checkpoint of activations runs a part of the model again.
_GRADIENTS = (Tensor.backward, torch.autograd.backward, torch.autograd.grad)
#: Torch's fast paths, which a mode keeps modules from; a model may call them by itself.
_FAST = ("_native_multi_head_attention", "_transformer_encoder_layer_fwd")


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


class Notice(Protocol):
    """What a recorder of calls asks, and tells, of the model that runs."""

    #: What tensors were computed from.
    provenance: Provenance

    def where(self) -> str | None:
        """The path of the module that runs; None: none of the model's."""

    def note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """A function of torch was called, and is not recorded."""


class AttentionCalls(TorchFunctionMode):
    """Sends the attention calls of a model that runs to a recorder.

    Args:
        notice: knows which module runs, and is told of every other function.
        receivers: of the recorder. keep: the edges of a query that it keeps.
        observed: paths of modules whose calls come from elsewhere.

    refused: why a call was seen and cannot be recorded, by the paths of modules.
    """

    def __init__(
        self,
        notice: Notice,
        receivers: Receivers,
        keep: Keep,
        observed: Collection[str] = (),
    ) -> None:
        super().__init__()
        self._notice, self._receivers, self._observed = notice, receivers, observed
        self._keep = keep
        #: Whether calls are left alone for a while.
        self.paused = False
        self.refused: dict[str, str] = {}
        self._provenance = notice.provenance
        self._handlers = {_FUSED: self._fused, _HEADS: self._heads, attention: self._headloom,
                          attend: self._headloom}  # fmt: skip
        #: What queries and keys are made from, where the module around a call says it.
        self._around: tuple[Tensor, Tensor] | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch, or send it on if it takes attention."""
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        if func in _GRADIENTS:
            # A mode is left while a function runs; checkpoints compute attention again in these.
            mode: Any = self
            with mode:
                return _renamed(func)(*args, **kwargs)
        name = getattr(func, "__name__", "")
        handler = self._handlers.get(func) if callable(func) else None
        if handler is None and name == "flex_attention":
            handler = self._flex
        path = None if handler is None and name not in _FAST else self._notice.where()
        if path is not None and path in self._observed:
            result = func(*args, **kwargs)
        elif path is None:
            result = func(*args, **kwargs)
            self._notice.note(func, args, kwargs, result)
        elif handler is None:
            self.refused[path] = f"it calls torch.{name} by itself; call the module around it"
            result = func(*args, **kwargs)
        else:
            result = handler(path, func, args, kwargs)
        self._provenance.follow(name, (*args, *kwargs.values()), result)
        self._provenance.called(result)
        return result

    def _refuse(self, path: str, reason: str) -> None:
        self.refused[path] = reason

    # torch's fused attention

    def _fused(self, path: str, func: Any, args: Any, kwargs: Any) -> Any:
        call = _Fused(*args, **kwargs)
        if call.query.is_nested or call.key.is_nested:
            self._refuse(path, "its queries are a nested tensor; give a padded batch and a mask")
            return func(*args, **kwargs)
        whole, axis = call, _axis_of_heads(call)
        if axis is None:
            shape = tuple(call.query.shape)
            self._refuse(
                path, f"nothing says which dimension of its queries, {shape}, is the heads"
            )
            return func(*args, **kwargs)
        call = call.turned(axis)
        tensors = _in_one_type(call.query, call.key, call.value)
        queries, keys, values = _of_four_dimensions(call, *tensors)
        cells = None if call.attn_mask is None else _mask_of_four(call, call.attn_mask)
        if cells is not None and call.is_causal:  # torch applies both
            cells = _causal_too(cells, torch.arange(queries.shape[2]), keys.shape[2])
        if cells is not None and cells.is_floating_point() and bool(cells.isnan().any()):
            self._refuse(path, "its mask holds numbers that are none (NaN)")
            return func(*args, **kwargs)
        read = None if cells is None else score_mask(
            cells, queries.shape[2], keys.shape[2], lowest_of(cells.dtype)
        )  # fmt: skip
        is_causal = call.is_causal and read is None
        ahead = False if is_causal else None if read is None else read.ahead
        factor = queries.shape[-1] ** -0.5 if call.scale is None else float(call.scale)
        own = partial(_own_rows, func, call, (queries, keys, values), cells)
        recorded = LayerCall(
            path=path,
            **self._whence(path, whole.query, whole.key, ahead is False),
            queries=queries,
            keys=keys,
            values=values,
            scale=factor,
            mask=causal() if is_causal else None if read is None else read.mask,
            bias=None if read is None else read.bias,
            positions="none" if read is None or read.bias is None else "bias",
            is_causal=ahead is False,
            own_output=own,
        )
        output = self._receivers.compute(recorded)
        if output is None or call.dropout_p or values.dtype == torch.float64:
            # What is dropped is drawn by torch; float64 has more digits than headloom's scores.
            return func(*args, **kwargs)
        # Leading dimensions are torch's own: a batch, or a batch of parts, before the heads.
        output = output.reshape(*_leading(call), *output.shape[-2:])
        return output if axis == -3 else output.movedim(-3, axis)

    # nn.MultiheadAttention

    def _heads(self, path: str, func: Any, args: Any, kwargs: Any) -> Any:
        given = inspect.signature(func).bind(*args, **kwargs).arguments
        before, self._around = self._around, (given["query"], given["key"])

        def fused(*args: Any, **kwargs: Any) -> Any:
            return self._fused(path, _FUSED, args, kwargs)

        try:
            inside = _renamed(func, scaled_dot_product_attention=fused)
            if not given.get("need_weights", True):
                return inside(**given)
            # With weights asked for the mask counts, and not what a flag says of it. Nothing is
            # dropped here: the function itself draws its numbers below.
            inside(**given | {"need_weights": False, "is_causal": False, "training": False})
        finally:
            self._around = before
        return func(*args, **kwargs)

    # headloom's

    def _headloom(self, path: str, func: Any, args: Any, kwargs: Any) -> Any:
        call = HeadloomCall.of(func, args, kwargs)
        whence = self._whence(path, call.queries, call.keys, call.ahead is False)
        recorded = call.recorded(path, whence["kind"])
        recorded.tracks = whence["tracks"]
        keys = recorded.keys.shape[2]
        output: Tensor | None
        if call.has_formula or not call.has_products:
            output, graph = attend(
                recorded.queries, recorded.keys, recorded.values, score=recorded.score,
                **recorded.arguments(),
                keep=Top(keys) if isinstance(self._keep, All) else self._keep,
            )  # fmt: skip
            self._receivers.take(recorded, graph.detach())
        else:
            output = self._receivers.compute(recorded)
        own = func is attend or call.dropout or call.backend is not None
        if output is None or own or recorded.values.dtype == torch.float64:
            return func(*args, **kwargs)
        return output if call.queries.ndim == 4 else output[0]

    # flex_attention

    def _flex(self, path: str, func: Any, args: Any, kwargs: Any) -> Any:
        call = FlexCall(*args, **kwargs)
        try:
            terms = call.terms()
        except UnreadableRuleError as error:
            self._refuse(path, str(error))
            return func(*args, **kwargs)
        ahead = None if terms.mask is None else terms.ahead
        recorded = LayerCall(
            path=path,
            **self._whence(path, call.query, call.key, ahead is False),
            queries=call.query,
            keys=call.key,
            values=call.value,
            scale=call.scale,
            mask=terms.mask,
            bias=terms.bias,
            softcap=terms.softcap,
            positions="none" if terms.bias is None else "bias",
            is_causal=ahead is False,
            own_output=call.own_rows,
        )
        output = self._receivers.compute(recorded)
        if output is None or call.asks_for_more or call.value.dtype == torch.float64:
            return func(*args, **kwargs)
        return output, *[output.new_empty(0)] * beside_output()

    def _whence(self, path: str, query: Tensor, key: Tensor, is_causal: bool) -> dict[str, Any]:
        """The tracks of a call, and its kind, by whether queries and keys come from one tensor."""
        lengths = query.shape[-2], key.shape[-2]
        query, key = self._around or (query, key)
        tracks = self._provenance.call(path, query, key, lengths)
        kind = kind_of_name(path, is_causal)
        if not self._provenance.shared(query, key):
            kind = "cross"
        elif kind == "cross":
            kind = "decoder" if is_causal else "encoder"
        return {"kind": kind, "tracks": tracks}


def _in_one_type(*tensors: Tensor) -> list[Tensor]:
    """Tensors in the type in which torch computes with them: under autocast it is another."""
    device = tensors[0].device.type
    if torch.is_autocast_enabled(device) and tensors[0].dtype != torch.float64:
        return [tensor.to(torch.get_autocast_dtype(device)) for tensor in tensors]
    return list(tensors)


def _axis_of_heads(call: _Fused) -> int | None:
    """The dimension of the heads, counted from the end; None: of five nothing says which it is.

    Heads are split from the features of a position: in memory they lie side by side.
    """
    if call.query.ndim <= 4 or call.enable_gqa:
        return -3
    value = call.value
    beside = value.shape[-1] * value.stride(-1)
    axes = [axis for axis in range(-value.ndim, -2) if value.stride(axis) == beside]
    return axes[0] if len(axes) == 1 else None


def _leading(call: _Fused) -> torch.Size:
    """The dimensions before positions and depth of what a call gives."""
    if call.enable_gqa:
        return call.query.shape[:-2]
    broadcast: Callable[..., torch.Size] = torch.broadcast_shapes
    return broadcast(call.query.shape[:-2], call.key.shape[:-2])


def _of_four_dimensions(call: _Fused, *tensors: Tensor) -> list[Tensor]:
    """Queries, keys and values as (batch, heads, positions, depth).

    Without heads there is one; what stands before the heads is one batch. Where heads are grouped
    they are the last of what stands there, and keys and values may be of different groups.
    """
    made = []
    for tensor in tensors:
        leading = tensor.shape[:-2] if call.enable_gqa else _leading(call)
        tensor = tensor.expand(*leading, *tensor.shape[-2:])
        if len(leading) < 2:
            shape = (1, -1) if call.enable_gqa else (-1, 1)
            tensor = tensor.reshape(*shape, *tensor.shape[-2:])
        made.append(tensor if tensor.ndim == 4 else tensor.flatten(0, -4))
    queries, *shared = made
    if call.enable_gqa and shared[0].shape[1] != shared[1].shape[1]:
        heads = math.lcm(*(tensor.shape[1] for tensor in shared))
        shared = [tensor.repeat_interleave(heads // tensor.shape[1], 1) for tensor in shared]
    return [queries, *shared]


def _mask_of_four(call: _Fused, mask: Tensor) -> Tensor:
    """A mask of a call as (batch or 1, heads or 1, queries or 1, keys)."""
    leading = _leading(call)
    mask = mask.reshape((1,) * (len(leading) + 2 - mask.ndim) + mask.shape)
    if len(leading) < 2:
        shape = (1, -1) if call.enable_gqa else (-1, 1)
        return mask.reshape(*shape, *mask.shape[-2:])
    if len(leading) > 2 and any(size > 1 for size in mask.shape[:-3]):
        mask = mask.expand(*leading[:-1], *mask.shape[-3:])
    return mask.flatten(0, -4) if len(leading) > 2 else mask


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


def _renamed(function: Any, **names: Any) -> Callable[..., Any]:
    """A function of torch in which some names mean something else, and that asks no mode.

    The same code: nothing of torch is replaced.
    """
    names["has_torch_function"] = names["has_torch_function_unary"] = lambda tensors: False
    names = {**function.__globals__, **names}
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
