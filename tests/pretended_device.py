"""A GPU where there is none: tensors on the CPU that say they are on another device, as strictly.

While a `PretendedDevice` is entered, `.to("cuda")` marks a tensor, and what is computed from marked
tensors is marked. Such tensors name the device as theirs; they do not meet unmarked ones in one
operation, have no memory that a kernel may read, and are no arrays: what would fail on a GPU fails
here, with the same kind of error. Apple's "mps" has no float64 either. Numbers are the CPU's.

What it does not see: operations inside torch's own functions, and the engine's backward passes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from headloom.mechanism import function

#: Attributes that name the device.
DEVICE, IS_CUDA, IS_CPU = (
    attribute.__get__  # type: ignore[attr-defined]
    for attribute in (Tensor.device, Tensor.is_cuda, Tensor.is_cpu)
)
#: What only the CPU's tensors have.
OF_MEMORY = (Tensor.numpy, Tensor.__array__, Tensor.data_ptr, Tensor.__dlpack__)
#: Functions that may be given tensors of two devices: indices of the CPU name places elsewhere.
BETWEEN = (
    *(
        "copy_",
        "__getitem__",
        "__setitem__",
        "__get__",
        "__set__",
        "grad",
        "backward",
        "checkpoint",
    ),
    *("register_hook", "is_same_size", "handle", "_has_compatible_shallow_copy_type"),
)


def marked(tensor: Tensor) -> bool:
    """Whether a tensor says that it is on the pretended device."""
    return getattr(tensor, "_pretended", False)


class PretendedDevice(TorchFunctionMode):
    """Inside it the device is there. kind: "cuda" or "mps"."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.device = torch.device(kind, 0)

    def __enter__(self) -> PretendedDevice:
        # headloom's own functions go through modes as torch's do; here each operation in them is
        # seen.
        self._open = patch.object(function, "has_torch_function", lambda tensors: False)
        self._open.start()
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._open.stop()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        here = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        there = [tensor for tensor in here if marked(tensor)]
        if func in (DEVICE, IS_CUDA, IS_CPU) and there:
            kind = self.device.type
            return {DEVICE: self.device, IS_CUDA: kind == "cuda", IS_CPU: False}[func]
        if func == Tensor.data.__set__:  # type: ignore[attr-defined]
            func(*args)
            args[0]._pretended = marked(args[1])
            return None
        if func in OF_MEMORY and there:
            raise TypeError(f"can't convert {self.device} device type tensor to numpy")
        if func in (Tensor.to, Tensor.cpu):
            return self._moved(func, *args, **kwargs)
        if there and not (func.__name__ in BETWEEN or kwargs.get("device") is not None):
            self._check_together(func.__name__, here)
        if func.__name__ == "__getitem__" and there and not marked(args[0]):
            raise RuntimeError("indices should be on the CPU, as the tensor is")
        if kwargs.get("device") is not None:
            on = self._is_it(kwargs["device"])
            kwargs = {**kwargs, "device": "cpu"} if on else kwargs
        else:
            on = bool(there)
        return self._mark(func(*args, **kwargs)) if on else func(*args, **kwargs)

    def _is_it(self, device: Any) -> bool:
        return torch.device(device).type == self.device.type

    def _check_together(self, name: str, tensors: list[Tensor]) -> None:
        if any(tensor.ndim and not marked(tensor) for tensor in tensors):
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found {self.device} and cpu, "
                f"in {name}"
            )

    def _mark(self, result: Any) -> Any:
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                if self.device.type == "mps" and tensor.dtype == torch.float64:
                    raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
                tensor._pretended = True  # type: ignore[attr-defined]
        return result

    def _moved(self, func: Any, tensor: Tensor, *rest: Any, **options: Any) -> Tensor:
        goal: Any = "cpu" if func is Tensor.cpu else options.get("device")
        dtype = options.get("dtype")
        for part in rest:
            if isinstance(part, Tensor):
                goal, dtype = self.device if marked(part) else "cpu", part.dtype
            elif isinstance(part, torch.dtype):
                dtype = part
            elif isinstance(part, str | torch.device):
                goal = part
        on = marked(tensor) if goal is None else self._is_it(goal)
        moved = tensor if dtype is None else tensor.to(dtype=dtype)
        if moved is tensor and on != marked(tensor):
            moved = tensor.clone()
        if on:
            return self._mark(moved)
        if moved is not tensor:
            moved._pretended = False  # type: ignore[attr-defined]
        return moved

    def place(self, what: Any) -> Any:
        """A tensor or a module, or those of a list or a dictionary, on the device."""
        if isinstance(what, Tensor | nn.Module):
            return what.to(self.device)
        if isinstance(what, dict):
            return {name: self.place(one) for name, one in what.items()}
        return [self.place(one) for one in what] if isinstance(what, list | tuple) else what
