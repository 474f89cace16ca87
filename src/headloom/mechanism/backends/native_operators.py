"""The native kernels as operators of torch: a compiled model calls them as a plain one does.

    torch.ops.headloom.attention             output and log-sum-exp, and the output unrounded
    torch.ops.headloom.attend                output and graph, the tensors of `Rows`, and the same
    torch.ops.headloom.attention_gradients   what the backward pass of both asks for

torch.compile cannot look into an autograd function that hands memory to C++. It can call an
operator of which it knows what comes out (the fake kernels here: sizes and types without numbers)
and which other operator is its derivative. Where nothing is compiled, `native` calls the kernels
itself, since an operator's call takes longer. An exported program has torch's operations instead,
so that it runs where headloom is not.

Derivatives of derivatives are not there: torch's compiler takes none.

Source: torch.library, https://docs.pytorch.org/docs/stable/library.html
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from headloom.errors import ShapeError
from headloom.mechanism.backends.native_backward import Incoming, Saved, by_formulas, gradients
from headloom.mechanism.backends.native_forward import forward, forward_graph, room_for_exact
from headloom.mechanism.backends.native_request import NativeCall
from headloom.mechanism.backends.rows import Rows
from headloom.mechanism.mask import Mask
from headloom.mechanism.shapes import Output, PerRow

__all__ = ["attend_rows", "attention_rows"]

#: Tensors of a call that gradients may flow to, its tensors, and all that the operators are given
#: of it, in the order of `CALL`.
COUNT = len(NativeCall.names)
TENSORS = COUNT + 3
#: The arguments by which each operator is given a call.
CALL = (
    "Tensor queries, Tensor keys, Tensor values, Tensor? bias, Tensor? offset_bias, "
    "Tensor? key_table, Tensor? value_table, Tensor? sinks, "
    "Tensor? key_range, Tensor? row_range, Tensor? allowed, "
    "float scale, float softcap, SymInt[]? band, SymInt clip, SymInt relative_offset, "
    "SymInt last_queries"
)
ARGUMENTS = CALL.count(",") + 1
ROWS = ", ".join(["Tensor"] * len(Rows._fields))


def attention_rows(native: NativeCall, exact: bool) -> tuple[Output, PerRow]:
    """Output and log-sum-exp of a call, by an operator.

    exact: whether the backward pass is to have the output as it was before it was rounded.
    """
    output, lse, _ = _attention(*_arguments(native), exact)
    return output, lse


def attend_rows(native: NativeCall, kept: int, received: bool, exact: bool) -> Rows:
    """Output and graph of a call, by an operator; see native_forward.forward_graph."""
    *rows, _ = _attend(*_arguments(native), kept, received, exact)
    found = Rows(*rows)
    if not received:
        return found.changed(received=None, received_most=None, received_last=None)
    return found if native.last_queries else found.changed(received_last=None)


def _arguments(native: NativeCall) -> tuple[Any, ...]:
    """What `CALL` names."""
    band = [native.left, native.right] if native.banded else None
    return (
        *native.tensors,
        *(native.key_range, native.row_range, native.allowed, native.scale, native.softcap),
        *(band, native.clip, native.relative_offset, native.last_queries),
    )


def _call(arguments: Sequence[Any]) -> NativeCall:
    """The call that `_arguments` are of, its ranges checked."""
    key_range, row_range, allowed = arguments[COUNT:TENSORS]
    scale, softcap, band, clip, offset, last = arguments[TENSORS:ARGUMENTS]
    keys = arguments[1].shape[2]
    # While the program was compiled there were no numbers to look at.
    for ranges in (key_range, row_range):
        if ranges is None or not ranges.numel():
            continue
        first, last_key = int(ranges.min()), int(ranges.max())
        if first < 0 or last_key > keys:
            raise ShapeError(
                f"mask: keys {first} to {last_key} are asked for, of {keys}. "
                f"Give lengths, or ranges, from 0 to {keys}."
            )
    tensors: dict[str, Any] = dict(zip(NativeCall.names, arguments[:COUNT], strict=True))
    native = NativeCall(
        **tensors,
        scale=scale,
        softcap=softcap,
        clip=clip,
        relative_offset=offset,
        banded=band is not None,
        left=band[0] if band else 0,
        right=band[1] if band else 0,
        key_range=key_range,
        row_range=row_range,
        allowed=allowed,
        last_queries=last,
    )
    if band is not None or any(part is not None for part in (key_range, row_range, allowed)):
        native.mask = _Rules(native)
    return native


@dataclass(frozen=True, eq=False)
class _Rules(Mask):
    """The mask that the rules of a call say, for what torch computes of it."""

    native: NativeCall

    def block(self, rows: range, keys: int, device: torch.device) -> Tensor:
        """See Mask.block."""
        native, key = self.native, torch.arange(keys, device=device)
        seen = torch.ones(1, 1, len(rows), keys, dtype=torch.bool, device=device)
        if native.banded:
            distance = key - torch.arange(rows.start, rows.stop, device=device)[:, None]
            seen = seen & (distance >= native.left) & (distance <= native.right)
        if native.key_range is not None:
            first, end = native.key_range[:, :, None, None, None]
            seen = seen & (key >= first) & (key < end)
        if native.row_range is not None:
            first, end = native.row_range[:, :, None, rows.start : rows.stop, None]
            seen = seen & (key >= first) & (key < end)
        if native.allowed is not None:
            cells = native.allowed
            seen = seen & (cells if cells.shape[2] == 1 else cells[:, :, rows.start : rows.stop])
        return seen


# An operator gives tensors alone: what nobody asked for is empty.
def _present(*tensors: Tensor | None) -> tuple[Tensor, ...]:
    return tuple(
        torch.empty(0, dtype=torch.float32) if tensor is None else tensor for tensor in tensors
    )


def _attention_by_kernel(*arguments: Any) -> tuple[Tensor, ...]:
    native = _call(arguments)
    exact = room_for_exact(native) if arguments[-1] else None
    return _present(*forward(native, exact), exact)


def _attend_by_kernel(*arguments: Any) -> tuple[Tensor, ...]:
    (kept, received, asked), native = arguments[ARGUMENTS:], _call(arguments)
    exact = room_for_exact(native) if asked else None
    return _present(*forward_graph(native, kept, received, exact), exact)


def _gradients_by_kernel(*arguments: Any) -> list[Tensor]:
    native, needs = _call(arguments), arguments[-1]
    rows, incoming = Saved(*arguments[ARGUMENTS]), Incoming(*arguments[ARGUMENTS + 1])

    def compute() -> tuple[Tensor | None, ...]:
        with torch.no_grad():
            return gradients(native, rows, incoming, tuple(needs))

    if by_formulas(native, rows, incoming):
        # Torch records nothing on a thread that is inside of an operator, and the formulas are
        # differentiated: they would find zeros.
        with ThreadPoolExecutor(1) as thread:
            found = thread.submit(compute).result()
    else:
        found = compute()
    wanted = zip(found, needs, strict=True)
    return [gradient.contiguous() for gradient, need in wanted if need and gradient is not None]


_attention = custom_op(
    "headloom::attention",
    _attention_by_kernel,
    mutates_args=(),
    schema=f"({CALL}, bool exact) -> (Tensor, Tensor, Tensor)",
)
_attend = custom_op(
    "headloom::attend",
    _attend_by_kernel,
    mutates_args=(),
    schema=f"({CALL}, SymInt kept, bool received, bool exact) -> ({ROWS}, Tensor)",
)
_gradients = custom_op(
    "headloom::attention_gradients",
    _gradients_by_kernel,
    mutates_args=(),
    schema=f"({CALL}, Tensor[] saved, Tensor?[] incoming, bool[] needs) -> Tensor[]",
)


@_attention.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    queries, _, values = arguments[:3]
    lse = queries.new_empty(queries.shape[:3], dtype=torch.float32)
    return _output(queries, values), lse, _exact(queries, values, arguments[-1])


@_attend.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    queries, keys, values = arguments[:3]
    last, kept, received, exact = arguments[ARGUMENTS - 1 :]
    rows = queries.shape[:3]
    edges, by_key, nothing = (*rows, kept), (*rows[:2], keys.shape[2]), (0,)
    of_keys = (received, received, received and last)
    sizes = (
        edges,
        edges,
        edges,
        rows,
        rows,
        rows,
        rows,
        *(by_key if is_asked else nothing for is_asked in of_keys),
    )
    whole = ("keys", "keys_seen")
    made = (
        queries.new_empty(size, dtype=torch.int32 if name in whole else torch.float32)
        for name, size in zip(Rows._fields[1:], sizes, strict=True)
    )
    return _output(queries, values), *made, _exact(queries, values, exact)


@_gradients.register_fake
def _(*arguments: Any) -> list[Tensor]:
    wanted = zip(arguments[:COUNT], arguments[-1], strict=True)
    return [tensor.new_empty(tensor.shape) for tensor, need in wanted if need]


def _output(queries: Tensor, values: Tensor) -> Tensor:
    return queries.new_empty((*queries.shape[:3], values.shape[3]))


def _is_exact(queries: Tensor, asked: bool) -> bool:
    """Whether an operator gives the output also as it was before it was rounded."""
    return asked and queries.dtype == torch.bfloat16


def _exact(queries: Tensor, values: Tensor, asked: bool) -> Tensor:
    is_exact = _is_exact(queries, asked)
    shape = (*queries.shape[:3], values.shape[3]) if is_exact else (0,)
    return queries.new_empty(shape, dtype=torch.float32)


def _keep_attention(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    rounded, lse, exact = output
    ctx.mark_non_differentiable(exact)
    _keep(ctx, inputs, Saved(exact if _is_exact(inputs[0], inputs[-1]) else rounded, lse))


def _keep_attend(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *found, exact = output
    rows = Rows(*found)
    constant = (rows.keys, rows.keys_seen, rows.received_most, exact)
    ctx.mark_non_differentiable(*(tensor for tensor in constant if tensor is not None))
    _, ctx.received, asked = inputs[ARGUMENTS:]
    kept = exact if _is_exact(inputs[0], asked) else rows.output
    _keep(ctx, inputs, Saved(kept, rows.lse, rows.entropy, rows.keys, rows.weights))


def _keep(ctx: Any, inputs: tuple[Any, ...], saved: Saved) -> None:
    ctx.set_materialize_grads(False)
    ctx.rules, ctx.given = inputs[TENSORS:ARGUMENTS], len(inputs)
    kept = [tensor for tensor in saved if tensor is not None]
    ctx.save_for_backward(*inputs[:TENSORS], *kept)


def _through_attention(
    ctx: Any, output: Tensor | None, lse: Tensor | None, _: Tensor | None
) -> tuple[Any, ...]:
    return _backward(ctx, Incoming(output, lse))


def _through_attend(ctx: Any, *by_rows: Tensor | None) -> tuple[Any, ...]:
    output, _, scores, weights, lse, entropy, rest, _, received, _, last, _ = by_rows
    # What nobody asked for is empty, and so is a gradient by it.
    received = received if ctx.received else None
    last = last if ctx.received and ctx.rules[-1] else None
    return _backward(ctx, Incoming(output, lse, entropy, scores, weights, rest, received, last))


def _backward(ctx: Any, incoming: Incoming) -> tuple[Tensor | None, ...]:
    tensors, saved = ctx.saved_tensors[:TENSORS], ctx.saved_tensors[TENSORS:]
    needs = [
        tensor is not None and need
        for tensor, need in zip(tensors[:COUNT], ctx.needs_input_grad[:COUNT], strict=True)
    ]
    found = iter(_gradients(*tensors, *ctx.rules, list(saved), list(incoming), needs))
    by_tensor = [next(found) if need else None for need in needs]
    return *by_tensor, *(None,) * (ctx.given - COUNT)


_attention.register_autograd(_through_attention, setup_context=_keep_attention)
_attend.register_autograd(_through_attend, setup_context=_keep_attend)
