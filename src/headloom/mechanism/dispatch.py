"""Which backend computes an attention call: one table, asked from its first row on."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

from torch import Tensor

from headloom.errors import BackendError, InputError
from headloom.mechanism.backends import native, torch_ops, triton
from headloom.mechanism.call import AttentionCall
from headloom.mechanism.graph import All, AttentionGraph, Top
from headloom.mechanism.neighbourhood import routing
from headloom.mechanism.shapes import Output, in_words

__all__ = ["BACKENDS", "Backend", "run"]

Backend = Literal["native", "triton", "torch"]
#: The output, and what the call keeps: a graph, dense weights, or nothing.
Result = tuple[Output, AttentionGraph | Tensor | None]


class Row(NamedTuple):
    """One way to compute a call.

    name: the backend that a caller names.
    why_not: why it does not serve a call, or None; with the backend that was named, or None.
    run: computes a call that it serves. It may raise a BackendError where a compiler fails.
    """

    name: Backend
    serves: str
    why_not: Callable[[AttentionCall, Backend | None], str | None]
    run: Callable[[AttentionCall], Result]


def _along_edges(call: AttentionCall) -> Result:
    backend = "native" if call.queries.dtype.itemsize < 8 else None
    if isinstance(call.keep, Top):
        return routing.attend(call, call.keep, backend)
    return routing.attention(call, backend), None


def _why_not_along_edges(call: AttentionCall, named: Backend | None) -> str | None:
    if call.mask is None or isinstance(call.keep, All) or not routing.serves(call):
        return "the mask is no graph of few edges, with a score of the graph kernels"
    wide = named is not None and call.queries.dtype.itemsize == 8
    return f"the tensors are {call.queries.dtype}, the graph kernels take float32" if wide else None


def _why_not_triton(call: AttentionCall, named: Backend | None) -> str | None:
    if isinstance(call.keep, All):
        return "it never forms the dense weights that keep=All() asks for"
    if named is None and (call.keep is None or not call.queries.is_cuda):
        return "torch's fused attention gives the output alone; it serves GPUs"
    return triton.why_not_served(call)


#: The first row that serves a call computes it; a named backend's rows alone, where one is named.
BACKENDS = (
    Row("native", "graphs, along their edges", _why_not_along_edges, _along_edges),
    Row(
        "native",
        "dot products in float32 and bfloat16 on the CPU",
        lambda call, _: native.why_not_served(call),
        native.attend,
    ),
    Row("triton", "dot products and their graph on GPUs", _why_not_triton, triton.attend),
    Row("torch", "every call", lambda call, _: None, torch_ops.attend),
)


def run(operation: str, call: AttentionCall, named: Backend | None) -> Result:
    """Compute a call by the first backend that serves it.

    Raises: InputError: no such backend. BackendError: the backend named does not serve the call.
    """
    if named is not None and (not isinstance(named, str) or named not in get_args(Backend)):
        raise InputError(
            f'{operation}: backend={in_words(named)}; expected "native", "triton", "torch" or None.'
        )
    reason: str | None = None
    for row in BACKENDS:
        if named is not None and named != row.name:
            continue
        reason = row.why_not(call, named)
        if reason is not None:
            continue
        try:
            return row.run(call)
        except BackendError as error:  # of a compiler, which met this kind of call first
            reason = str(error)
            if named is None:
                warnings.warn(
                    f"{operation}: {reason}. Plain torch serves it, much slower.",
                    RuntimeWarning,
                    stacklevel=4,
                )
    raise BackendError(
        f'{operation}: backend="{named}" does not serve this call: {reason}. Use backend="torch", '
        "or None for whichever serves it."
    )
