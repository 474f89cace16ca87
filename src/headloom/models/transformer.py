"""Encoder-decoder Transformer of "Attention is all you need"."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn

from headloom.errors import InputError
from headloom.mechanism.masks import Mask, causal, padding
from headloom.models.arguments import by_name
from headloom.models.blocks import (
    BlockCache,
    DecoderBlock,
    closing_norm,
    encoder_blocks,
    output_map,
    padding_mask,
    stacked,
)
from headloom.models.configuration import Architecture, TextChoices
from headloom.models.decoding import DecodingState, WithoutTokens, beam_hypotheses
from headloom.models.dense import linear_maps
from headloom.models.embeddings import Embedding
from headloom.models.predictor import Predictor


class Transformer(Predictor):
    """Encoder-decoder: reads a source, writes a target.

    Args:
        vocabulary: number of tokens, of source and target.
        encoder_layers, decoder_layers: number of blocks of each.
        padding: the id that fills short sequences, hidden by the mask; -1: none.
        width, heads, feed_forward, dropout, choices: see `headloom.LanguageModel`.

    Raises: InputError: values that contradict each other. TypeError: an unknown argument.
    Source: Vaswani et al. 2017.

    >>> model = Transformer(vocabulary=100, width=64, heads=4, encoder_layers=2, decoder_layers=1)
    >>> model(torch.tensor([[5, 6, 7]]), torch.tensor([[1, 8]])).shape
    torch.Size([1, 2, 100])
    """

    purpose = "translates (headloom predict)"
    last = "output_embedding"

    @by_name()
    def __init__(
        self, vocabulary: int, *, encoder_layers: int = 3, decoder_layers: int = 3,
        padding: int = -1, **choices: Unpack[TextChoices],
    ) -> None:  # fmt: skip
        super().__init__()
        architecture = Architecture(
            encoder_layers=encoder_layers, decoder_layers=decoder_layers, **choices
        )
        self.source_embedding = Embedding(vocabulary, architecture)
        if architecture.encoder_layers < 1:
            raise InputError("model.encoder_layers is 0; a translator needs at least one.")
        self.architecture = architecture
        self.padding = padding
        self.target_embedding = Embedding(vocabulary, architecture)
        self.output_embedding = output_map(vocabulary, architecture)
        if architecture.tied:
            self.target_embedding.tokens.weight = self.source_embedding.tokens.weight
            self.output_embedding.weight = self.source_embedding.tokens.weight
        self.encoder = encoder_blocks(architecture)
        self.decoder = nn.ModuleList(
            DecoderBlock(architecture, source=True) for _ in range(architecture.decoder_layers)
        )
        self.encoder_norm = closing_norm(architecture)
        self.decoder_norm = closing_norm(architecture)

    def encode(self, source: Tensor, mask: Mask | None) -> Tensor:
        """Read the source: ids (batch, source positions) to (batch, source positions, width)."""
        return stacked(self.encoder, self.encoder_norm, self.source_embedding(source), mask)

    def outputs(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the outputs of the decoder, (batch, target positions, width)."""
        mask = padding_mask(source, self.padding)
        encoded, vectors = self.encode(source, mask), self.target_embedding(target)
        return stacked(self.decoder, self.decoder_norm, vectors, causal(), encoded, mask)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Score each next target token.

        Args:
            source: ids, (batch, source positions).
            target: ids, (batch, target positions), beginning with the start token.

        Returns: logits, (batch, target positions, vocabulary); row t is the prediction after
            target tokens 0 to t.
        """
        return self.logits(self.outputs(source, target))

    def logits(self, outputs: Tensor) -> Tensor:
        """Score every token, (..., vocabulary), from outputs (..., width)."""
        (result,) = linear_maps(outputs, [self.output_embedding])
        return result

    def generate(
        self, source: Tensor, *, start: int, end: int, max_new_tokens: int = 256, beam: int = 5,
        length_penalty: float = 1.0,
    ) -> list[list[int]]:  # fmt: skip
        """Write a target for each source, by beam search.

        Args:
            source: ids, (batch, source positions).
            start: id at the start of a target.
            end: id at the end of a target.
            max_new_tokens: length at which targets are cut.
            beam: hypotheses kept at every step; 1: greedy.
            length_penalty: 0 ranks hypotheses by their probability only; larger: longer targets.

        Returns: the ids of each target, without start and end.
        """
        with torch.no_grad():
            state = self.start(source)
        ranked = beam_hypotheses(
            WithoutTokens(self, self.padding) if self.padding >= 0 else self, state, len(source),
            start=start, end=end, max_length=max_new_tokens, beam=beam,
            length_penalty=length_penalty,
        )  # fmt: skip
        return [hypotheses[0].tokens for hypotheses in ranked]

    def start(self, source: Tensor) -> DecodingState:
        """Encode the source and return the initial state for `step`."""
        mask = padding_mask(source, self.padding)
        encoded = self.encode(source, mask)
        real = None if mask is None else source != self.padding
        return DecodingState([BlockCache() for _ in self.decoder], encoded, real)

    def step(self, tokens: Tensor, state: DecodingState) -> Tensor:
        """Return logits after new target tokens: see `headloom.models.decoding.Stepper`."""
        source_mask = None if state.source_real is None else padding(state.source_real)
        outputs = self.target_embedding(tokens, offset=state.position)
        mask = causal(offset=state.position)
        for block, cache in zip(self.decoder, state.caches, strict=True):
            outputs = block(outputs, mask, state.source, source_mask, cache)
        state.position += tokens.shape[1]
        return self.logits(self.decoder_norm(outputs))
