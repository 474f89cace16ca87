"""The weights that a model itself forms with eager attention, call by call, without headloom.

Three witnesses. Models on the attention interface of Transformers call a function of their own
file, `eager_attention_forward`, which returns the weights: it is wrapped. Others return their
weights from their modules: hooks read them. And every softmax inside of a module whose class says
attention is noted with its module, whatever becomes of it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


@dataclass
class Eager:
    """What a model formed in one run: the weights of each call, by the path of their module."""

    calls: dict[str, list[Tensor]] = field(default_factory=dict)
    #: Results of softmax, (..., queries, keys), by the path of the attention module around them.
    softmaxes: dict[str, list[Tensor]] = field(default_factory=dict)

    def add(self, path: str, weights: Tensor) -> None:
        """Note the weights of one call, (batch, heads, queries, keys)."""
        self.calls.setdefault(path, []).append(weights.detach().float().clone())

    def of(self, path: str, heads: int) -> list[Tensor]:
        """Return the weights of a module: of one that returns none, what its softmax gave."""
        if path in self.calls:
            return self.calls[path]
        return [
            result.unflatten(0, (-1, heads)) if result.ndim == 3 else result
            for result in self.softmaxes.get(path, [])
            if result.ndim == 4 or (result.ndim == 3 and not len(result) % heads)
        ]

    @property
    def count(self) -> int:
        """How many calls there were."""
        return sum(map(len, self.calls.values()))


def rows_are_weights(value: Any) -> bool:
    """Whether a tensor is (batch, heads, queries, keys) with rows that sum to 1, or to less."""
    if not isinstance(value, Tensor) or value.ndim != 4 or not value.is_floating_point():
        return False
    if not value.numel() or bool((value < 0).any()) or not bool(torch.isfinite(value).all()):
        return False
    sums = value.float().sum(-1)
    return bool(((sums - 1).abs() < 1e-3).float().mean() > 0.5) and bool((sums < 1.001).all())


class _Softmaxes(TorchFunctionMode):
    """Notes the attention module in which each softmax is taken."""

    def __init__(self, eager: Eager) -> None:
        super().__init__()
        self.eager = eager
        self.inside: list[str] = []

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), options: Any = None
    ) -> Any:
        result = function(*args, **(options or {}))
        if "softmax" in getattr(function, "__name__", "") and self.inside and args[0].ndim > 2:
            self.eager.softmaxes.setdefault(self.inside[-1], []).append(result.detach().float())
        return result


def flat(output: Any) -> Iterator[Any]:
    """Yield the values in tuples in tuples."""
    for value in output if isinstance(output, (tuple, list)) else ():
        yield value
        yield from flat(value)


def acting(
    function: Any, module: nn.Module, query: Tensor, key: Tensor, value: Tensor,
    *args: Any, **options: Any,
) -> Tensor:  # fmt: skip
    """Return the weights by which values enter the output: what the function makes of the identity.

    Where sinks scale the output (Granite), the weights that it returns are others.
    """
    keys = key.shape[2]
    identity = torch.eye(keys, dtype=value.dtype).expand(*value.shape[:2], keys, keys)
    output: Tensor = function(module, query, key, identity, *args, **options)[0]
    return output.transpose(1, 2)


@contextmanager
def recording(model: nn.Module) -> Iterator[Eager]:
    """Note the weights of every attention call of a model with eager attention."""
    eager = Eager()
    paths = {id(module): path for path, module in model.named_modules()}
    wrapped: list[tuple[Any, Any]] = []
    seen: set[int] = set()

    def wrap(function: Any) -> Any:
        def forward(module: nn.Module, *args: Any, **options: Any) -> Any:
            result = function(module, *args, **options)
            if len(result) > 1 and isinstance(result[1], Tensor):
                sinks = options.get("s_aux") is not None
                weights = acting(function, module, *args, **options) if sinks else result[1]
                eager.add(paths.get(id(module), type(module).__name__), weights)
                seen.add(result[1].data_ptr())
            return result

        return forward

    def void(_: str) -> None:
        """Nothing: what a hook returns takes the place of the output."""

    def hook_of(path: str) -> Any:
        def hook(module: nn.Module, given: Any, output: Any) -> None:
            for value in flat(output):
                if not rows_are_weights(value) and isinstance(value, Tensor) and value.ndim == 4:
                    # Some have (queries, keys, batch, heads).
                    value = value.permute(2, 3, 0, 1)
                if rows_are_weights(value) and value.data_ptr() not in seen:
                    seen.add(value.data_ptr())
                    kept.append(value)
                    eager.add(path, value)

        return hook

    # Tensors whose place in memory is remembered must not make room for others.
    kept: list[Tensor] = []
    softmaxes = _Softmaxes(eager)
    hooks = []
    for path, module in model.named_modules():
        if "attention" in type(module).__name__.lower():
            hooks += [
                module.register_forward_hook(hook_of(path)),
                module.register_forward_pre_hook(lambda *_, at=path: softmaxes.inside.append(at)),
                module.register_forward_hook(lambda *_: void(softmaxes.inside.pop())),
            ]
    for name, file in list(sys.modules.items()):
        if name.startswith("transformers.models.") and "eager_attention_forward" in vars(file):
            wrapped.append((file, file.eager_attention_forward))
            file.eager_attention_forward = wrap(file.eager_attention_forward)
    try:
        with softmaxes:
            yield eager
    finally:
        for file, own in wrapped:
            file.eager_attention_forward = own
        for hook in hooks:
            hook.remove()


def tensors_in(value: Any, path: str = "output") -> Iterator[tuple[str, Tensor]]:
    """Every floating tensor of what a model returned, with its name; weights left out."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield path, value
    elif isinstance(value, dict) or hasattr(value, "items"):
        for name, of in value.items():
            if "attentions" not in str(name) and "past" not in str(name):
                yield from tensors_in(of, f"{path}.{name}")
    elif isinstance(value, (tuple, list)):
        for place, of in enumerate(value):
            yield from tensors_in(of, f"{path}.{place}")
