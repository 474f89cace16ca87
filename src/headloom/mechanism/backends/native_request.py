"""From an attention call to what the native kernels are asked: plain tensors, ranges and numbers.

The kernels know ranges of keys (a band around the query, a range for each sequence, a range for
each query), masks cell by cell, biases by distance, biases cell by cell, and relative tables. A
mask that is none of these is formed as bool cells, up to a size.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from headloom.errors import ShapeError
from headloom.mechanism.autocast import without_autocast
from headloom.mechanism.call import AttentionCall
from headloom.mechanism.compiling import constant_when_compiled, is_exporting
from headloom.mechanism.mask import Mask
from headloom.mechanism.parts import changed
from headloom.mechanism.relative import Relative
from headloom.mechanism.scores import Bilinear, Dot, ScaledDot, bilinear, symmetrised

__all__ = [
    "DEEPEST",
    "INSTRUCTION_SET",
    "NO_KERNELS",
    "NativeCall",
    "kernels",
    "prepare",
    "serves_compiled",
    "why_form_not_served",
    "why_not_served",
    "why_wrapped",
]


#: The instruction set whose kernels run, by name; the widest that the processor has if empty.
INSTRUCTION_SET = os.environ.get("HEADLOOM_INSTRUCTION_SET", "")

#: Cells of a mask that may be formed for a call: 256 MiB.
MASK_CELLS = 2**28
#: Tensors that are nothing but memory, and why others are not served.
_PLAIN = (Tensor, Parameter)
_WRAPPED = "the tensors are wrapped, the kernels read memory"
#: Scores that the kernels take. (A tuple made once: an isinstance of a union makes one each time.)
_DOTS = (ScaledDot, Dot, Bilinear)
#: Types that the kernels read.
_TYPES = (torch.float32, torch.bfloat16)
#: The largest depth that the kernels are written for.
DEEPEST = 1024


@dataclass(eq=False, slots=True)
class NativeCall:
    """The differentiable tensors of a call, and the rules that are none; never changed.

    The kernels read the attributes by their names, which are those of native/call.h; the last
    dimension of each tensor is contiguous. (Not frozen: a frozen class takes three times as long
    to make, which calls of a few microseconds feel.)

    queries, keys, values    as in AttentionCall
    bias                     (batch, heads, queries, keys), the first three whole or 1
    offset_bias              (heads, queries + keys - 1): by distance, from 1 - queries on
    key_table, value_table   (heads or 1, 2 clip + 1, depth)
    sinks                    (heads,)
    left, right              where `banded`: query i sees keys i + left to i + right
    key_range                (2, batch): first key and end for each sequence
    row_range                (2, batch or 1, queries): first key and end for each query
    allowed                  bool, as bias
    mask                     what band, ranges and `allowed` say together
    last_queries             of how many the keys' share is asked by itself
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    scale: float
    softcap: float
    bias: Tensor | None = None
    offset_bias: Tensor | None = None
    key_table: Tensor | None = None
    value_table: Tensor | None = None
    sinks: Tensor | None = None
    clip: int = 0
    relative_offset: int = 0
    banded: bool = False
    left: int = 0
    right: int = 0
    key_range: Tensor | None = None
    row_range: Tensor | None = None
    allowed: Tensor | None = None
    mask: Mask | None = None
    last_queries: int = 0
    instruction_set: str = INSTRUCTION_SET

    #: What gradients may flow to, in the order of the autograd functions' arguments.
    names: ClassVar = (
        *("queries", "keys", "values"),
        *("bias", "offset_bias", "key_table", "value_table", "sinks"),
    )
    #: What else the kernels read of it.
    rules: ClassVar = (
        *("key_range", "row_range", "allowed", "scale", "softcap", "banded", "left", "right"),
        *("clip", "relative_offset", "last_queries", "bfloat16"),
    )

    @property
    def bfloat16(self) -> bool:
        """Whether the tensors are bfloat16, not float32."""
        return self.queries.dtype == torch.bfloat16

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """The tensors of these names."""
        return tuple(getattr(self, name) for name in self.names)

    def bare(self) -> NativeCall:
        """The rules alone."""
        return self.with_tensors(
            tuple(None if tensor is None else tensor.new_empty(0) for tensor in self.tensors)
        )

    def with_tensors(self, tensors: tuple[Tensor | None, ...]) -> NativeCall:
        """The same rules for other tensors, in the order of `tensors`."""
        return changed(self, **dict(zip(self.names, tensors, strict=True)))


