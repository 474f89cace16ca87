"""Native kernels as attention calls: differentiable, and as operators in compiled programs.

The kernels stream keys past blocks of queries and never form the matrix of weights; see
native/forward.h and native/backward.h. Results do not depend on the number of threads.

torch.compile cannot trace a function that passes memory to C++. It can call an operator that has a
fake kernel (sizes and dtypes without numbers) and another operator as its derivative:

    torch.ops.headloom.attend               the output, and the tensors of a graph
    torch.ops.headloom.attend_gradients     the gradients of its backward pass

Without compilation the same functions are called without torch's dispatcher, which would take
0.2 ms of a training step for each call (docs/decisions/0052-one-call.md). An exported program has
torch's operations instead, so that it runs without headloom.

Source: torch.library, https://docs.pytorch.org/docs/stable/library.html
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import UnionType
from typing import Any, get_type_hints

import torch
from torch import Tensor
from torch.library import custom_op

from headloom.errors import ShapeError
from headloom.mechanism.backends.compiled import (
    DIFFERENTIABLE,
    NativeCall,
    chosen_instruction_set,
    kernels,
    serves_compiled,
)
from headloom.mechanism.backends.native_gradients import Gradients, Saved, by_formulas, gradients
from headloom.mechanism.backends.native_request import prepare
from headloom.mechanism.call import CONSTANT, NAMES, AttentionCall, Results, graph_of
from headloom.mechanism.graph import AttentionGraph
from headloom.mechanism.positions import DistanceBias
from headloom.mechanism.shapes import Output

#: Multiply-adds below which one thread computes a call, in 8 microseconds at most: two threads were
#: no faster, and took milliseconds if the other core was busy.
LITTLE = 2**16
#: Whether the forward kernels round weights to bfloat16 for their product with the values.
ROUNDS_WEIGHTS = chosen_instruction_set() in ("avx512_bf16", "amx")
#: Results of the kernels: those of a call, and the output before rounding.
KERNEL_NAMES = (*NAMES, "exact_output")
#: Number of tensor fields of a call (its first ones), and of all fields.
TENSORS, FIELDS = 11, len(NativeCall._fields)

#: Names of the kept edges here, and in the kernels.
_KEPT = tuple((name, f"kept_{name}") for name in ("keys", "scores", "weights"))

Tensors = tuple[Tensor | None, ...]
#: The fields of a call, then `kept`, `received` and `learns`.
Arguments = Sequence[Any]


def forward(native: NativeCall, kept: int, received: bool, learns: bool) -> Results:
    """Run the forward kernel.

    kept: slots for the edges of a row; -1 for the output alone.
    received: whether to sum the columns, over the last queries too if the call has `last_queries`.
    learns: whether a backward pass may follow, which needs lse and the output before rounding: an
        error of dO . O does not cancel in a row's sums, and is multiplied by distances or keys.
    """
    queries, depth = native.queries, native.values.shape[3]
    # (dtypes are explicit, since torch's default may differ; empty_like takes half the time of
    # empty, which matters in calls of a few microseconds.)
    if queries.shape[3] == depth and queries.is_contiguous():
        output = torch.empty_like(queries)
    else:
        output = torch.empty((*queries.shape[:3], depth), dtype=queries.dtype)
    results = {"output": output}
    if kept < 0 and not learns:
        kernels.forward(native, results, _threads(native))
        return results
    shape, like, float32, int32 = queries.shape[:3], torch.empty_like, torch.float32, torch.int32
    results["lse"] = lse = torch.empty(shape, dtype=float32)
    if learns and native.bfloat16:
        results["exact_output"] = torch.empty((*shape, depth), dtype=float32)
    if kept >= 0:
        results["scores"] = scores = torch.empty((*shape, kept), dtype=float32)
        results["keys"], results["weights"] = like(scores, dtype=int32), like(scores)
        results["entropy"], results["rest"] = like(lse), like(lse)
        results["count"] = like(lse, dtype=int32)
    if received:
        for name in NAMES[-3:] if native.last_queries else NAMES[-3:-1]:
            # Zeros: without queries the kernels write nothing.
            results[name] = torch.zeros((*shape[:2], native.keys.shape[2]), dtype=float32)
    buffers: dict[str, Tensor | int] = {**results}
    if kept >= 0:
        buffers["kept"] = kept
        for name, kernel_name in _KEPT:
            buffers[kernel_name] = buffers.pop(name)
    kernels.forward(native, buffers, _threads(native))
    return results


def _threads(native: NativeCall) -> int:
    """Return the number of threads for a call; results do not depend on it."""
    threads = torch.get_num_threads()
    if threads > 1:
        batch, heads, queries, depth = native.queries.shape
        keys, value_depth = native.values.shape[2:]
        if batch * heads * queries * keys * (depth + value_depth) < LITTLE:
            return 1
    return threads


def results_of(tensors: Tensors) -> Results:
    """Name results that are in the order of KERNEL_NAMES; leave out empty ones (of operators)."""
    pairs = zip(KERNEL_NAMES, tensors, strict=True)
    return {name: tensor for name, tensor in pairs if tensor is not None and tensor.ndim > 1}


def keep(ctx: Any, inputs: Arguments, output: Tensors) -> None:
    """Save the tensors for the backward pass."""
    ctx.set_materialize_grads(False)
    ctx.arguments = (*[None] * TENSORS, *inputs[TENSORS:])
    results = results_of(output)
    constant = (results.get(name) for name in (*CONSTANT, "exact_output"))
    ctx.mark_non_differentiable(*(tensor for tensor in constant if tensor is not None))
    exact = inputs[0].dtype == torch.bfloat16 and "exact_output" in results
    graph = (results.get(name) for name in Saved._fields[2:])
    saved = Saved(results["exact_output" if exact else "output"], results["lse"], *graph)
    ctx.save_for_backward(*inputs[:TENSORS], *saved)


def backward_pass(ctx: Any, by_result: Tensors, compute: Callable[..., Gradients]) -> Gradients:
    """Return gradients for all arguments; `compute`, like `gradients`, gives those of the call."""
    tensors = ctx.saved_tensors  # read once: activation checkpointing allows no second time
    arguments = ctx.arguments[TENSORS:]
    needs = [
        need and tensor is not None
        for need, tensor in zip(ctx.needs_input_grad[:DIFFERENTIABLE], tensors, strict=False)
    ]
    incoming = results_of(by_result)
    native = NativeCall(*tensors[:TENSORS], *arguments[:-3])
    computed = compute(native, Saved(*tensors[TENSORS:]), incoming, needs)
    return *computed, *[None] * (len(ctx.arguments) - DIFFERENTIABLE)


class AutogradAttend(torch.autograd.Function):
    """Results of a call, differentiable twice except kept keys, counts and the largest weights."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensors:
        by_name = forward(NativeCall(*arguments[:FIELDS]), *arguments[FIELDS:])
        results = tuple(by_name.get(name) for name in KERNEL_NAMES)
        keep(ctx, arguments, results)  # (torch takes 20 microseconds to call a setup_context)
        return results

    @staticmethod
    def backward(ctx: Any, *by_result: Tensor | None) -> Gradients:
        return backward_pass(ctx, by_result, gradients)


