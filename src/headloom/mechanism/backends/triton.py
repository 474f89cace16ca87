"""attend() on a GPU by Triton kernels: output and exact graph in linear memory.

The kernels compute the forward pass; gradients and received attention are computed by torch's
formulas, one block of rows at a time. Before a device is used, the kernels are compared with plain
torch on a small call there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from headloom.errors import BackendError, installing
from headloom.mechanism.backends import native, torch_ops
from headloom.mechanism.backends.compiled import NativeCall, why_wrapped
from headloom.mechanism.backends.formulas import gradients_by_formulas, received_by_formulas
from headloom.mechanism.backends.gpu_sizes import (
    Constants,
    Device,
    band_of,
    candidates,
    described,
    interpreted,
    sizes_of,
)
from headloom.mechanism.backends.native_request import prepare, why_form_not_served
from headloom.mechanism.backends.torch_blocks import fill_places
from headloom.mechanism.call import PER_ROW, AttentionCall, Results, graph_of
from headloom.mechanism.graph import AttentionGraph, Top
from headloom.mechanism.masks import causal
from headloom.mechanism.scores import ScaledDot
from headloom.mechanism.shapes import Output

#: The first Triton that compiles the kernel; it comes with torch 2.8.
LEAST_TRITON = (3, 4)
#: Largest depth of the kernel, and largest number of edges, which are sorted in registers.
DEEPEST, MOST_KEPT = 256, 512
#: Bytes of candidates and maxima of all programs; if one needs much, fewer run at once.
ROOM = 2**30
#: Errors of a device that is running, not of the compiler.
OF_DEVICES = (torch.OutOfMemoryError, getattr(torch, "AcceleratorError", torch.OutOfMemoryError))
#: Largest differences allowed in the small call, for numbers about 1.
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 4e-2, torch.float16: 4e-3}


def why_not_served(call: AttentionCall) -> str | None:
    """Why the kernel does not serve a call; None if it does."""
    device, dtype = call.queries.device, call.queries.dtype
    if device.type != "cuda" and not (interpreted() and device.type == "cpu"):
        return f"the tensors are on {device}, the kernel runs on CUDA devices"
    if find_spec("triton") is None:
        return f"Triton is not installed ({installing('gpu')})"
    if (version := _triton_version()) < LEAST_TRITON:
        needed = ".".join(map(str, LEAST_TRITON))
        return f"Triton {'.'.join(map(str, version))} is installed, the kernel needs {needed}"
    wrapped = why_wrapped((call.queries, call.keys, call.values))
    if wrapped is not None:
        return wrapped
    if dtype not in TOLERANCES:
        return f"the tensors are {dtype}, the kernel takes float32, bfloat16 and float16"
    if call.relative is not None and call.relative.tables() is not None:
        return "the kernel has no tables of relative positions"
    depths = call.keys.shape[3], call.values.shape[3]
    if not 0 < min(depths) <= max(depths) <= DEEPEST:
        return f"the depths are {depths[0]} and {depths[1]}, the kernel takes 1 to {DEEPEST}"
    if min(call.places, call.keys.shape[2]) > MOST_KEPT:
        return f"{call.places:,} edges to keep, the kernel keeps up to {MOST_KEPT}"
    return why_form_not_served(call) or _difference(device, dtype)


@lru_cache
def _triton_version() -> tuple[int, ...]:
    from triton import __version__

    return tuple(int(part) for part in __version__.split(".")[:2])


@lru_cache
def _difference(device: torch.device, dtype: torch.dtype) -> str | None:
    """Compare the kernels with plain torch on a device; return the difference, None if small."""
    generator = torch.Generator().manual_seed(1)
    length = 70 if interpreted() else 700  # several tiles
    queries, keys, values = (
        torch.randn(1, heads, length, 32, generator=generator).to(device, dtype)
        for heads in (4, 2, 2)
    )
    # Then full lists of candidates, and ties: integers, whose sums are exact on every device.
    equal = queries.round(), torch.ones_like(keys)
    for case, inputs, scale in (("", (queries, keys), 32**-0.5), (" of equal scores", equal, 0.5)):
        call = AttentionCall(*inputs, values, ScaledDot(), scale, causal(), keep=Top(8))
        with torch.no_grad():
            try:
                output, graph = attend(call)
            except Exception as error:  # compilers have many classes of errors
                return f"on {device} it cannot be compiled or run: {type(error).__name__}: {error}"
            torch_output, torch_graph = torch_ops.attend(call)
            assert isinstance(torch_graph, AttentionGraph)
        names = ["weights", "lse", "entropy", "rest", *(["keys"] if case else [])]
        pairs = {name: (getattr(graph, name), getattr(torch_graph, name)) for name in names}
        pairs |= {"output": (output, torch_output)}
        for name, (actual, expected) in pairs.items():
            difference = float((actual.float() - expected.float()).abs().max())
            if not difference <= TOLERANCES[dtype]:
                return (
                    f"on {device} its {name}{case} differs by {difference:.1e} from plain torch "
                    f"in {dtype}"
                )
    return None


def forward_graph(native: NativeCall, kept: int) -> Results:
    """Return the output and a graph with `kept` edges in each row."""
    from headloom.mechanism.backends.triton_edges import edges_kernel
    from headloom.mechanism.backends.triton_softmax import softmax_kernel

    device = native.queries.device
    batch, heads, query_count, depth = native.queries.shape
    kv_heads, length, value_depth = native.values.shape[1:]
    k, rows = min(kept, length), (batch, heads, query_count)

    def per_row(*more: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(*rows, *more, dtype=dtype, device=device)

    output = native.queries.new_empty(*rows, value_depth)
    kept_keys, count = per_row(k, dtype=torch.int32), per_row(dtype=torch.int32)
    kept_scores, kept_weights = per_row(k), per_row(k)
    lse, entropy, rest = per_row(), per_row(), per_row()
    every = (output, kept_keys, kept_scores, kept_weights, lse, entropy, rest, count)
    results = dict(zip(PER_ROW, every, strict=True))
    if not lse.numel():
        return results
    properties = described(device)
    sizes = sizes_of(native, k, properties)
    blocks, tiles = -(-query_count // sizes.rows), -(-length // sizes.tile)
    programs, words = blocks * batch * heads, -(-tiles // 128) * 4
    of_row = [per_row() for _ in range(3)] if k else [lse] * 3  # not read without edges
    again = torch.empty(programs * words if k else 0, dtype=torch.int32, device=device)
    taken = torch.zeros(8, dtype=torch.int32, device=device)  # block counters of both kernels

    rules = _rules(native)
    flags = {f"HAS_{name.upper()}": rule is not None for name, rule in rules.items()}
    capped, added = native.softcap != 0, flags["HAS_BIAS"] or flags["HAS_OFFSET_BIAS"]
    flags |= {
        "BANDED": native.banded, "CAPPED": capped, "WIDE": interpreted(),
        "SCALED": native.scale > 0 and not capped and not added,
    }  # fmt: skip
    sinks, *others = (lse if rule is None else rule for rule in rules.values())
    queries, keys, values = native.queries, native.keys, native.values
    strides = [tensor.stride()[:3] for tensor in (queries, keys, values)]
    cells = _strides(rules["bias"], rows) + _strides(rules["allowed"], rows)
    heads_and_rows = blocks, batch, heads, heads // kv_heads, query_count, length
    scores = native.scale, native.softcap, *band_of(native), k

    groups = min(tiles, sizes.tiles) * int(sizes.softmax["PARTS"])
    room, running = _room(
        4 * sizes.rows * groups if k else 0, programs, sizes.softmax, properties, device
    )
    _launch(
        softmax_kernel, running,
        queries, keys, values, output, lse, entropy, rest, count,
        sinks, *others, *of_row, again, taken[:1], room.view(torch.float32),
        *strides[0], *strides[1], *strides[2], *cells,
        groups, words, *heads_and_rows, depth, value_depth, *scores,
        KEEPS=k > 0, **flags, **sizes.softmax,
    )  # fmt: skip
    if not k:
        return results
    del flags["HAS_SINKS"]
    of_program = -(-(candidates(sizes.rows, sizes.edges) + tiles // 2 + 1) // 16) * 16
    room, running = _room(8 * of_program, programs, sizes.edges, properties, device)
    _launch(
        edges_kernel, running,
        queries, keys, kept_keys, kept_scores, kept_weights, rest,
        *others, *of_row, again, taken[4:], room,
        *strides[0], *strides[1], *cells,
        of_program, words, *heads_and_rows, depth, *scores,
        **flags, **sizes.edges,
    )  # fmt: skip
    return results


def _launch(kernel: Any, programs: int, *arguments: Any, **sizes: Any) -> None:
    """Run programs of a kernel on the device of the first tensor, which may not be the current."""
    try:
        with torch.cuda.device_of(arguments[0]):  # type: ignore[no-untyped-call]
            kernel[(programs,)](*arguments, **sizes)
    except Exception as error:  # compilers have many classes of errors
        message = (str(error).strip() or "no message").splitlines()[0]
        reason = f"{type(error).__name__}: {message}"
        compiling = BackendError(f"the kernel cannot be compiled for this call: {reason}")
        raise error if isinstance(error, OF_DEVICES) else compiling  # noqa: B904


def _room(
    of_program: int, programs: int, sizes: Constants, device: Device, where: torch.device
) -> tuple[Tensor, int]:
    """Allocate memory for the programs that run at once, in 8-byte numbers; return their number."""
    running = min(programs, device.processors * max(1, 8 // int(sizes["num_warps"])))
    if of_program:
        running = max(1, min(running, ROOM // of_program))
    return torch.empty(-(-running * of_program // 8), dtype=torch.int64, device=where), running


def _rules(native: NativeCall) -> dict[str, Tensor | None]:
    """Return the kernel's tensors besides queries, keys and values, in its order, on the device."""
    device, (batch, _, count, _) = native.queries.device, native.queries.shape
    rows = native.row_range
    tensors = {
        "sinks": native.sinks,
        "bias": native.bias,
        "offset_bias": native.offset_bias,
        # A view: a copy of broadcast cells would have other strides.
        "allowed": None if native.allowed is None else native.allowed.view(torch.uint8),
        "key_range": None if native.key_range is None else native.key_range.int(),
        "row_range": None if rows is None else rows.expand(2, batch, count).int(),
    }
    cells = ("bias", "allowed")
    return {
        name: tensor
        if tensor is None or (name in cells and tensor.device == device)
        else tensor.to(device).contiguous()
        for name, tensor in tensors.items()
    }


