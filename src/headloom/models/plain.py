"""headloom's models as plain operations of torch, for compilers that know no other.

    scores = Q K^T scale + relative positions, minus infinity where the mask hides a key
    output = softmax(scores) V,  0 for a query that may look at no key

    translator       Encoder: input_ids, attention_mask to keys and values of the source, by layer;
                     Decoder: input_ids, encoder_attention_mask, the keys and values of the tokens
                     before and of the source, to logits and those of all tokens
    language model   Writer: input_ids, attention_mask and past keys and values, likewise
    classifiers      TextClassifier: input_ids, attention_mask to logits; Images: pixel_values

The past has length 0 at first, so that one graph reads a prefix and writes the next token.

Sources: those of `headloom.mechanism.multihead` and `headloom.mechanism.positions`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from headloom.mechanism.multihead import MultiHeadAttention
from headloom.mechanism.positions import Buckets
from headloom.models.blocks import DecoderBlock, EncoderBlock, FeedForward
from headloom.models.classifier import Classifier, pooled
from headloom.models.convolutional import ConvolutionalClassifier
from headloom.models.embeddings import Embedding, position_table
from headloom.models.image_attention import ImageSelfAttention
from headloom.models.language_model import LanguageModel
from headloom.models.transformer import Transformer
from headloom.models.vision_transformer import VisionTransformer

__all__ = ["Decoder", "Encoder", "Images", "TextClassifier", "Writer"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu-tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
}


@dataclass(frozen=True)
class _Places:
    """Where queries and keys stand, and who may look at whom.

    mask: bool, broadcastable to (batch, heads, queries, keys); None: all may.
    distances: key - query, (queries, keys).
    positions: of the new tokens, (batch or 1, positions).
    """

    mask: Tensor | None = None
    distances: Tensor = field(default_factory=lambda: torch.empty(0))
    positions: Tensor = field(default_factory=lambda: torch.empty(0))


def _places(ids: Tensor, past: int, real: Tensor | None, *, causal: bool) -> _Places:
    """The places of new tokens, which follow those of a cache.

    real: 1 at real tokens, 0 at padding, (batch, past + positions): padding may stand at either
    end, the first real token has position 0; None: all are real.
    """
    queries = torch.arange(past, past + ids.shape[1])
    distances = torch.arange(past + ids.shape[1])[None] - queries[:, None]
    mask = None if real is None else real.bool()[:, None, None]
    if causal:
        mask = distances <= 0 if mask is None else mask & (distances <= 0)
    positions = queries[None]
    if real is not None:
        positions = (real.cumsum(1) - 1).clamp(min=0)[:, past:]
    return _Places(mask, distances, positions)


def _weights(scores: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return scores.softmax(-1)
    # A row that may look at no key is not a number at first.
    return scores.masked_fill(~mask, -torch.inf).softmax(-1).masked_fill(~mask, 0.0)


class _Plain(nn.Module):
    """A model, with the tables of its positions, which no graph computes anew.

    longest: how many positions there are tables for.
    """

    def __init__(self, model: nn.Module, longest: int = 0) -> None:
        super().__init__()
        self.model = model
        self._tables: dict[int, str] = {}
        for number, module in enumerate(model.modules()):
            if isinstance(module, MultiHeadAttention) and module.relative == "rotary":
                # What becomes of (1, 0) is (cos, sin).
                half = torch.arange(module.depth) < module.depth // 2
                self._hold(number, module, module.turned(torch.ones(longest, module.depth) * half))
            elif isinstance(module, MultiHeadAttention) and module.relative == "buckets":
                relative, far = module.relative_positions(), module.max_distance
                assert isinstance(relative, Buckets)
                # All keys farther away than that share one number.
                self._hold(number, module, relative.bias_of(torch.arange(-far, far + 1)))
            elif isinstance(module, Embedding):
                self._hold(number, module, position_table(module))

    def _hold(self, number: int, module: nn.Module, table: Tensor) -> None:
        self._tables[id(module)] = f"table_{number}"
        self.register_buffer(f"table_{number}", table.detach().clone())

    def _table(self, module: nn.Module) -> Tensor:
        return self.get_buffer(self._tables[id(module)])

    def embedded(self, embedding: Embedding, ids: Tensor, places: _Places) -> Tensor:
        """Token embeddings times their factor, plus absolute positions."""
        vectors: Tensor = embedding.tokens(ids) * embedding.architecture.embedding_factor
        if embedding.architecture.positions in ("learned", "sinusoidal"):
            vectors = vectors + functional.embedding(places.positions, self._table(embedding))
        return vectors

    def _turned(self, layer: MultiHeadAttention, vectors: Tensor, places: _Places) -> Tensor:
        """Queries or keys turned by their positions: see `headloom.mechanism.rotary`."""
        if layer.relative != "rotary":
            return vectors
        turns = functional.embedding(places.positions, self._table(layer))[:, None]
        cosines, sines = turns.chunk(2, -1)
        first, second = vectors.chunk(2, -1)
        turned = (first * cosines - second * sines, second * cosines + first * sines)
        return torch.cat(turned, -1)

    def keys_values(
        self, layer: MultiHeadAttention, inputs: Tensor, places: _Places
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of some positions, (batch, kv_heads, positions, depth) each."""
        keys, values = (
            part(inputs).unflatten(-1, (layer.kv_heads, layer.depth)).transpose(1, 2)
            for part in (layer.w_k, layer.w_v)
        )
        return self._turned(layer, keys, places), values

    def attend(
        self, layer: MultiHeadAttention, inputs: Tensor, source: Sequence[Tensor], places: _Places
    ) -> Tensor:
        """What a layer gives of keys and values that it made, (batch, queries, width)."""
        queries = layer.w_q(inputs).unflatten(-1, (layer.heads, layer.depth)).transpose(1, 2)
        queries = self._turned(layer, queries, places)
        keys, values = (part.repeat_interleave(layer.heads // layer.kv_heads, 1) for part in source)
        scale = layer.depth**-0.5 if layer.scale is None else layer.scale
        scores = queries @ keys.transpose(-2, -1)
        index = by_distance = scores
        if layer.relative in ("shaw", "shaw-keys"):
            clip = len(layer.key_table) // 2
            index = (places.distances.clamp(-clip, clip) + clip).expand(scores.shape)
            by_distance = queries @ layer.key_table.T
            scores = scores + by_distance.gather(-1, index)
        scores = scores * scale
        if layer.relative == "alibi":
            scores = scores - layer.slopes[:, None, None] * places.distances.abs()
        elif layer.relative == "buckets":
            far = layer.max_distance
            scores = scores + self._table(layer)[:, places.distances.clamp(-far, far) + far]
        weights = _weights(scores, places.mask)
        output = weights @ values
        if layer.value_table is not None:
            # Each row's weights are summed by distance first, as in headloom's formula.
            summed = torch.zeros_like(by_distance).scatter_add(-1, index, weights)
            output = output + summed @ layer.value_table
        joined: Tensor = layer.w_o(output.transpose(1, 2).flatten(-2))
        return joined

    def read(self, blocks: nn.ModuleList, inputs: Tensor, places: _Places) -> Tensor:
        """What a stack of encoder blocks gives, (batch, positions, width)."""
        for block in blocks:
            inputs = self._read(cast(EncoderBlock, block), inputs, places)
        return inputs

    def _read(self, block: EncoderBlock, inputs: Tensor, places: _Places) -> Tensor:
        layer = block.self_attention

        def look(x: Tensor) -> Tensor:
            return self.attend(layer, x, self.keys_values(layer, x, places), places)

        return _fed(block, _added(block, block.self_attention_norm, inputs, look))

    def written(
        self,
        blocks: nn.ModuleList,
        inputs: Tensor,
        places: _Places,
        past: Sequence[Tensor],
        sources: Sequence[Tensor] = (),
        source_mask: Tensor | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """What a stack of decoder blocks gives, and the keys and values of each with the new ones.

        past, sources: keys and values of each block, one after the other.
        """
        present: list[Tensor] = []
        for number, block in enumerate(blocks):
            own = slice(2 * number, 2 * number + 2)
            inputs, joined = self._written(
                cast(DecoderBlock, block), inputs, places, past[own], sources[own], source_mask
            )
            present += joined
        return inputs, present

    def _written(
        self,
        block: DecoderBlock,
        inputs: Tensor,
        places: _Places,
        past: Sequence[Tensor],
        source: Sequence[Tensor],
        source_mask: Tensor | None,
    ) -> tuple[Tensor, list[Tensor]]:
        layer, cross = block.self_attention, block.cross_attention
        joined: list[Tensor] = []

        def look_back(x: Tensor) -> Tensor:
            new = self.keys_values(layer, x, places)
            joined.extend(torch.cat(pair, 2) for pair in zip(past, new, strict=True))
            return self.attend(layer, x, joined, places)

        inputs = _added(block, block.self_attention_norm, inputs, look_back)
        if cross is not None and block.cross_attention_norm is not None:
            seen = _Places(source_mask)
            inputs = _added(
                block, block.cross_attention_norm, inputs,
                lambda x: self.attend(cross, x, source, seen),
            )  # fmt: skip
        return _fed(block, inputs), joined


def _added(
    block: EncoderBlock | DecoderBlock,
    norm: nn.Module,
    inputs: Tensor,
    sublayer: Callable[[Tensor], Tensor],
) -> Tensor:
    if block.pre_norm:
        return inputs + sublayer(norm(inputs))
    normed: Tensor = norm(inputs + sublayer(inputs))
    return normed


def _fed(block: EncoderBlock | DecoderBlock, inputs: Tensor) -> Tensor:
    layer: FeedForward = block.feed_forward
    activation = ACTIVATIONS[layer.activation]

    def fed(x: Tensor) -> Tensor:
        risen = layer.rise(x)
        hidden = activation(risen) if layer.gate is None else activation(layer.gate(x)) * risen
        result: Tensor = layer.fall(hidden)
        return result

    return _added(block, block.feed_forward_norm, inputs, fed)


class Encoder(_Plain):
    """The encoder of a translator, and what its decoder looks at."""

    model: Transformer

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> list[Tensor]:
        """Keys and values of the source, of each layer of the decoder."""
        model = self.model
        places = _places(input_ids, 0, attention_mask, causal=False)
        outputs = self.embedded(model.source_embedding, input_ids, places)
        outputs = model.encoder_norm(self.read(model.encoder, outputs, places))
        return [
            part
            for block in model.decoder
            for part in self.keys_values(
                cast(MultiHeadAttention, block.cross_attention), outputs, _Places()
            )
        ]


class Decoder(_Plain):
    """The decoder of a translator."""

    model: Transformer

    def forward(
        self, input_ids: Tensor, encoder_attention_mask: Tensor, past: list[Tensor],
        source: list[Tensor],
    ) -> list[Tensor]:  # fmt: skip
        """Logits after new tokens, and keys and values of all."""
        model = self.model
        places = _places(input_ids, past[0].shape[2], None, causal=True)
        outputs = self.embedded(model.target_embedding, input_ids, places)
        seen = encoder_attention_mask.bool()[:, None, None]
        outputs, present = self.written(model.decoder, outputs, places, past, source, seen)
        return [model.output_embedding(model.decoder_norm(outputs)), *present]


class Writer(_Plain):
    """A language model."""

    model: LanguageModel

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, past: list[Tensor]
    ) -> list[Tensor]:
        """Logits after new tokens, and keys and values of all."""
        model = self.model
        places = _places(input_ids, past[0].shape[2], attention_mask, causal=True)
        outputs = self.embedded(model.embedding, input_ids, places)
        outputs, present = self.written(model.decoder, outputs, places, past)
        return [model.output_embedding(model.decoder_norm(outputs)), *present]


class TextClassifier(_Plain):
    """A classifier of texts."""

    model: Classifier

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Logits, (batch, classes)."""
        model = self.model
        places = _places(input_ids, 0, attention_mask, causal=False)
        outputs = self.embedded(model.embedding, input_ids, places)
        outputs = model.encoder_norm(self.read(model.encoder, outputs, places))
        logits: Tensor = model.output(pooled(outputs, attention_mask.bool(), model.pooling))
        return logits


class Images(_Plain):
    """A classifier of images, which normalises their numbers, 0 to 1, itself.

    mean, deviation: of the channels, broadcastable to (channels, rows, columns).
    """

    model: VisionTransformer | ConvolutionalClassifier
    pixel_mean: Tensor
    pixel_deviation: Tensor

    def __init__(
        self, model: VisionTransformer | ConvolutionalClassifier, mean: Tensor, deviation: Tensor
    ) -> None:
        model = deepcopy(model)
        if isinstance(model, ConvolutionalClassifier) and model.attention is not None:
            model.attention = cast(ImageSelfAttention, _LookingAround(model.attention))
        super().__init__(model)
        self.register_buffer("pixel_mean", mean)
        self.register_buffer("pixel_deviation", deviation)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Logits, (batch, classes), of (batch, channels, rows, columns)."""
        model, images = self.model, (pixel_values - self.pixel_mean) / self.pixel_deviation
        if isinstance(model, ConvolutionalClassifier):
            of_features: Tensor = model(images)
            return of_features
        vectors: Tensor = model.patches(images).flatten(2).transpose(1, 2)
        if model.grid.before:
            first = model.class_token.expand(images.shape[0], 1, -1)
            vectors = torch.cat([first, vectors], 1)
        if model.architecture.positions == "learned":
            vectors = vectors + model.positions
        elif model.architecture.positions == "sinusoidal":
            vectors = vectors + model.sinusoids
        outputs = model.encoder_norm(self.read(model.encoder, vectors, _Places()))
        vector = outputs[:, 0] if model.grid.before else outputs.mean(1)
        logits: Tensor = model.class_scores(vector)
        return logits


class _LookingAround(nn.Module):
    """SAGAN's block: see `headloom.models.image_attention`."""

    def __init__(self, block: ImageSelfAttention) -> None:
        super().__init__()
        self.block = block

    def forward(self, images: Tensor) -> Tensor:
        block = self.block
        keys, values = block.f(images), block.h(images)
        if block.pooled:
            keys, values = (functional.max_pool2d(part, 2) for part in (keys, values))
        weights = (block.g(images).flatten(2).transpose(1, 2) @ keys.flatten(2)).softmax(-1)
        seen = (weights @ values.flatten(2).transpose(1, 2)).transpose(1, 2)
        looked: Tensor = block.v(seen.unflatten(2, images.shape[2:]))
        return images + block.gamma * looked