_attend: Callable[..., Tensors] = AutogradAttend.apply


def _prepared(call: AttentionCall) -> NativeCall:
    """Prepare a call for the kernels; in float32 if gradients are multiplied by distances."""
    native, relative = prepare(call), call.relative
    if not (ROUNDS_WEIGHTS and native.bfloat16 and isinstance(relative, DistanceBias)):
        return native
    bias = native.offset_bias
    if relative.looked_up or bias is None or not bias.requires_grad:
        return native
    queries, keys, values = (part.float() for part in (native.queries, native.keys, native.values))
    return native._replace(queries=queries, keys=keys, values=values)


def attend(call: AttentionCall, instruction_set: str = "") -> tuple[Output, AttentionGraph | None]:
    """Return the output of a call that the kernels serve, and its graph if it keeps one.

    instruction_set: name of the instruction set of the kernels; empty: the default.
    """
    native = _prepared(call)
    if instruction_set:
        native = native._replace(instruction_set=instruction_set)
    kept, received = -1 if call.keep is None else call.places, call.received is not None
    learns = torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in native.tensors
    )
    if not (learns or serves_compiled()):
        results = forward(native, kept, received, False)
    else:
        arguments = (*native, kept, received, learns)
        run = _operator if serves_compiled() else _attend
        results = results_of(run(*arguments))
    output = results["output"]
    # (Even a conversion to the same dtype takes a microsecond, which matters in short calls.)
    if output.dtype != call.queries.dtype:
        output = output.to(call.queries.dtype)
    return output, None if kept < 0 else graph_of(call, results)


# Operators of compiled programs.

_KINDS: dict[type | UnionType, str] = {
    Tensor: "Tensor", Tensor | None: "Tensor?",
    float: "float", bool: "bool", int: "SymInt", str: "str",
}  # fmt: skip
CALL = ", ".join(f"{_KINDS[kind]} {name}" for name, kind in get_type_hints(NativeCall).items())
RESULTS = ", ".join(["Tensor"] * len(KERNEL_NAMES))


