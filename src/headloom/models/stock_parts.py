"""What the stock architectures share: names, tables of positions, keys and values written out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from headloom.errors import InputError
from headloom.mechanism.multihead import MultiHeadAttention
from headloom.mechanism.positions import sinusoidal
from headloom.models.configuration import ActivationKind, Architecture
from headloom.models.embeddings import Embedding

__all__ = [
    "ACTIVATIONS",
    "STOCK_POSITIONS",
    "StockModel",
    "bias_of",
    "check_choices",
    "map_of",
    "named",
    "no_counterpart",
    "position_table",
    "queries_keys_values",
    "scaled_tokens",
]

#: Positions whose table is added to the embeddings; of "none" it is zeros.
STOCK_POSITIONS = ("sinusoidal", "learned", "none")
#: headloom's activations by the names that Transformers has.
ACTIVATIONS: Mapping[ActivationKind, str] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu-tanh": "gelu_pytorch_tanh",
    "silu": "silu",
}


@dataclass(frozen=True)
class StockModel:
    """A model in another's words.

    architecture: the class of Transformers.
    settings: of its configuration, but for the special tokens.
    weights: by its names, without the last map.
    output: of the last map, (vocabulary, width).
    """

    architecture: str
    settings: dict[str, object]
    weights: dict[str, Tensor] = field(repr=False)
    output: Tensor = field(repr=False)


def no_counterpart(what: str, remedy: str) -> InputError:
    """The error of a choice that no architecture has."""
    return InputError(f"export: no architecture of Transformers has {what}. {remedy}")


def check_choices(architecture: Architecture, *known: str) -> None:
    """Raise an InputError where a model has a choice that is not one of those that are known.

    known: beginnings of what `Architecture.later_choices` says.
    """
    if architecture.weights == "uniform":
        raise no_counterpart('model.weights "uniform"', 'Train with "learned".')
    for choice in architecture.later_choices():
        if not choice.startswith(known):
            raise no_counterpart(
                f"{choice} beside this model's other choices",
                "Train without it, or export --to onnx.",
            )


def scaled_tokens(embedding: Embedding) -> Tensor:
    """The embedding matrix times the factor that most architectures do not have."""
    return embedding.tokens.weight * embedding.architecture.embedding_factor


def position_table(embedding: Embedding) -> Tensor:
    """What is added at each position, (max_length, width)."""
    architecture = embedding.architecture
    if architecture.positions == "learned":
        return embedding.positions.weight
    if architecture.positions == "sinusoidal":
        return sinusoidal(architecture.max_length, architecture.width)
    return torch.zeros(architecture.max_length, architecture.width)


def named(name: str, module: nn.Module) -> dict[str, Tensor]:
    """The weight of a norm, and its bias if it has one, under another name."""
    return {f"{name}.{key}": value for key, value in module.state_dict().items()}


def map_of(name: str, linear: nn.Linear) -> dict[str, Tensor]:
    """The weight and bias of a linear map under another name; a bias that it lacks is 0."""
    return {f"{name}.weight": linear.weight, f"{name}.bias": bias_of(linear)}


def bias_of(linear: nn.Linear) -> Tensor:
    """The bias of a linear map; 0 where it has none."""
    bias: Tensor | None = linear.bias
    return linear.weight.new_zeros(linear.out_features) if bias is None else bias


def queries_keys_values(attention: MultiHeadAttention) -> list[tuple[Tensor, Tensor]]:
    """W and b of each; keys and values once for each head that shares them."""
    shared = attention.heads // attention.kv_heads
    pairs = []
    for linear, times in ((attention.w_q, 1), (attention.w_k, shared), (attention.w_v, shared)):
        both = []
        for tensor in (linear.weight, bias_of(linear)):
            by_head = tensor.reshape(-1, attention.depth, *tensor.shape[1:])
            both.append(by_head.repeat_interleave(times, 0).flatten(0, 1))
        pairs.append((both[0], both[1]))
    return pairs
