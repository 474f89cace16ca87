"""The native kernels as attention calls: forward, and backward from output and log-sum-exp.

The kernels stream keys past blocks of queries and never form the matrix of weights; see
native/forward.h and native/backward.h. Results do not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from headloom.errors import InputError
from headloom.mechanism.backends.native_backward import Incoming, Saved, gradients
from headloom.mechanism.backends.native_forward import (
    forward,
    forward_graph,
    forward_output,
    room_for_exact,
)
from headloom.mechanism.backends.native_operators import attend_rows, attention_rows
from headloom.mechanism.backends.native_request import (
    INSTRUCTION_SET,
    NativeCall,
    kernels,
    prepare,
    serves_compiled,
    why_not_served,
)
from headloom.mechanism.backends.rows import Rows
from headloom.mechanism.call import AttentionCall
from headloom.mechanism.graph import AttentionGraph, Top
from headloom.mechanism.parts import changed
from headloom.mechanism.relative import DistanceBias
from headloom.mechanism.shapes import Output

__all__ = [
    "attend",
    "attention",
    "beside_a_thread",
    "chosen_instruction_set",
    "compiled_instruction_sets",
    "instruction_sets",
    "why_not_served",
]


def compiled_instruction_sets() -> list[str]:
    """The instruction sets that the kernels were compiled for, the widest first.

    None are known of kernels that were built before they could be asked.
    """
    ask = getattr(kernels, "compiled_instruction_sets", list)
    return list(ask())


def instruction_sets() -> list[str]:
    """The instruction sets that the kernels and this processor share, the widest first."""
    return [] if kernels is None else list(kernels.instruction_sets())


def chosen_instruction_set() -> str:
    """The instruction set whose kernels run: that of HEADLOOM_INSTRUCTION_SET, else the widest."""
    return INSTRUCTION_SET or next(iter(instruction_sets()), "")


@contextmanager
def beside_a_thread() -> Iterator[None]:
    """While the block runs, what this thread asks of torch takes one thread fewer.

    For work beside a thread that is busy too: an operation that is shared among all processors
    waits for the share whose processor the other has, for milliseconds, however small it is. Other
    threads keep theirs, unlike by torch.set_num_threads. Without kernels nothing changes.
    """
    count = torch.get_num_threads()
    # Kernels that were built before have no such function.
    set_own_threads = getattr(kernels, "set_own_threads", None)
    before = 0 if set_own_threads is None else set_own_threads(max(1, count - 1))
    try:
        yield
    finally:
        if before and set_own_threads is not None:
            set_own_threads(before)


class _Attention(torch.autograd.Function):
    """Output and log-sum-exp, differentiable."""

    @staticmethod
    def forward(ctx: Any, native: NativeCall, *tensors: Tensor | None) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        exact = room_for_exact(native)
        output, lse = forward(native, exact)
        ctx.native, ctx.written = native.bare(), _times_written(native)
        ctx.save_for_backward(*tensors, output if exact is None else exact, lse)
        return output, lse

    @staticmethod
    def backward(ctx: Any, output: Tensor | None, lse: Tensor | None) -> tuple[Any, ...]:
        return None, *_backward(ctx, Incoming(output, lse))


class _Attend(torch.autograd.Function):
    """Output and graph, differentiable but for the kept keys, the counts and the largest."""

    @staticmethod
    def forward(
        ctx: Any, native: NativeCall, kept: int, received: bool, *tensors: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        ctx.set_materialize_grads(False)
        exact = room_for_exact(native)
        rows = forward_graph(native, kept, received, exact)
        ctx.native, ctx.written = native.bare(), _times_written(native)
        constant = (rows.keys, rows.keys_seen, rows.received_most)
        ctx.mark_non_differentiable(*(tensor for tensor in constant if tensor is not None))
        output = rows.output if exact is None else exact
        saved = Saved(output, rows.lse, rows.entropy, rows.keys, rows.weights)
        ctx.save_for_backward(*tensors, *saved)
        return tuple(rows)

    @staticmethod
    def backward(ctx: Any, *by_rows: Tensor | None) -> tuple[Any, ...]:
        output, _, scores, weights, lse, entropy, rest, _, received, _, last = by_rows
        incoming = Incoming(output, lse, entropy, scores, weights, rest, received, last)
        return None, None, None, *_backward(ctx, incoming)


def _times_written(native: NativeCall) -> tuple[int | None, ...]:
    """How often the memory of a mask, which may be the caller's, has been written to."""
    masks = native.allowed, native.row_range, native.key_range
    return tuple(
        None if tensor is None or tensor.is_inference() else tensor._version for tensor in masks
    )


