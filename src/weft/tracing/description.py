"""What a trace says of a model of Transformers."""

from __future__ import annotations

from typing import Any

from torch import nn

from weft.tracing.interface import transformers

__all__ = ["describe"]


def describe(model: nn.Module) -> dict[str, Any]:
    """Its name, class, type and size, and the version of the library."""
    kind, config = type(model), model.config
    return {
        "name": getattr(config, "name_or_path", "") or kind.__name__,
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "type": getattr(config, "model_type", None),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "transformers": transformers().__version__,
    }
