"""Text classifier: an encoder whose outputs are pooled into a vector that scores the classes.

    y = encoder(x)                       (positions, width)
    p = pool(y)                          (width,)
    logits = W p + b                     (classes,)

Source: Vaswani et al. 2017 for the encoder; Devlin et al. 2019, section 3, for "first"; Collobert
and Weston 2008 for "max"; Iyyer et al. 2015 for "mean" (of embeddings, without an encoder).
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn

from headloom.errors import InputError
from headloom.mechanism.shapes import describe
from headloom.models.arguments import by_name
from headloom.models.blocks import closing_norm, encoder_blocks, padding_mask, stacked
from headloom.models.configuration import Architecture, PoolingKind, TextChoices
from headloom.models.dense import Dropout
from headloom.models.embeddings import Embedding
from headloom.models.predictor import Predictor


def pooled(outputs: Tensor, real: Tensor, pooling: PoolingKind) -> Tensor:
    """Pool outputs (batch, positions, width) into one vector for each sequence, (batch, width).

        mean:   sum over real positions / their number
        first:  output at the first position
        max:    maximum of each column over real positions

    real: bool, (batch, positions), False at padding; at least one True per sequence.

    >>> outputs = torch.tensor([[[1.0], [4.0], [9.0]]])
    >>> pooled(outputs, torch.tensor([[True, True, False]]), "mean")     # (1 + 4) / 2
    tensor([[2.5000]])
    """
    if pooling == "mean":
        kept = outputs.masked_fill(~real[..., None], 0.0)
        return kept.sum(1) / real.sum(1, keepdim=True)
    if pooling == "max":
        return outputs.masked_fill(~real[..., None], -torch.inf).amax(1)
    return outputs[:, 0]


def pooled_parts(outputs: Tensor, real: Tensor, pooling: PoolingKind) -> Tensor:
    """Return the contribution of each position to `pooled`, their sum: (batch, positions, width).

    With "max", positions that tie for the maximum of a column share it equally.

    >>> outputs = torch.tensor([[[1.0, 6.0], [4.0, 2.0]]])
    >>> pooled_parts(outputs, torch.tensor([[True, True]]), "max")[0].tolist()
    [[0.0, 6.0], [4.0, 0.0]]
    """
    if pooling == "mean":
        return outputs.masked_fill(~real[..., None], 0.0) / real.sum(1)[:, None, None]
    if pooling == "first":
        return outputs * (torch.arange(outputs.shape[1], device=outputs.device) == 0)[:, None]
    masked = outputs.masked_fill(~real[..., None], -torch.inf)
    chosen = masked == masked.amax(1, keepdim=True)
    return outputs * chosen / chosen.sum(1, keepdim=True)


class Classifier(Predictor):
    """Encoder whose pooled output scores the classes of a text.

    Args:
        vocabulary: number of tokens.
        classes: number of classes.
        layers: number of blocks.
        pooling: how the outputs become one vector: their "mean", the "first", the "max" of each
            column. With the mean, gradients reach all words from the first step.
        padding: the id that fills short sequences, hidden by the mask and not pooled; -1: none.
        width, heads, feed_forward, dropout, choices: see `headloom.LanguageModel`.

    Raises: InputError: values that contradict each other. TypeError: an unknown argument.

    >>> model = Classifier(vocabulary=200, classes=2, width=64, heads=4, layers=2)
    >>> model(torch.tensor([[5, 6, 7]])).shape
    torch.Size([1, 2])
    """

    purpose = "classifies texts (headloom predict)"
    last = "output"
    classifies_texts = True

    @by_name(width=128, feed_forward=256, dropout=0.3)
    def __init__(
        self, vocabulary: int, classes: int, *, layers: int = 2, pooling: PoolingKind = "mean",
        padding: int = -1, **choices: Unpack[TextChoices],
    ) -> None:  # fmt: skip
        super().__init__()
        architecture = Architecture(encoder_layers=layers, **choices)
        self.embedding = Embedding(vocabulary, architecture)
        if architecture.encoder_layers < 1:
            raise InputError("model.layers is 0; a classifier needs at least one.")
        self.architecture, self.padding = architecture, padding
        self.pooling = pooling
        self.encoder = encoder_blocks(architecture)
        self.encoder_norm = closing_norm(architecture)
        self.dropout = Dropout(architecture.dropout)
        self.output = nn.Linear(architecture.width, classes)
        nn.init.xavier_uniform_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def encode(self, tokens: Tensor) -> Tensor:
        """Encode each token: ids (batch, positions) to (batch, positions, width).

        Raises: InputError: an id outside the vocabulary, or a text of only padding.
        """
        if not bool((tokens != self.padding).any(1).all()):
            raise InputError(
                f"the tokens are {describe(tokens)}, and one text has only padding. "
                "Leave it out, or give it one token."
            )
        mask = padding_mask(tokens, self.padding)
        return stacked(self.encoder, self.encoder_norm, self.embedding(tokens), mask)

    def outputs(self, tokens: Tensor) -> Tensor:
        """Return one vector for each text: ids (batch, positions) to (batch, width)."""
        result: Tensor = self.dropout(
            pooled(self.encode(tokens), tokens != self.padding, self.pooling)
        )
        return result

    @torch.no_grad()
    def contributions(self, tokens: Tensor) -> Tensor:
        """Return the contribution of each position to each class score, in evaluation mode.

            logits = bias + sum over positions of contributions

        Args: tokens: ids, (batch, positions).
        Returns: (batch, positions, classes); 0 at padding.
        """
        parts = pooled_parts(self.encode(tokens), tokens != self.padding, self.pooling)
        return parts @ self.output.weight.T

    def forward(self, tokens: Tensor) -> Tensor:
        """Score the classes.

        Args: tokens: ids, (batch, positions).
        Returns: logits, (batch, classes).
        """
        return self.logits(self.outputs(tokens))