def _backward(ctx: Any, incoming: Incoming) -> tuple[Tensor | None, ...]:
    """The gradients of a call that was kept with what `Saved` needs of its rows."""
    count = len(NativeCall.names)
    tensors = ctx.saved_tensors  # once: activation checkpointing computes them for one reading
    native = ctx.native.with_tensors(tuple(tensors[:count]))
    if _times_written(native) != ctx.written:
        raise InputError(
            "attention: the mask was changed in place between the call and its backward(). Give "
            "the call a copy: mask.clone()."
        )
    saved = Saved(*tensors[count:])
    return gradients(native, saved, incoming, ctx.needs_input_grad[-count:])


# An autograd function's results, as its `forward` gives them.
_attention: Callable[..., tuple[Tensor, Tensor]] = _Attention.apply
_attend: Callable[..., tuple[Any, ...]] = _Attend.apply


def _wants_gradients(native: NativeCall) -> bool:
    if not torch.is_grad_enabled():
        return False
    return any(tensor is not None and tensor.requires_grad for tensor in native.tensors)


#: Whether the forward kernels round weights of bfloat16 calls, for their product with the values.
ROUNDS_WEIGHTS = chosen_instruction_set() in ("avx512_bf16", "amx")


def _prepared(call: AttentionCall) -> NativeCall:
    """What the kernels are asked, in float32 where a gradient is multiplied by distances.

    The gradients of a row's scores sum to 0 as far as the weights of its output are those of the
    backward pass, and distances multiply what is left.
    """
    native, relative = prepare(call), call.relative
    if not (ROUNDS_WEIGHTS and native.bfloat16 and isinstance(relative, DistanceBias)):
        return native
    bias = native.offset_bias
    if relative.looked_up or bias is None or not bias.requires_grad:
        return native
    queries, keys, values = (part.float() for part in (native.queries, native.keys, native.values))
    return changed(native, queries=queries, keys=keys, values=values)


def attention(call: AttentionCall) -> Output:
    """The output of a call that the kernels serve."""
    native = _prepared(call)
    if serves_compiled():
        output = attention_rows(native, _wants_gradients(native))[0]
    elif _wants_gradients(native):
        output = _attention(native, *native.tensors)[0]
    else:
        output = forward_output(native)
    return _in_type_of(call, output)


def _in_type_of(call: AttentionCall, output: Output) -> Output:
    """An output in the type of its queries, which may have been taken in float32."""
    # (To convert to what a tensor has takes a microsecond, which short calls feel.)
    dtype = call.queries.dtype
    return output if output.dtype == dtype else output.to(dtype)


def attend(
    call: AttentionCall, keep: Top, instruction_set: str | None = None
) -> tuple[Output, AttentionGraph]:
    """Output and attention graph of a call that the kernels serve; see torch_ops.attend.

    instruction_set: whose kernels run; None: those of every call.
    """
    native = _prepared(call)
    if instruction_set is not None:
        native = changed(native, instruction_set=instruction_set)
    k = keep.places(call.keys.shape[2])
    if serves_compiled():
        rows = attend_rows(native, k, call.received is not None, _wants_gradients(native))
    elif _wants_gradients(native):
        rows = Rows(*_attend(native, k, call.received is not None, *native.tensors))
    else:
        rows = forward_graph(native, k, call.received is not None)
    return _in_type_of(call, rows.output), rows.graph(call)
