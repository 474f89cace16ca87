"""Linear maps whose matrices are packed once, and multiplied by many times: decoding, step by step.

See native/prepared_kernels.cpp. A row's result depends neither on the number of threads nor on the
rows beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headloom.mechanism.backends.native_linear import LEAST_ROWS, multiplies_bfloat16
from headloom.mechanism.backends.native_request import INSTRUCTION_SET, kernels, why_wrapped

__all__ = ["PREPARES", "PreparedMaps"]

#: Whether there are such kernels; those that were built from earlier sources have none.
PREPARES = hasattr(kernels, "PreparedCall")


@dataclass(frozen=True, eq=False)
class _Matrix:
    """The matrices of some maps of one input, below each other, packed.

    parameters: what it was packed from, held so that nothing else gets their place in memory;
    versions: of each, at that time.
    memory: the packed matrix; None: a number is not finite, and rounding would lose it.
    bias: of all columns; None: there is none.
    columns: of each map.
    """

    parameters: tuple[Tensor, ...]
    versions: tuple[int, ...]
    memory: Tensor | None
    bias: Tensor | None
    columns: list[int]


class PreparedMaps:
    """Packed matrices by the maps that they are of; each is packed when it is first needed, and
    again when one of its parameters has changed.
    """

    def __init__(self) -> None:
        self._matrices: dict[tuple[bool, tuple[int, ...]], _Matrix] = {}

    def maps(
        self, inputs: Tensor, maps: Sequence[nn.Linear], *, relu: bool, rounded: bool
    ) -> list[Tensor] | None:
        """The outputs of some maps of one input; None where the kernels do not serve them.

        Args:
            inputs: (..., width).
            maps: linear layers and nothing else.
            relu: whether max(0, x) follows.
            rounded: whether factors are rounded to bfloat16, where the processor multiplies such.
        """
        parameters = tuple(
            parameter
            for linear in maps
            for parameter in (linear.weight, linear.bias)
            if parameter is not None
        )
        if not _serves(inputs, parameters, maps):
            return None
        rounded = rounded and multiplies_bfloat16()
        key = rounded, tuple(map(id, maps))
        found = self._matrices.get(key)
        if found is None or not _is_of(found, parameters):
            found = self._matrices[key] = _prepared(maps, parameters, rounded)
        if found.memory is None:
            return None
        rows = inputs.reshape(-1, inputs.shape[-1])
        rows = rows if rows.stride(-1) == 1 else rows.contiguous()
        output = rows.new_empty(len(rows), sum(found.columns))
        call = _call(rows.shape[1], output.shape[1], rounded, found.memory)
        call.rows, call.input, call.input_row = len(rows), rows.data_ptr(), rows.stride(0)
        call.bias = 0 if found.bias is None else found.bias.data_ptr()
        call.relu, call.output = relu, output.data_ptr()
        if not kernels.prepared_forward(call, torch.get_num_threads(), INSTRUCTION_SET):
            return None
        whole = output.view(*inputs.shape[:-1], -1)
        return [whole] if len(maps) == 1 else list(torch.split(whole, found.columns, -1))


def _serves(inputs: Tensor, parameters: tuple[Tensor, ...], maps: Sequence[nn.Linear]) -> bool:
    width = inputs.shape[-1]
    return (
        PREPARES
        and width > 0
        and inputs.numel() >= LEAST_ROWS * width
        and all(
            tensor.dtype == torch.float32 and tensor.device.type == "cpu"
            for tensor in (inputs, *parameters)
        )
        and not torch.is_autocast_enabled("cpu")
        and why_wrapped((inputs, *parameters)) is None
        and all(linear.weight.shape[1] == width for linear in maps)
        and all(
            linear.bias is None or linear.bias.shape == linear.weight.shape[:1] for linear in maps
        )
        # Without a version nobody could say whether they have changed.
        and not any(parameter.is_inference() for parameter in parameters)
    )


def _is_of(matrix: _Matrix, parameters: tuple[Tensor, ...]) -> bool:
    """Whether a matrix was packed from these parameters, as they are now."""
    return len(parameters) == len(matrix.parameters) and all(
        old is new and version == new._version
        for old, new, version in zip(matrix.parameters, parameters, matrix.versions, strict=True)
    )


def _prepared(maps: Sequence[nn.Linear], parameters: tuple[Tensor, ...], rounded: bool) -> _Matrix:
    weights: list[Tensor] = [linear.weight for linear in maps]
    weight = torch.cat(weights)
    bias = None
    if any(linear.bias is not None for linear in maps):
        parts: list[Tensor] = [
            weight.new_zeros(len(linear.weight)) if linear.bias is None else linear.bias
            for linear in maps
        ]
        bias = torch.cat(parts)
    call = _call(weight.shape[1], len(weight), rounded, None)
    size = kernels.prepared_bytes(call, INSTRUCTION_SET)
    memory: Tensor | None = torch.empty(size, dtype=torch.uint8)
    call = _call(weight.shape[1], len(weight), rounded, memory)
    call.weight = weight.data_ptr()
    if not kernels.prepare(call, torch.get_num_threads(), INSTRUCTION_SET):
        memory = None
    versions = tuple(parameter._version for parameter in parameters)
    columns = [len(linear.weight) for linear in maps]
    return _Matrix(parameters, versions, memory, bias, columns)


def _call(terms: int, columns: int, rounded: bool, memory: Tensor | None) -> Any:
    call = kernels.PreparedCall()
    call.terms, call.columns, call.pairs = terms, columns, rounded
    call.matrix = 0 if memory is None else memory.data_ptr()
    return call
