"""Attention calls from the queries and the keys of layers, as somebody has saved them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headloom.errors import InputError, ShapeError
from headloom.mechanism.masks import Mask, causal
from headloom.mechanism.parts import in_float64
from headloom.mechanism.positions import ALiBi, Relative, Shaw
from headloom.mechanism.shapes import describe
from headloom.tracing.recording.layer_call import LayerCall
from headloom.tracing.recording.score_terms import ranges_of
from headloom.tracing.sources.score_masks import without_hidden
from headloom.tracing.sources.tensors import Layers, check_numbers

__all__ = ["LAYOUTS", "GivenCalls", "is_causal"]

#: Orders of dimensions, by the letters that serving engines and JAX have for them.
LAYOUTS = ("HND", "NHD")


def is_causal(mask: Mask | None, queries: int, keys: int) -> bool:
    """Whether a mask shows no query of a sequence a key after it."""
    if mask is None or queries != keys or queries < 2:
        return False
    ranges = ranges_of(mask, queries, keys)
    return ranges is not None and bool((ranges[1] <= torch.arange(1, queries + 1)).all())


@dataclass(frozen=True)
class GivenCalls:
    """The attention calls of layers whose queries and keys are given.

    queries, keys, values   the arrays; values None: not known
    layout                  of the dimensions of a layer: "HND" (heads, positions, depth) or "NHD"
    heads                   where a layer is (positions, heads * depth); None: it is not
    scale, softcap          of the scores; scale None: one over the root of the depth
    masks, relatives, biases, sinks   one for each layer, or None
    """

    queries: Layers
    keys: Layers
    values: Layers | None
    layout: str
    heads: int | None
    scale: float | None
    softcap: float | None
    masks: tuple[Mask | None, ...]
    relatives: tuple[Relative | None, ...]
    biases: tuple[Tensor | None, ...]
    sinks: tuple[Tensor | None, ...]

    def lengths(self, number: int) -> tuple[int, int]:
        """How many queries and keys a layer has."""
        axis = -3 if self.layout == "NHD" and self.heads is None else -2
        return self.queries.shape(number)[axis], self.keys.shape(number)[axis]

    def tensors(self, number: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Queries, keys and values of a layer, (batch, heads, positions, depth), that fit."""
        label = self.queries.label(number)
        queries = self._heads_first(self.queries, number, self.heads)
        depth = queries.shape[3]
        if not all(queries.shape[1:]):
            raise ShapeError(
                f"{label}: {describe(queries)} as (batch, heads, positions, depth); expected 1 or "
                "more of each."
            )
        kv_heads = None
        if self.heads is not None:
            kv_heads = self._kv_heads(number, depth)
        keys = self._heads_first(self.keys, number, kv_heads)
        if keys.shape[3] != depth or len(keys) != len(queries):
            raise ShapeError(
                f"{self.keys.label(number)}: {describe(keys)} as (batch, heads, positions, depth); "
                f"the queries are {describe(queries)}. Batch and depth must be the same."
            )
        if not keys.shape[2]:
            raise ShapeError(
                f"{self.keys.label(number)}: {describe(keys)} as (batch, heads, positions, depth); "
                "expected 1 or more keys."
            )
        if not keys.shape[1] or queries.shape[1] % keys.shape[1]:
            raise ShapeError(
                f"{self.keys.label(number)}: {keys.shape[1]} heads of {keys.shape[2]} keys for "
                f"{queries.shape[1]} of queries; expected a divisor of it. Where the dimensions "
                'are (positions, heads, depth), give layout="NHD".'
            )
        if self.values is None:
            return queries, keys, None
        values = self._heads_first(self.values, number, kv_heads)
        if values.shape[:3] != keys.shape[:3]:
            raise ShapeError(
                f"{self.values.label(number)}: {describe(values)} as (batch, heads, positions, "
                f"depth); the keys are {describe(keys)}. Give a value for each key."
            )
        return queries, keys, values

    def _check_size(self, number: int, queries: Tensor, keys: Tensor, scale: float) -> None:
        """Raise an InputError where a score may be too large for float32: |q . k| <= |q| |k|."""
        longest = [
            float(in_float64(tensor).norm(dim=-1).max()) if tensor.numel() else 0.0
            for tensor in (queries, keys)
        ]
        bound = longest[0] * longest[1] * max(1.0, abs(scale))
        if bound > torch.finfo(torch.float32).max:
            raise InputError(
                f"{self.queries.label(number)}: vectors as long as {longest[0]:.2g}, and keys as "
                f"long as {longest[1]:.2g}: their scores are too large for float32. Check that "
                "they were saved whole."
            )

    def _kv_heads(self, number: int, depth: int) -> int:
        width = self.keys[number].shape[-1]
        if width % depth:
            raise ShapeError(
                f"{self.keys.label(number)}: {width} numbers a position; expected a multiple of "
                f"{depth}, the depth of {self.heads} heads of queries. Check the number of heads."
            )
        return width // depth

    def _heads_first(self, layers: Layers, number: int, heads: int | None) -> Tensor:
        """A layer as (batch, heads, positions, depth)."""
        tensor = layers[number]
        if heads is not None:
            if tensor.shape[-1] % heads:
                raise ShapeError(
                    f"{layers.label(number)}: {tensor.shape[-1]} numbers a position are not "
                    f"{heads} heads of one depth. Check the number of heads."
                )
            tensor = tensor.reshape(*tensor.shape[:-1], heads, tensor.shape[-1] // heads)
        if heads is not None or self.layout == "NHD":
            tensor = tensor.transpose(-3, -2)
        check_numbers(layers.label(number), tensor, ("head", "position", "number"))
        return tensor

    def causal(self, number: int) -> bool:
        """Whether the mask of a layer shows no query a key after it."""
        return is_causal(self._mask_and_bias(number)[0], *self.lengths(number))

    def _mask_and_bias(self, number: int) -> tuple[Mask | None, Tensor | None]:
        """The mask of a layer, which says whom minus infinities of the bias hide, and the bias."""
        mask, bias = self.masks[number], self.biases[number]
        if bias is None or bias.ndim > 4:
            return mask, bias
        bias = bias.reshape((1,) * (4 - bias.ndim) + tuple(bias.shape))
        heads = self.heads or self.queries.shape(number)[-2 if self.layout == "NHD" else -3]
        return without_hidden(mask, bias, (self.queries.samples, heads, *self.lengths(number)))

    def call(self, number: int, name: str, kind: str) -> LayerCall:
        """The call of a layer."""
        queries, keys, values = self.tensors(number)
        scale = queries.shape[3] ** -0.5 if self.scale is None else self.scale
        self._check_size(number, queries, keys, scale)
        relative = self.relatives[number]
        rows, columns = queries.shape[2], keys.shape[2]
        if kind != "cross" and rows != columns:
            raise InputError(
                f"{self.queries.label(number)}: {rows} queries and {columns} keys, in a layer of "
                f'kind "{kind}", which looks from a sequence at itself. Give all of its queries; '
                'of a layer that looks at another sequence, kind="cross".'
            )
        if rows != columns and self.masks[number] == causal():
            raise InputError(
                f"{self.queries.label(number)}: {rows} queries and {columns} keys under a causal "
                "mask; expected as many of each. Of queries that are the last of the keys, "
                "headloom.causal(offset=keys - queries); between two sequences, no mask."
            )
        mask, bias = self._mask_and_bias(number)
        positions = "none"
        if relative is not None:
            positions = {Shaw: "shaw", ALiBi: "alibi"}.get(type(relative), "bias")
            relative = relative.in_scores()
        elif bias is not None:
            positions = "bias"
        return LayerCall(
            path=name,
            kind=kind,
            queries=queries,
            keys=keys,
            values=keys.new_zeros(*keys.shape[:3], 1) if values is None else values,
            scale=scale,
            mask=mask,
            bias=bias,
            relative=relative,
            softcap=self.softcap,
            sinks=self.sinks[number],
            positions=positions,
            is_causal=self.causal(number),
            values_known=values is not None,
        )
