"""What every attention layer of headloom shares: it can be watched, edited, and asked for matrices.

Each has an attribute `observer`, normally None. While one is set, the layer computes with
`headloom.attend` and hands over what it caught. Likewise `editor`: while one is set, it gets the
output of every head, and the layer goes on with what it gives back. Nothing is global:
`headloom.mechanism.watching` sets them and puts them back.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor, nn

from headloom.errors import InputError, ShapeError
from headloom.mechanism.function import attend, attention
from headloom.mechanism.graph import AttentionGraph, Keep
from headloom.mechanism.grid import Grid
from headloom.mechanism.mask import Mask
from headloom.mechanism.masks import MaskLike, read_mask
from headloom.mechanism.positions import Relative
from headloom.mechanism.rotary import RotaryScaling
from headloom.mechanism.shapes import describe

#: How a layer multiplies: several linear maps of one input.
LinearMaps = Callable[[Tensor, Sequence[nn.Linear]], list[Tensor]]


def linear_maps(inputs: Tensor, maps: Sequence[nn.Linear]) -> list[Tensor]:
    """Several linear maps of one input.

        y_m = x W_m^T + b_m

    Args: inputs: (..., width); maps: from that width to any.
    Returns: (..., out_features) for each map.
    Raises: ShapeError: another width. InputError: another type, or device.
    """
    try:
        return [linear(inputs) for linear in maps]
    except (RuntimeError, TypeError):
        weight, shape = maps[0].weight, inputs.shape
        alike = (inputs.dtype, inputs.device) == (weight.dtype, weight.device)
        if shape[-1:] == weight.shape[-1:] and alike:
            raise
        kind = InputError if shape[-1:] == weight.shape[-1:] else ShapeError
        raise kind(
            f"linear maps: the input is {describe(inputs)}, {inputs.dtype} on {inputs.device}; the "
            f"layer was made for (..., {weight.shape[1]}), {weight.dtype} on {weight.device}."
        ) from None


class WithConstants(nn.Module):
    """A module that holds tensors which follow from its sizes, as buffers that no state dict has.

    They are worked out anew where weights are loaded: a module that was made on the device ``meta``
    has no numbers, and one that was emptied after that has those that memory happened to hold.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_load_state_dict_post_hook(  # type: ignore[no-untyped-call]
            lambda module, keys: module.hold_constants()
        )

    @abstractmethod
    def constants(self) -> dict[str, Tensor]:
        """The tensors by their names."""

    def hold_constants(self) -> None:
        """Put their numbers where they are held: beside the parameters, in the same type."""
        for name, numbers in self.constants().items():
            held = self._buffers.get(name)
            if held is not None and held.shape == numbers.shape and not held.is_meta:
                held.copy_(numbers)
                continue
            beside = next(self.parameters())
            numbers = numbers.to(device=beside.device, dtype=beside.dtype)
            self.register_buffer(name, numbers, persistent=False)


RelativeKind = Literal["none", "shaw", "shaw-keys", "alibi", "buckets", "rotary"]
LayerKind = Literal["encoder", "decoder", "cross"]


@dataclass(frozen=True)
class PositionSizes:
    """Sizes of the relative positions of a layer, of which it reads those of its kind.

    clip: the largest distance that Shaw's positions tell apart.
    buckets: of distances, each with a learned bias for every head, see `headloom.Buckets`. A layer
        of kind "decoder" has one for all keys after the query, any other as many for keys after it
        as for keys before it.
    max_distance: all keys farther away share the last bucket.
    rotary_base, rotary_scaling: of rotary positions, see `headloom.rotary`.
    """

    clip: int = 16
    buckets: int = 32
    max_distance: int = 128
    rotary_base: float = 10_000.0
    rotary_scaling: RotaryScaling | None = None


