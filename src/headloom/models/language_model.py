"""The decoder-only Transformer: predicts each next token from those before it."""

from __future__ import annotations

from torch import Tensor, nn

from headloom.mechanism.masks import causal
from headloom.models.blocks import BlockCache, DecoderBlock, closing_norm
from headloom.models.configuration import Architecture
from headloom.models.decoding import DecodingState
from headloom.models.dense import linear_maps
from headloom.models.embeddings import Embedding
from headloom.models.predictor import Predictor


class LanguageModel(Predictor):
    """A language model.

    Args:
        vocabulary: number of tokens.
        architecture: sizes and choices; its encoder layers are not used.
        padding: the id that fills short sequences, at their end.

    Source: Radford et al. 2018, on the blocks of Vaswani et al. 2017.
    """

    purpose = "continues text (headloom predict)"

    def __init__(self, vocabulary: int, architecture: Architecture, padding: int = 0) -> None:
        super().__init__()
        self.architecture = architecture
        self.padding = padding
        self.embedding = Embedding(vocabulary, architecture)
        self.output_embedding = nn.Linear(
            architecture.width, vocabulary, bias=architecture.output_bias
        )
        nn.init.xavier_uniform_(self.output_embedding.weight)
        if architecture.tied:
            self.output_embedding.weight = self.embedding.tokens.weight
        self.decoder = nn.ModuleList(
            DecoderBlock(architecture, source=False) for _ in range(architecture.decoder_layers)
        )
        self.decoder_norm = closing_norm(architecture)

    def outputs(self, tokens: Tensor) -> Tensor:
        """What the blocks give before the vocabulary, (batch, positions, width)."""
        outputs = self.embedding(tokens)
        for block in self.decoder:
            outputs = block(outputs, causal())
        result: Tensor = self.decoder_norm(outputs)
        return result

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of each next token: ids (batch, positions) to (batch, positions, vocabulary)."""
        return self.logits(self.outputs(tokens))

    def logits(self, outputs: Tensor) -> Tensor:
        """Scores of every token, (..., vocabulary), from outputs (..., width)."""
        (result,) = linear_maps(outputs, [self.output_embedding])
        return result

    @property
    def last_map(self) -> nn.Linear:
        """See Predictor.last_map."""
        return self.output_embedding

    def start(self) -> DecodingState:
        """An empty state for `step`."""
        return DecodingState([BlockCache() for _ in self.decoder])

    def step(self, tokens: Tensor, state: DecodingState) -> Tensor:
        """Logits after new tokens, given those that the state has seen.

        Args:
            tokens: ids, (batch, new positions).
            state: advanced in place.

        Returns: (batch, new positions, vocabulary).
        """
        outputs = self.embedding(tokens, offset=state.position)
        mask = causal(offset=state.position)
        for block, cache in zip(self.decoder, state.caches, strict=True):
            outputs = block(outputs, mask, cache=cache)
        state.position += tokens.shape[1]
        return self.logits(self.decoder_norm(outputs))
