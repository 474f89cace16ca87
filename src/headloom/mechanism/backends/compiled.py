"""Compiled kernels, the call that they read, and checks of torch's modes.

Modes: compiling, exporting, torch.func transforms, autocast; the same in every version of torch.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from headloom.mechanism.mask import Mask

_Function = TypeVar("_Function", bound=Callable[..., object])


def constant_when_compiled(function: _Function) -> _Function:
    """Mark as torch.compiler.assume_constant_result does, without loading the compiler (slow)."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@constant_when_compiled
def is_exporting() -> bool:
    """Whether a program is being exported, to run without headloom.

    Before torch 2.12 the compiler's own function is also true while compiling; 2.6 has none.
    """
    if hasattr(torch.compiler, "is_exporting"):
        return torch.compiler.is_exporting()
    return bool(torch.compiler._is_compiling_flag)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context without torch.autocast, so that dtypes stay exact."""
    if _has_autocast(device.type) and torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


@constant_when_compiled  # before torch 2.11 the compiler cannot trace that function
def _has_autocast(device_type: str) -> bool:
    return torch.amp.is_autocast_available(device_type)


def keep_dtypes(function: _Function) -> _Function:
    """Decorate a function of a call to run without torch.autocast."""

    @wraps(function)
    def exact(call: Any, *arguments: object) -> object:
        with without_autocast(call.queries.device):
            return function(call, *arguments)

    return cast(_Function, exact)


#: Name of the instruction set of the kernels; empty: the widest of the processor.
INSTRUCTION_SET = os.environ.get("HEADLOOM_INSTRUCTION_SET", "")
#: Number of differentiable fields of a NativeCall: the first ones.
DIFFERENTIABLE = 8
#: Tensor types that are plain memory, and why others are not served.
_PLAIN = (Tensor, Parameter)
_WRAPPED = "the tensors are wrapped, the kernels read memory"


class NativeCall(NamedTuple):
    """Call for the C++ kernels: the attributes are those of native/call.h.

    The fields are also, in this order, the arguments of the operators in compiled programs.
    The last dimension of each tensor is contiguous.

    queries, keys, values    as in AttentionCall
    bias                     (batch, heads, queries, keys), the first three whole or 1
    offset_bias              (heads, queries + keys - 1): by distance, first 1 - queries
    key_table, value_table   (heads or 1, 2 clip + 1, depth)
    sinks                    (heads,)
    key_range                (2, batch): first key and end for each sequence
    row_range                (2, batch or 1, queries): first key and end for each query
    allowed                  bool, as bias
    left, right              if `banded`: query i sees keys i + left to i + right
    last_queries             number of last queries of `received_last`
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    bias: Tensor | None = None
    offset_bias: Tensor | None = None
    key_table: Tensor | None = None
    value_table: Tensor | None = None
    sinks: Tensor | None = None
    key_range: Tensor | None = None
    row_range: Tensor | None = None
    allowed: Tensor | None = None
    scale: float = 1.0
    softcap: float = 0.0
    banded: bool = False
    left: int = 0
    right: int = 0
    clip: int = 0
    relative_offset: int = 0
    last_queries: int = 0
    instruction_set: str = ""

    @property
    def bfloat16(self) -> bool:
        """Whether the tensors are bfloat16, not float32."""
        return self.queries.dtype == torch.bfloat16

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """Differentiable tensors."""
        return self[:DIFFERENTIABLE]  # type: ignore[return-value]

    @property
    def mask(self) -> Mask | None:
        """Mask from band, ranges and `allowed`; None: every key is visible."""
        ranges = (self.key_range, self.row_range, self.allowed)
        return NativeMask(self) if self.banded or any(r is not None for r in ranges) else None