def _load_kernels() -> tuple[Any, str]:
    """The compiled kernels, or None and why there are none: torch then serves every call."""
    module, reason = _import_kernels()
    if module is None:
        warnings.warn(
            f"{reason}: torch computes attention, slower. `headloom doctor` shows what is here.",
            RuntimeWarning,
            stacklevel=2,
        )
    return module, reason


def _import_kernels() -> tuple[Any, str]:
    try:
        module = import_module("headloom._native")
    except ModuleNotFoundError:  # built without a compiler that knows vectors
        return None, "headloom was installed without its native kernels"
    except ImportError as error:
        return None, f"the native kernels cannot be loaded ({error})"
    fields = {*NativeCall.names, *NativeCall.rules, "exact_output"}
    calls = {"NeighbourCall", "LinearCall", "FeedForwardCall", "RowTermsCall"}
    if not fields <= set(getattr(module, "CALL_FIELDS", ())) or not calls <= set(dir(module)):
        return None, "the native kernels were built from other sources; run make setup"
    return module, ""


#: The compiled kernels, or None, and why there are none.
kernels, NO_KERNELS = _load_kernels()


@constant_when_compiled
def _in_transform() -> bool:
    """Whether a transform of torch.func is at work; the compiler asks it once, for its program."""
    inside: bool = torch._C._functorch.peek_interpreter_stack() is not None
    return inside


def serves_compiled() -> bool:
    """Whether a call goes into a compiled program as an operator.

    It does not where the program is exported, to run where headloom may not be, and where
    torch.func transforms it, or derivatives are taken forward: of operators torch has neither.
    """
    if not torch.compiler.is_compiling() or is_exporting():
        return False
    return forward_ad._current_level < 0 and not _in_transform()


def why_wrapped(tensors: Iterable[Tensor]) -> str | None:
    """Why kernels cannot read, or not differentiate, tensors on their way; None where they can."""
    if torch.compiler.is_compiling():
        return "the call is being compiled"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return _WRAPPED
    for tensor in tensors:
        if type(tensor) not in _PLAIN:
            return _WRAPPED
    if forward_ad._current_level >= 0:
        return "derivatives are taken forward, the kernels take them backward"
    return None


def why_not_served(call: AttentionCall) -> str | None:
    """Why the native kernels do not serve a call, or None where they do."""
    if kernels is None:
        return NO_KERNELS
    queries, keys, values = call.queries, call.keys, call.values
    # Into a compiled program a call goes as an operator, whatever the tensors stand for.
    wrapped = None if serves_compiled() else why_wrapped((queries, keys, values))
    if wrapped is not None:
        return wrapped
    if not queries.is_cpu:
        return f"the tensors are on {queries.device}, the kernels run on the CPU"
    if queries.dtype not in _TYPES:
        return f"the tensors are {queries.dtype}, the kernels take float32 and bfloat16"
    depth, value_depth = keys.shape[3], values.shape[3]
    if not 1 <= depth <= DEEPEST or value_depth > DEEPEST:
        return f"the depths are {depth} and {value_depth}, the kernels take 1 to {DEEPEST}"
    return why_form_not_served(call)


def why_form_not_served(call: AttentionCall) -> str | None:
    """Why no kernel serves this score, these positions or this mask; None where one may."""
    if type(call.score) not in _DOTS:
        return f"the score is {type(call.score).__name__}, the kernels take dot products"
    if call.relative is not None:
        tables = call.relative.tables()
        if type(call.score) is Bilinear and tables is not None:
            return "Shaw's tables meet the queries before the bilinear matrix does"
        if tables is None and not call.relative.only_bias:
            kind = type(call.relative).__name__
            return f"{kind} adds more than a bias by distance, or than Shaw's tables"
    if call.dropout:
        return f"dropout is {call.dropout}, the kernels have none"
    return _why_mask_not_served(call)


def _why_mask_not_served(call: AttentionCall) -> str | None:
    if call.mask is None:
        return None
    (batch, heads, queries, _), keys = call.queries.shape, call.keys.shape[2]
    if batch * heads * queries * keys <= MASK_CELLS:
        return None
    rest = call.mask.bounds(queries, keys).rest
    if rest is None:
        return None
    # Two rows tell the size of all, or that all are one.
    rows = rest.cells(range(min(2, queries)), keys, call.queries.device)
    cells = rows.shape[0] * rows.shape[1] * keys * (1 if rows.shape[2] == 1 else queries)
    if cells <= MASK_CELLS:
        return None
    return (
        f"the mask has {cells:,} cells, the kernels take up to {MASK_CELLS:,} in a mask "
        "that is neither a window nor padding"
    )


