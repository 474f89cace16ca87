"""An ONNX graph that is written operation by operation.

A value is known by its name: operations take names and return that of what they give. Weights keep
the names that headloom's model has for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headloom.errors import installing, optional_package
from headloom.version import __version__

__all__ = ["OnnxGraph"]

#: The set of operations: the first with LayerNormalization, so that old runtimes open the file.
OPSET = 17
#: The version of the file format that came with it.
FORMAT = 8
#: Bytes of weights beyond which they lie in a file of their own; a message of protobuf ends at 2
#: GiB.
LARGEST = 2**31 - 2**24

#: A dimension: its size, or its name where it may be any.
Dimension = int | str


class OnnxGraph:
    """A graph that grows by each call of `op`.

    Args:
        name: of the graph.
        module: whose weights it holds.

    Raises: InputError: onnx is not installed.
    """

    def __init__(self, name: str, module: nn.Module) -> None:
        with optional_package("export", installing("onnx")):
            import onnx  # noqa: F401
        self.name = name
        self._names = {id(tensor): name for name, tensor in module.named_parameters()}
        self._weights: dict[str, Tensor] = {}
        self._nodes: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._used: dict[str, int] = {}

    def input(self, name: str, sizes: Sequence[Dimension], dtype: torch.dtype) -> str:
        """A tensor that the caller gives."""
        self._inputs.append(_described(name, sizes, dtype))
        return name

    def output(self, name: str, value: str, sizes: Sequence[Dimension]) -> None:
        """Give a value of float32 to the caller, under a name."""
        self._add("Identity", [value], name)
        self._outputs.append(_described(name, sizes, torch.float32))

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """The result of an operation of ONNX with one output."""
        number = self._used.get(kind, 0)
        self._used[kind] = number + 1
        return self._add(kind, inputs, f"{kind}_{number}", **attributes)

    def _add(self, kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        from onnx import helper

        self._nodes.append(helper.make_node(kind, list(inputs), [output], output, **attributes))
        return output

    def weight(self, tensor: Tensor, name: str | None = None) -> str:
        """A learned tensor, or one made of such, which then needs a name; kept once."""
        name = self.name_of(tensor) if name is None else name
        self._weights[name] = tensor
        return name

    def name_of(self, tensor: Tensor) -> str:
        """What the model calls a learned tensor."""
        return self._names[id(tensor)]

    def transposed(self, tensor: Tensor) -> str:
        """A learned matrix W as W^T."""
        return self.weight(tensor.T, f"{self.name_of(tensor)}.T")

    def numbers(self, *numbers: int) -> str:
        """Whole numbers, as (count,)."""
        return self.weight(torch.tensor(numbers), "whole " + " ".join(map(str, numbers)))

    def number(self, number: int) -> str:
        """One whole number, without dimensions."""
        return self.weight(torch.tensor(number), f"whole {number}, a scalar")

    def real(self, number: float) -> str:
        """One number, without dimensions."""
        return self.weight(torch.tensor(number), f"real {number!r}")

    def length(self, value: str, axis: int) -> str:
        """How long an axis is, without dimensions."""
        size = self.op("Shape", value, start=axis, end=axis + 1)
        return self.op("Squeeze", size)

    def cast(self, value: str, dtype: torch.dtype) -> str:
        """Numbers of another type."""
        return self.op("Cast", value, to=_type(dtype))

    def save(self, path: Path) -> None:
        """Write and check the file; large weights go to one beside it, PATH.data."""
        import onnx
        from onnx import helper, numpy_helper

        tensors = [
            numpy_helper.from_array(tensor.detach().cpu().contiguous().numpy(), name)
            for name, tensor in self._weights.items()
        ]
        graph = helper.make_graph(
            self._nodes, self.name, self._inputs, self._outputs, initializer=tensors
        )
        model = helper.make_model(
            graph,
            producer_name="headloom",
            producer_version=__version__,
            ir_version=FORMAT,
            opset_imports=[helper.make_opsetid("", OPSET)],
        )
        size = sum(tensor.nbytes for tensor in self._weights.values())
        if size > LARGEST:
            onnx.save(model, path, save_as_external_data=True, location=f"{path.name}.data")
        else:
            onnx.save(model, path)
        onnx.checker.check_model(path, full_check=True)


def _type(dtype: torch.dtype) -> int:
    from onnx import TensorProto

    return {
        torch.float32: TensorProto.FLOAT,
        torch.int64: TensorProto.INT64,
        torch.bool: TensorProto.BOOL,
    }[dtype]


def _described(name: str, sizes: Sequence[Dimension], dtype: torch.dtype) -> Any:
    from onnx import helper

    return helper.make_tensor_value_info(name, _type(dtype), list(sizes))
