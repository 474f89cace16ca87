"""The modules of a model by their paths, as these are where nothing is compiled.

`torch.compile` puts what it compiles into a module of its own, whose part `_orig_mod` is the module
as it is written. A model of which some layers were compiled so has the paths of one of which none
were.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

__all__ = ["is_compiled", "named_modules"]


def is_compiled(module: object) -> bool:
    """Whether something is what torch.compile returns; its class would load the compiler."""
    return type(module).__name__ == "OptimizedModule" and hasattr(module, "_orig_mod")


def named_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module of a model, once, with its path, as `nn.Module.named_modules` gives them.

    >>> model = nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.ReLU()))
    >>> [path for path, _ in named_modules(model)]
    ['', '0', '1', '1.0']
    """
    seen: set[nn.Module] = set()
    # Those to come, the next one last.
    waiting: list[tuple[str, nn.Module]] = [("", model)]
    while waiting:
        path, module = waiting.pop()
        while is_compiled(module):
            module = module._orig_mod  # type: ignore[assignment]
        if module in seen:
            continue
        seen.add(module)
        yield path, module
        inner = [
            (f"{path}.{name}" if path else name, part)
            for name, part in module._modules.items()
            if part is not None
        ]
        waiting += reversed(inner)
