"""Encoder of BERT: bidirectional, predicts masked tokens or a class.

    x_t = norm(E[token_t] + position_t + segment_t)
    y = blocks(x)
    token logits = norm(activation(W_h y + b_h)) E^T + b
    pooled = tanh(W_p y_0 + b_p),  class logits = W_c pooled + b_c

Source: Devlin et al. 2019, section 3.
"""

from __future__ import annotations

from typing import Literal, Unpack

from torch import Tensor, nn

from headloom.errors import InputError
from headloom.models.arguments import by_name
from headloom.models.blocks import (
    activated,
    closing_norm,
    encoder_blocks,
    norm_of,
    padding_mask,
    stacked,
)
from headloom.models.configuration import Architecture, TextChoices
from headloom.models.dense import Dropout
from headloom.models.embeddings import Embedding
from headloom.models.predictor import Predictor

#: Prediction: nothing, each token, or the class of the text.
EncoderHead = Literal["none", "tokens", "classes"]


class Encoder(Predictor):
    """Encoder of texts, as BERT.

    Args:
        vocabulary: number of tokens.
        layers: number of blocks.
        segments: number of segments; a pair of texts has two.
        head: prediction: "none", each of the "tokens", or "classes" of the text.
        classes: number of classes, for the head "classes".
        pooler: whether the first output is mapped to a vector of the text; classes need it.
        padding: the id that fills short sequences, hidden by the mask; -1: none.
        width, heads, feed_forward, dropout, choices: see `headloom.LanguageModel`.

    Raises: InputError: values that contradict each other. TypeError: an unknown argument.

    >>> import torch
    >>> model = Encoder(vocabulary=100, width=64, heads=4, layers=2)
    >>> model(torch.tensor([[5, 6, 7]])).shape
    torch.Size([1, 3, 64])
    """

    purpose = "encodes texts"

    @by_name()
    def __init__(
        self, vocabulary: int, *, layers: int = 3, segments: int = 2, head: EncoderHead = "none",
        classes: int = 0, pooler: bool = False, padding: int = -1, **choices: Unpack[TextChoices],
    ) -> None:  # fmt: skip
        super().__init__()
        architecture = Architecture(encoder_layers=layers, **choices)
        width = architecture.width
        self.embedding = Embedding(vocabulary, architecture, segments=segments, normed=True)
        self.architecture = architecture
        self.padding = padding
        self.head, self.classifies_texts = head, head == "classes"
        self.encoder = encoder_blocks(architecture)
        self.encoder_norm = closing_norm(architecture)
        self.pooler = nn.Linear(width, width) if pooler or head == "classes" else None
        self.dropout = Dropout(architecture.dropout)
        if head == "tokens":
            self.transform = nn.Linear(width, width)
            self.transform_norm = norm_of(architecture)
            self.output = nn.Linear(width, vocabulary)
            if architecture.tied:
                self.output.weight = self.embedding.tokens.weight
        elif head == "classes":
            self.output = nn.Linear(width, classes)

    def outputs(self, tokens: Tensor, segments: Tensor | None = None) -> Tensor:
        """Return the last layer's vector of each token, (batch, positions, width)."""
        vectors, mask = (
            self.embedding(tokens, segments=segments),
            padding_mask(tokens, self.padding),
        )
        return stacked(self.encoder, self.encoder_norm, vectors, mask)

    def pooled(self, outputs: Tensor) -> Tensor:
        """Return one vector for each text, (batch, width). Raises: InputError: it has no pooler."""
        if self.pooler is None:
            raise InputError("this encoder has no pooler. Take the mean of its outputs instead.")
        vector: Tensor = self.pooler(outputs[:, 0]).tanh()
        return vector

    def logits(self, outputs: Tensor) -> Tensor:
        """Score tokens, (..., positions, vocabulary), or classes, (..., classes)."""
        if self.head == "tokens":
            hidden = activated(self.transform(outputs), self.architecture.activation)
            scores: Tensor = self.output(self.transform_norm(hidden))
        else:
            scores = self.output(self.dropout(self.pooled(outputs)))
        return scores

    def forward(self, tokens: Tensor, segments: Tensor | None = None) -> Tensor:
        """Encode, or score.

        Args:
            tokens: ids, (batch, positions).
            segments: ids, (batch, positions); None: all 0.

        Returns: outputs, (batch, positions, width); with a head, logits, (batch, positions,
            vocabulary) or (batch, classes).
        """
        outputs = self.outputs(tokens, segments)
        return outputs if self.head == "none" else self.logits(outputs)