@dataclass(frozen=True, eq=False)
class NativeMask(Mask):
    """Mask of a NativeCall, for computations in torch."""

    native: NativeCall

    def block(self, rows: range, keys: int, device: torch.device) -> Tensor:
        native, key = self.native, torch.arange(keys, device=device)
        mask = torch.ones(1, 1, len(rows), keys, dtype=torch.bool, device=device)
        if native.banded:
            distance = key - torch.arange(rows.start, rows.stop, device=device)[:, None]
            mask = mask & (distance >= native.left) & (distance <= native.right)
        if native.key_range is not None:
            first, end = native.key_range.to(device)[:, :, None, None, None]
            mask = mask & (key >= first) & (key < end)
        if native.row_range is not None:
            first, end = native.row_range.to(device)[:, :, None, rows.start : rows.stop, None]
            mask = mask & (key >= first) & (key < end)
        if native.allowed is not None:
            cells = native.allowed
            mask = mask & (cells if cells.shape[2] == 1 else cells[:, :, rows.start : rows.stop])
        return mask


def _import_kernels() -> tuple[Any, str]:
    try:
        module = import_module("headloom._native")
    except ModuleNotFoundError:  # built without a compiler that supports vector instructions
        return None, "headloom was installed without its native kernels"
    except ImportError as error:
        return None, f"the native kernels cannot be loaded ({error})"
    fields = {*NativeCall._fields, "exact_output", "bfloat16"} - {"instruction_set"}
    calls = {"NeighbourCall", "LinearCall", "RowTermsCall"}
    if not fields <= set(getattr(module, "CALL_FIELDS", ())) or not calls <= set(dir(module)):
        return None, "the native kernels were built from another version; run make setup"
    return module, ""


#: The compiled kernels; or None, and the reason: torch then computes every call.
kernels, NO_KERNELS = _import_kernels()
if kernels is None:
    warnings.warn(
        f"{NO_KERNELS}: torch computes attention, slower. See `headloom doctor`.",
        RuntimeWarning,
        stacklevel=2,
    )


def compiled_instruction_sets() -> list[str]:
    """Return the instruction sets that the kernels were compiled for, the widest first."""
    return [] if kernels is None else list(kernels.compiled_instruction_sets())


def instruction_sets() -> list[str]:
    """Return the instruction sets of the kernels that this processor has, the widest first."""
    return [] if kernels is None else list(kernels.instruction_sets())


def chosen_instruction_set() -> str:
    """Return the instruction set in use: that of HEADLOOM_INSTRUCTION_SET, else the widest."""
    return INSTRUCTION_SET or next(iter(instruction_sets()), "")


@contextmanager
def beside_a_thread() -> Iterator[None]:
    """Let torch operations of this thread use one thread less inside the block.

    For work beside a busy thread: an operation on all processors would wait, for milliseconds, for
    the part on the busy processor. Other threads of the program are not affected.
    """
    before = 0
    if kernels is not None:
        before = kernels.set_own_threads(max(1, torch.get_num_threads() - 1))
    try:
        yield
    finally:
        if before:
            kernels.set_own_threads(before)


@constant_when_compiled
def _in_transform() -> bool:
    """Whether a torch.func transform is active; a constant in a compiled program."""
    inside: bool = torch._C._functorch.peek_interpreter_stack() is not None
    return inside


def serves_compiled() -> bool:
    """Whether a call becomes an operator of a compiled program.

    Not if it is exported, transformed by torch.func or in forward-mode differentiation: operators
    do not support these.
    """
    if not torch.compiler.is_compiling() or is_exporting():
        return False
    return forward_ad._current_level < 0 and not _in_transform()


def why_wrapped(tensors: Iterable[Tensor]) -> str | None:
    """Why kernels cannot read or differentiate tensors in the present mode; None if they can."""
    if torch.compiler.is_compiling():
        return "the call is being compiled"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return _WRAPPED
    for tensor in tensors:
        if type(tensor) not in _PLAIN:
            return _WRAPPED
    if forward_ad._current_level >= 0:
        return "forward-mode derivatives are on, the kernels have backward mode only"
    return None