def _checked(arguments: Arguments) -> NativeCall:
    """Check the ranges of a call, whose numbers are known only when the program runs."""
    native = NativeCall(*arguments[:FIELDS])
    keys = native.keys.shape[2]
    for ranges in (native.key_range, native.row_range):
        if ranges is not None and ranges.numel() and not 0 <= ranges.min() <= ranges.max() <= keys:
            raise ShapeError(
                f"mask: the ranges go from key {int(ranges.min())} to {int(ranges.max())}, of "
                f"{keys} keys. Give lengths, or ranges, from 0 to {keys}."
            )
    return native


def _run_forward(*arguments: Any) -> tuple[Tensor, ...]:
    results = forward(_checked(arguments), *arguments[FIELDS:])
    # An operator returns tensors only: results that were not requested are empty.
    return tuple(
        results[name] if name in results else torch.empty(0, dtype=torch.float32)
        for name in KERNEL_NAMES
    )


_operator = custom_op(
    "headloom::attend",
    _run_forward,
    mutates_args=(),
    schema=f"({CALL}, SymInt kept, bool received, bool learns) -> ({RESULTS})",
)


@_operator.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    native, (kept, received, learns) = NativeCall(*arguments[:FIELDS]), arguments[FIELDS:]
    rows, graph = native.queries.shape[:3], kept >= 0
    outputs, edges = (*rows, native.values.shape[3]), (*rows, kept)
    by_key = (*rows[:2], native.keys.shape[2])
    sizes = {
        "output": outputs,
        "lse": rows if graph or learns else (0,),
        **dict.fromkeys(("keys", "scores", "weights"), edges if graph else (0,)),
        **dict.fromkeys(("entropy", "rest", "count"), rows if graph else (0,)),
        **dict.fromkeys(("received", "received_most"), by_key if received else (0,)),
        "received_last": by_key if received and native.last_queries else (0,),
        "exact_output": outputs if learns and native.bfloat16 else (0,),
    }
    types = {"output": native.queries.dtype}
    if graph:
        types |= {"keys": torch.int32, "count": torch.int32}
    return tuple(
        native.queries.new_empty(sizes[name], dtype=types.get(name, torch.float32))
        for name in KERNEL_NAMES
    )


def _run_gradients(*arguments: Any) -> list[Tensor]:
    native, (saved, by_result, needs) = _checked(arguments), arguments[FIELDS:]
    rows = Saved(*saved[:2], *(tensor if tensor.numel() else None for tensor in saved[2:]))
    pairs = zip(KERNEL_NAMES, by_result, strict=True)
    incoming = {name: gradient for name, gradient in pairs if gradient is not None}

    def compute() -> Gradients:
        with torch.no_grad():
            return gradients(native, rows, incoming, needs)

    if by_formulas(native, rows, incoming):
        # Autograd does not record on a thread that runs an operator, but the formulas are
        # differentiated: on this thread their gradients would be 0.
        with ThreadPoolExecutor(1) as thread:
            computed = thread.submit(compute).result()
    else:
        computed = compute()
    return [
        gradient.contiguous()
        for gradient, need in zip(computed, needs, strict=True)
        if need and gradient is not None
    ]


_gradients_operator = custom_op(
    "headloom::attend_gradients",
    _run_gradients,
    mutates_args=(),
    schema=f"({CALL}, Tensor[] saved, Tensor?[] incoming, bool[] needs) -> Tensor[]",
)


@_gradients_operator.register_fake
def _(*arguments: Any) -> list[Tensor]:
    wanted = zip(arguments[:DIFFERENTIABLE], arguments[-1], strict=True)
    return [tensor.new_empty(tensor.shape) for tensor, need in wanted if need]


def _backward_of_operator(ctx: Any, *by_result: Tensor | None) -> Gradients:
    def compute(
        native: NativeCall, saved: Saved, incoming: Results, needs: Sequence[bool]
    ) -> Gradients:
        empty = saved.output.new_empty(0)
        tensors = [empty if tensor is None else tensor for tensor in saved]
        gradients = [incoming.get(name) for name in KERNEL_NAMES]
        computed = iter(_gradients_operator(*native, tensors, gradients, needs))
        return tuple(next(computed) if need else None for need in needs)

    return backward_pass(ctx, by_result, compute)


_operator.register_autograd(_backward_of_operator, setup_context=keep)