@dataclass(frozen=True, eq=False)
class HeadOutputs:
    """What the heads of one attention call give, and what they gave it from.

    output: (batch, heads, queries, value_depth), before W_O.
    queries, keys: (batch, heads, queries, depth) and (batch, kv_heads, keys, depth), as scored:
    projected, and turned where positions are rotary.
    values: (batch, kv_heads, keys, value_depth).
    mask, relative, softcap, sinks: as the call took them; scale: the factor on the scores.
    """

    output: Tensor
    queries: Tensor
    keys: Tensor
    values: Tensor
    mask: Mask | None
    scale: float
    relative: Relative | None
    softcap: float | None
    sinks: Tensor | None


@dataclass(frozen=True, eq=False)
class Observation(HeadOutputs):
    """One attention call of a layer, as an observer sees it.

    caught: the graph, or the dense weights, as the observer's `keep` asked.
    grids: where queries and keys lie, if they are places of an image.
    """

    caught: AttentionGraph | Tensor
    grids: tuple[Grid, Grid] | None


class Observer(Protocol):
    """Who watches."""

    #: What is kept of each call.
    keep: Keep

    def __call__(self, layer: AttentionLayer, observation: Observation) -> None:
        """Receive one call of a layer."""


class Editor(Protocol):
    """Who changes what comes out of heads."""

    def __call__(self, layer: AttentionLayer, heads: HeadOutputs) -> Tensor:
        """The output that the layer goes on with, of the shape of ``heads.output``."""


class AttentionLayer(nn.Module):
    """A layer around the attention function; whatever asks a model for its attention finds it.

    Args:
        heads: of the queries.
        kv_heads: of keys and values; divides heads.
        kind: what the layer is in its model: "encoder", "decoder" or "cross".
        relative: relative positions that enter its scores.

    observer, editor: who watches it, and who changes its outputs.
    grids: where its queries and its keys lie, if they are always the same places of an image.
    """

    def __init__(
        self, heads: int, kv_heads: int, kind: LayerKind, relative: RelativeKind = "none"
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads
        self.kind, self.relative = kind, relative
        self.observer: Observer | None = None
        self.editor: Editor | None = None
        self.grids: tuple[Grid, Grid] | None = None

    def __getstate__(self) -> dict[str, object]:
        """What a copy takes along, also a pickled one: nobody watches it, or changes it."""
        return {**self.__dict__, "observer": None, "editor": None}

    @abstractmethod
    def matrices(self, gradients: bool = False) -> dict[str, Tensor]:
        """W_Q, W_K (heads, width, depth), W_V (heads, width, value_depth), W_O (heads, value_depth,
        width); heads of a group share W_K and W_V. gradients: those of the loss by each, or 0.
        """

    def attend(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        mask: MaskLike = None,
        relative: Relative | None = None,
        scale: float | None = None,
        dropout: float = 0.0,
        grids: tuple[Grid, Grid] | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """The output of every head, seen by the observer and changed by the editor, if there are.

        Args: as `headloom.attention`; grids: of this call, instead of the layer's own.
        Returns: (batch, heads, queries, value_depth).
        """
        observer, editor = self.observer, self.editor  # a trace in another thread may end here
        if dropout or observer is None:
            # What is dropped, and rounded, is as where nobody observes.
            output = attention(
                queries, keys, values, mask=mask, relative=relative, scale=scale, dropout=dropout,
                softcap=softcap, sinks=sinks,
            )  # fmt: skip
        factor = 1 / math.sqrt(queries.shape[-1]) if scale is None else scale
        call = queries, keys, values, read_mask(mask), factor, relative, softcap, sinks
        if observer is not None:
            whole, caught = attend(
                queries, keys, values, mask=mask, relative=relative, scale=scale,
                softcap=softcap, sinks=sinks, keep=observer.keep,
            )  # fmt: skip
            output = output if dropout else whole
            places = self.grids if grids is None else grids
            observer(self, Observation(output, *call, caught, places))
        if editor is not None:
            output = editor(self, HeadOutputs(output, *call))
        return output
