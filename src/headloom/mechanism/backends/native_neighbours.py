"""Kernels of attention over neighbours: forward, and backward by recomputing the weights.

See native/neighbours_forward.h and native/neighbours_backward.h. No tensor of edges x heads x depth
is formed. Results do not depend on the number of threads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headloom.mechanism import neighbour_call as by_torch
from headloom.mechanism.backends.compiled import INSTRUCTION_SET, NO_KERNELS, kernels, why_wrapped
from headloom.mechanism.backends.formulas import applied, by_operations, products_again
from headloom.mechanism.neighbour_call import NeighbourCall
from headloom.mechanism.parts import changed

#: Largest number of tasks of the backward pass; each sums gradients of parameters separately.
PIECES = 64
#: Least number of edges of a task.
PIECE_EDGES = 1024


def why_not_served(call: NeighbourCall) -> str | None:
    """Why the kernels do not serve a call; None if they do."""
    if kernels is None:
        return NO_KERNELS
    tensors = [tensor for tensor in call.tensors if tensor is not None]
    wrapped = why_wrapped(tensors)
    if wrapped is not None:
        return wrapped
    if any(tensor.device.type != "cpu" for tensor in (*tensors, call.edges.columns)):
        return f"the tensors are on {call.values.device}, the kernels run on the CPU"
    if call.edge_rows is not None:
        return "the edges have features, which the kernels do not read"
    if any(tensor.dtype != torch.float32 for tensor in tensors):
        return f"the tensors are {call.values.dtype}, the kernels take float32"
    return None


class _Attention(torch.autograd.Function):
    """Differentiable output; second derivatives by torch's formulas."""

    @staticmethod
    def forward(ctx: Any, call: NeighbourCall, *tensors: Tensor | None) -> tuple[Tensor]:
        result, shift, inverse, _ = _forward(call, with_scores=False)
        ctx.call = call.mapped(lambda tensor: tensor.new_empty(0))
        ctx.save_for_backward(*tensors, result, shift, inverse)
        return (result,)

    @staticmethod
    def backward(ctx: Any, by_output: Tensor) -> tuple[Any, ...]:
        saved = ctx.saved_tensors
        count = len(NeighbourCall.names)
        tensors = tuple(saved[:count])
        if not by_operations((by_output,)):
            by_name = _backward(ctx.call.with_tensors(tensors), by_output, *saved[count:])
            return None, *(by_name.get(name) for name in NeighbourCall.names)

        def by_formula(*leaves: Tensor) -> tuple[Tensor, ...]:
            remaining = iter(leaves)
            fields = tuple(None if tensor is None else next(remaining) for tensor in tensors)
            return (by_torch.output(ctx.call.with_tensors(fields)),)

        present = [tensor for tensor in tensors if tensor is not None]
        gradients = iter(products_again(by_formula, present, (by_output,)))
        return None, *(None if tensor is None else next(gradients) for tensor in tensors)


def output(call: NeighbourCall) -> Tensor:
    """Return the weighted sums, (targets, heads, value_depth), of a call that the kernels serve."""
    call = _contiguous(call)
    if not (call.learns and torch.is_grad_enabled()):
        return _forward(call, with_scores=False)[0]
    return applied(_Attention, call, *call.tensors)[0]


def scores_of(call: NeighbourCall) -> Tensor:
    """Return the score of every edge by place, (edges, heads), not differentiable."""
    return _forward(_contiguous(call), with_scores=True)[3]


def _contiguous(call: NeighbourCall) -> NeighbourCall:
    """Return the call with contiguous tensors; keys and values that are one tensor stay one."""
    copied = call.mapped(Tensor.contiguous)
    return changed(copied, keys=copied.values) if call.keys is call.values else copied


def _request(call: NeighbourCall, with_columns: bool) -> tuple[Any, list[Tensor]]:
    """Return the call for the kernels, and the tensors whose addresses it holds."""
    request, edges = kernels.NeighbourCall(), call.edges
    request.targets, request.sources, request.edges_count = edges.targets, edges.sources, len(edges)
    request.heads, request.value_depth = call.values.shape[1:]
    keys = call.keys
    request.depth = 0 if keys is None else keys.shape[2]
    request.score, request.slope = int(call.score), call.slope
    request.scale, request.kept_factor = call.scale, call.kept_factor
    tensors = dict(zip(call.names, call.tensors, strict=True)) | {
        "row_starts": edges.row_starts,
        "columns": edges.columns,
        "edges": edges.numbers,
        "kept": None if call.kept is None else call.kept.contiguous(),
    }
    if with_columns:
        tensors |= dict(zip(("column_starts", "rows", "places"), edges.by_source, strict=True))
    for name, tensor in tensors.items():
        if tensor is not None:
            setattr(request, name, tensor.data_ptr())
    return request, [tensor for tensor in tensors.values() if tensor is not None]


def _forward(call: NeighbourCall, with_scores: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return output, shift and inverse of each row, and the scores if requested."""
    request, alive = _request(call, with_columns=False)
    targets, heads = call.edges.targets, call.heads
    result = call.values.new_empty(targets, heads, call.values.shape[2])
    shift, inverse = call.values.new_empty(2, targets, heads)
    scores = call.values.new_empty(len(call.edges) if with_scores else 0, heads)
    request.output, request.scores = result.data_ptr(), scores.data_ptr() if with_scores else 0
    request.shift, request.inverse = shift.data_ptr(), inverse.data_ptr()
    kernels.neighbours_forward(request, torch.get_num_threads(), INSTRUCTION_SET)
    del alive
    return result, shift, inverse, scores


def _backward(
    call: NeighbourCall, by_output: Tensor, result: Tensor, shift: Tensor, inverse: Tensor
) -> dict[str, Tensor]:
    """Return the gradients of a call by the names of its tensors."""
    request, alive = _request(call, with_columns=True)
    request.output, request.shift = result.data_ptr(), shift.data_ptr()
    request.inverse = inverse.data_ptr()
    by_output = by_output.contiguous()
    to = kernels.NeighbourGradients()
    pieces = max(1, min(PIECES, (len(call.edges) + call.edges.sources) // PIECE_EDGES))
    to.pieces, new = pieces, call.values.new_empty
    buffers = {"values": torch.empty_like(call.values)}
    for name in ("target_terms", "source_terms", "queries", "keys"):
        tensor = getattr(call, name)
        if tensor is not None and not (name == "keys" and _shared(call)):
            buffers[name] = torch.empty_like(tensor)
    if call.vector is not None:
        buffers["vector"] = new(pieces, *call.vector.shape)
    by_score = new(len(call.edges), call.heads)
    state = new(call.edges.targets, 4, call.heads)
    for name, tensor in buffers.items():
        setattr(to, name, tensor.data_ptr())
    if _shared(call):
        to.keys = buffers["values"].data_ptr()
    to.by_output, to.state = by_output.data_ptr(), state.data_ptr()
    to.scores = by_score.data_ptr()
    kernels.neighbours_backward(request, to, torch.get_num_threads(), INSTRUCTION_SET)
    del alive
    if "vector" in buffers:
        buffers["vector"] = buffers["vector"].sum(0)
    if call.edge_terms is not None:
        buffers["edge_terms"] = call.edges.by_number(by_score)
    return buffers


def _shared(call: NeighbourCall) -> bool:
    """Whether keys and values are one tensor, with one gradient."""
    keys, values = call.keys, call.values
    return keys is not None and keys.data_ptr() == values.data_ptr() and keys.shape == values.shape
