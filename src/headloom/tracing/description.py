"""What a trace says of its model."""

from __future__ import annotations

from typing import Any

from torch import nn

from headloom.formats.files import JsonObject
from headloom.tracing.sources.transformers import is_transformers_model, transformers

__all__ = ["describe"]


def describe(model: nn.Module) -> JsonObject:
    """Its name, class, type and size, the version of the library; of a quantised one its bits."""
    kind, config = type(model), getattr(model, "config", None)
    if not is_transformers_model(model):
        return {
            "name": kind.__name__,
            "class": f"{kind.__module__}.{kind.__qualname__}",
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
        }
    return {
        "name": getattr(config, "name_or_path", "") or kind.__name__,
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "type": getattr(config, "model_type", None),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "transformers": transformers().__version__,
        **_quantization(config),
    }


def _quantization(config: Any) -> JsonObject:
    """How the weights were stored in fewer bits, where they were."""
    gguf = getattr(config, "gguf", None)
    if isinstance(gguf, dict):
        return gguf
    asked = getattr(config, "quantization_config", None)
    if asked is None:
        return {}
    # Of a file it is a dictionary, of a model that was loaded with one an object.
    method = asked.get("quant_method") if isinstance(asked, dict) else asked.quant_method
    return {"quantization": str(getattr(method, "value", method))}
