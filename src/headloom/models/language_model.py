"""Decoder-only Transformer: predicts each next token from the tokens before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor, nn

from headloom.mechanism.masks import causal
from headloom.models.arguments import by_name
from headloom.models.blocks import BlockCache, DecoderBlock, closing_norm, output_map, stacked
from headloom.models.configuration import Architecture, TextChoices
from headloom.models.decoding import DecodingState, WithoutTokens, sample
from headloom.models.dense import linear_maps
from headloom.models.embeddings import Embedding
from headloom.models.predictor import Predictor


class LanguageModel(Predictor):
    """Decoder-only Transformer: a language model.

    The keyword arguments of all of headloom's modules are the keys of the section [model] of a
    configuration; other libraries' common names (`vocab_size`, `d_model`, `n_heads`) work, too.

    Args:
        vocabulary: number of tokens.
        width: of embeddings and of the vectors between layers (d_model).
        heads: of each attention layer.
        layers: number of blocks.
        feed_forward: inner width of the feed-forward layers (d_ff).
        positions: kind of position encoding. "shaw", "shaw-keys", "alibi", "buckets" and "rotary"
            act inside self-attention.
        dropout: of embeddings and of the output of each layer.
        max_length: length of the longest sequence; only "learned" positions need it.
        padding: the id that fills short sequences, at their end; -1: none.
        kv_heads: of keys and values; None: as many as heads.
        norm: "pre" (normalise the input of a layer) or "post" (its output, as in 2017).
        normalisation: "layer" (mean and deviation, Ba et al. 2016) or "rms" (root mean square,
            without a bias, Zhang and Sennrich 2019).
        norm_epsilon: added to the variance, or to the mean square, before the root.
        feed_forward_kind: "plain", W_2 f(W_1 x), or "gated", W_2 (f(W_g x) * W_1 x).
        activation: f. "gelu-tanh" is the approximation of GPT-2, "silu" is x sigmoid(x), also
            called swish.
        biases: whether the linear layers of the blocks have them.
        depth: of a head's queries and keys; None: width / heads.
        attention_dropout: of the attention weights.
        weights: of attention: "learned", or "uniform": each query has equal weights for all keys
            visible under the mask.
        clip: the largest distance that Shaw's positions distinguish.
        buckets: for "buckets": their number in each layer, see `headloom.Buckets`.
        max_distance: for "buckets": all keys farther away share the last one.
        rotary_base: base of rotary positions, which sets the longest wavelength.
        rotary_scaling: scaling of rotary positions for longer texts: a `headloom.RotaryScaling`, or
            a dict of its arguments.
        scaled_embeddings: whether embeddings are multiplied by sqrt(width).
        output_bias: whether a bias is added to the scores of the tokens.
        tied: whether all embeddings and the output layer share one matrix.

    Raises: InputError: values that contradict each other. TypeError: an unknown argument.
    Source: Radford et al. 2018, on the blocks of Vaswani et al. 2017.

    >>> model = LanguageModel(vocabulary=100, width=64, heads=4, layers=2, positions="rotary")
    >>> model(torch.tensor([[5, 6, 7]])).shape
    torch.Size([1, 3, 100])
    """

    purpose = "continues text (headloom predict)"
    last = "output_embedding"

    @by_name()
    def __init__(
        self, vocabulary: int, *, layers: int = 3, padding: int = -1,
        **choices: Unpack[TextChoices],
    ) -> None:  # fmt: skip
        super().__init__()
        architecture = Architecture(decoder_layers=layers, **choices)
        self.architecture = architecture
        self.padding = padding
        self.embedding = Embedding(vocabulary, architecture)
        self.output_embedding = output_map(vocabulary, architecture)
        if architecture.tied:
            self.output_embedding.weight = self.embedding.tokens.weight
        self.decoder = nn.ModuleList(
            DecoderBlock(architecture, source=False) for _ in range(architecture.decoder_layers)
        )
        self.decoder_norm = closing_norm(architecture)

    def outputs(self, tokens: Tensor) -> Tensor:
        """Return the outputs of the blocks, (batch, positions, width)."""
        return stacked(self.decoder, self.decoder_norm, self.embedding(tokens), causal())

    def forward(self, tokens: Tensor) -> Tensor:
        """Score each next token.

        Args: tokens: ids, (batch, positions).
        Returns: logits, (batch, positions, vocabulary); row t predicts token t + 1.
        """
        return self.logits(self.outputs(tokens))

    def logits(self, outputs: Tensor) -> Tensor:
        """Score every token, (..., vocabulary), from outputs (..., width)."""
        (result,) = linear_maps(outputs, [self.output_embedding])
        return result

    @torch.no_grad()
    def generate(
        self, tokens: Tensor, *, max_new_tokens: int = 200, temperature: float = 0.8,
        top_k: int | None = None, top_p: float | None = None, end: int | None = None,
        never: Sequence[int] = (), seed: int | None = None,
    ) -> Tensor:  # fmt: skip
        """Continue texts, with keys and values cached. Call ``model.eval()`` before.

        Args:
            tokens: ids, (batch, positions), without padding.
            max_new_tokens: maximal number of drawn tokens.
            temperature: divides the logits; 0 takes the likeliest.
            top_k: draw among the k likeliest; None: all.
            top_p: draw from the nucleus with this share of the probability; None: all.
            end: stop when every text has drawn this id.
            never: ids that are not drawn.
            seed: of the random numbers; None: torch's own generator.

        Returns: ids, (batch, positions + new tokens).
        """
        generator = None
        if seed is not None:
            generator = torch.Generator(tokens.device).manual_seed(seed)
        drawn = sample(
            WithoutTokens(self, *never), self.start(), tokens, length=max_new_tokens,
            temperature=temperature, top=top_k, top_p=top_p, end=end, generator=generator,
        )  # fmt: skip
        return torch.cat((tokens, drawn), 1)

    def start(self) -> DecodingState:
        """Return an empty state for `step`."""
        return DecodingState([BlockCache() for _ in self.decoder])

    def step(self, tokens: Tensor, state: DecodingState) -> Tensor:
        """Return logits after new tokens: see `headloom.models.decoding.Stepper`."""
        outputs = self.embedding(tokens, offset=state.position)
        mask = causal(offset=state.position)
        for block, cache in zip(self.decoder, state.caches, strict=True):
            outputs = block(outputs, mask, cache=cache)
        state.position += tokens.shape[1]
        return self.logits(self.decoder_norm(outputs))