def prepare(call: AttentionCall) -> NativeCall:
    """What the kernels are asked for a call that they serve."""
    queries, keys, values = call.queries, call.keys, call.values
    # (Its own class alone is served; and isinstance of an abstract class takes its time.)
    if type(call.score) is Bilinear:
        # In half precision what A makes of a query would be rounded once more.
        queries, keys, values = queries.float(), keys.float(), values.float()
        matrix = call.score.matrix.float()
        with without_autocast(queries.device):
            # Raises where A does not fit.
            bilinear(
                queries.new_empty(0, queries.shape[3]), keys.new_empty(0, keys.shape[3]), matrix
            )
            queries = queries @ (symmetrised(matrix) if call.score.symmetric else matrix)
    plain = _plain_rows(queries), _plain_rows(keys), _plain_rows(values)
    softcap, last = call.softcap or 0.0, call.received or 0
    if call.mask is None and call.relative is None and call.bias is None and call.sinks is None:
        return NativeCall(*plain, call.scale, softcap, last_queries=last)
    rules: dict[str, Any] = {}
    if call.sinks is not None:
        rules["sinks"] = call.sinks.float().contiguous()
    if call.bias is not None:
        rules["bias"] = _as_cells(call.bias.float(), keys.shape[2])
    if call.relative is not None:
        rules.update(_relative_rules(call, call.relative))
    if call.mask is not None:
        rules.update(_mask_rules(call, call.mask))
    return NativeCall(*plain, call.scale, softcap, last_queries=last, **rules)


def _relative_rules(call: AttentionCall, relative: Relative) -> dict[str, Any]:
    tables = relative.tables()
    if tables is not None:
        return {
            "key_table": _as_table(tables.keys),
            "value_table": None if tables.values is None else _as_table(tables.values),
            "clip": (tables.keys.shape[-2] - 1) // 2,
            "relative_offset": relative.offset,
        }
    (_, heads, rows, _), length = call.queries.shape, call.keys.shape[2]
    bias = relative.by_distance(rows, length)
    if bias is None or not rows or not length:
        return {}
    values = bias.values.to(call.queries.device, torch.float32)
    return {"offset_bias": values.expand(heads, -1).contiguous()}


def _plain_rows(tensor: Tensor) -> Tensor:
    """The same numbers with contiguous rows, as they lie in memory."""
    if not (tensor.is_contiguous() or tensor.stride(-1) == 1 or tensor.shape[-1] == 1):
        return tensor.contiguous()
    # A view may be marked as negated; what is compiled cannot ask, and has none.
    if not torch.compiler.is_compiling() and tensor.is_neg():
        return tensor.resolve_neg()
    return tensor


def _as_table(table: Tensor) -> Tensor:
    # The kernels read memory: tables may lie elsewhere than the call.
    return (table if table.ndim == 3 else table[None]).to("cpu", torch.float32).contiguous()


def _as_cells(cells: Tensor, keys: int) -> Tensor:
    """Cells with four dimensions, each whole or of size 1, the keys whole and contiguous."""
    cells = cells.reshape((1,) * (4 - cells.ndim) + tuple(cells.shape))
    cells = cells.expand(*cells.shape[:3], keys)
    return cells if cells.stride(-1) == 1 else cells.contiguous()


def _mask_rules(call: AttentionCall, mask: Mask) -> dict[str, Any]:
    batch, _, rows, _ = call.queries.shape
    length = call.keys.shape[2]
    bounds = mask.bounds(rows, length)
    rules: dict[str, Any] = {"mask": mask, "row_range": bounds.by_query}
    if bounds.band is not None:
        rules.update(banded=True, left=bounds.band[0], right=bounds.band[1])
    if bounds.by_sequence is not None:
        rules["key_range"] = bounds.by_sequence.expand(2, batch).contiguous()
    if bounds.rest is not None:
        cells = bounds.rest.cells(range(rows), length, call.queries.device)
        heads = call.queries.shape[1]
        if cells.shape[0] not in (1, batch) or cells.shape[1] not in (1, heads):
            # Its first row was another: the kernels read what they are told to be there.
            raise ShapeError(
                f"mask: gave cells for a batch of {cells.shape[0]} and {cells.shape[1]} heads; the "
                f"call has a batch of {batch} and {heads} heads."
            )
        rules["allowed"] = _as_cells(cells, length)
    return rules
