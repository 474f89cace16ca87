"""What a trace says of its model."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor, nn

from headloom.formats.files import JsonObject
from headloom.tracing.sources.transformers import is_transformers_model, transformers

__all__ = ["describe", "weights_digest"]


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
        return {"quantization": gguf.get("quantization"), "gguf": gguf}
    asked = getattr(config, "quantization_config", None)
    if asked is None:
        return {}
    # Of a file it is a dictionary, of a model that was loaded with one an object.
    method = asked.get("quant_method") if isinstance(asked, dict) else asked.quant_method
    return {"quantization": str(getattr(method, "value", method))}


def weights_digest(model: nn.Module) -> str:
    """SHA-256 of all that a model has learned: of the names, types and bytes of its tensors.

    >>> one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    >>> weights_digest(one) == weights_digest(other)
    False
    >>> _ = other.load_state_dict(one.state_dict())
    >>> weights_digest(one) == weights_digest(other)
    True
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if isinstance(tensor, Tensor):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