def _strides(cells: Tensor | None, rows: tuple[int, int, int]) -> tuple[int, ...]:
    """Return the strides of cells without the keys, 0 in dimensions of size 1."""
    if cells is None:
        return (0, 0, 0)
    return tuple(
        0 if size == 1 else stride for size, stride in zip(cells.shape, cells.stride(), strict=True)
    )[:3]


def _forward(native: NativeCall, kept: int, received: bool) -> Results:
    results = forward_graph(native, kept)
    return results | received_by_formulas(native, results["keys"]) if received else results


class _Attend(native.AutogradAttend):
    """Autograd function like that of the CPU, with formulas for the backward pass."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor | None, ...]:
        call, (kept, received, _) = NativeCall(*arguments[:-3]), arguments[-3:]
        by_name = _forward(call, kept, received)
        results = tuple(by_name.get(name) for name in native.KERNEL_NAMES)
        native.keep(ctx, arguments, results)
        return results

    @staticmethod
    def backward(ctx: Any, *by_result: Tensor | None) -> tuple[Tensor | None, ...]:
        return native.backward_pass(
            ctx,
            by_result,
            lambda call, saved, incoming, needs: gradients_by_formulas(
                call, saved.keys, incoming, needs
            ),
        )


_attend: Callable[..., tuple[Tensor | None, ...]] = _Attend.apply


def attend(call: AttentionCall) -> tuple[Output, AttentionGraph]:
    """Return output and attention graph (without edges if none are kept) of a served call."""
    request, k, received = prepare(call), max(call.places, 0), call.received is not None
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in request.tensors):
        results = native.results_of(_attend(*request, k, received, True))
    else:
        results = _forward(request, k, received)
    fill_places(results, k)
    results["weights"] = results["weights"].to(call.queries.dtype)
    return results["output"], graph_of(call, results)
