"""Embeddings of tokens and absolute positions."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from headloom.errors import InputError
from headloom.mechanism.attention_layer import WithConstants
from headloom.mechanism.positions import sinusoidal
from headloom.models.blocks import norm_of
from headloom.models.configuration import Architecture
from headloom.models.dense import Dropout


def _rows(table: nn.Embedding, name: str, ids: Tensor) -> Tensor:
    """Look up the vectors of ids. Raises: InputError: an id outside the table."""
    try:
        vectors: Tensor = table(ids)
    except IndexError:
        raise InputError(
            f"{name} are ids from {int(ids.min())} to {int(ids.max())}; the model has vectors for "
            f"0 to {table.num_embeddings - 1}."
        ) from None
    return vectors


class Embedding(WithConstants):
    """Token embeddings times sqrt(width), plus absolute positions.

        x_t = E[token_t] sqrt(width) + position_t

    The factor applies with scaled embeddings only; with segments, the vector of the token's segment
    is added; if `normed`, the sum is normalised.

    Source: Vaswani et al. 2017, sections 3.4 and 3.5; Devlin et al. 2019, figure 2 (segments).
    """

    sinusoids: Tensor

    def __init__(
        self, vocabulary: int, architecture: Architecture, *, segments: int = 0,
        normed: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.architecture = architecture
        width = architecture.width
        self.tokens = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.tokens.weight, std=1 / math.sqrt(width))
        self.dropout = Dropout(architecture.dropout)
        if architecture.positions == "learned":
            self.positions = nn.Embedding(architecture.max_length, width)
            nn.init.normal_(self.positions.weight, std=1 / math.sqrt(width))
        self.hold_constants()

        self.segments: nn.Embedding | None = None
        if segments:
            self.segments = nn.Embedding(segments, width)
            nn.init.normal_(self.segments.weight, std=1 / math.sqrt(width))
        self.norm = norm_of(architecture) if normed else nn.Identity()

    def constants(self) -> dict[str, Tensor]:
        if self.architecture.positions != "sinusoidal":
            return {}
        return {"sinusoids": sinusoidal(128, self.architecture.width)}

    def forward(self, ids: Tensor, offset: int = 0, segments: Tensor | None = None) -> Tensor:
        """Embed ids (batch, positions), the first at position `offset`: (batch, positions, width).

        segments: segment ids; None: all 0.
        """
        vectors = _rows(self.tokens, "the tokens", ids)
        if self.architecture.scaled_embeddings:
            vectors = vectors * self.architecture.embedding_factor
        end = offset + ids.shape[1]
        if self.architecture.positions == "learned":
            if end > self.architecture.max_length:
                raise InputError(
                    f"the text has {end} tokens, the model's positions end at "
                    f"{self.architecture.max_length}. Shorten it, or train with a larger "
                    "model.max_length."
                )
            vectors = vectors + self.positions.weight[offset:end]
        if self.architecture.positions == "sinusoidal":
            if end > len(self.sinusoids):
                table = sinusoidal(2 * end, self.architecture.width)
                self.sinusoids = table.to(self.sinusoids)
            vectors = vectors + self.sinusoids[offset:end]
        if self.segments is not None:
            first = self.segments.weight[0]
            if segments is None:
                vectors = vectors + first
            else:
                vectors = vectors + _rows(self.segments, "the segments", segments)
        result: Tensor = self.dropout(self.norm(vectors))
        return result


def position_table(embedding: Embedding) -> Tensor:
    """Return the vectors added at each position, (max_length, width); zeros without positions."""
    architecture = embedding.architecture
    if architecture.positions == "learned":
        return embedding.positions.weight
    if architecture.positions == "sinusoidal":
        return sinusoidal(architecture.max_length, architecture.width)
    return torch.zeros(architecture.max_length, architecture.width)
