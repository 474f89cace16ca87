"""Base class of headloom's attention layers: observers, editors and learned matrices.

A layer has an attribute `observer`, normally None. While it is set, the layer computes with
`headloom.attend` and passes the graph or the weights to the observer. While `editor` is set, it
gets the output of every head, and the layer continues with the output that it returns. Nothing is
global: `headloom.mechanism.watching` sets and restores both.
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

#: Function that applies several linear maps to one input.
LinearMaps = Callable[[Tensor, Sequence[nn.Linear]], list[Tensor]]


def linear_maps(inputs: Tensor, maps: Sequence[nn.Linear]) -> list[Tensor]:
    """Apply several linear maps to one input.

        y_m = x W_m^T + b_m

    inputs: (..., width); maps: from this width to any.
    Returns: (..., out_features) for each map.
    Raises: ShapeError: another width. InputError: another dtype or device.
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
    """Module with constant tensors as buffers that are not in the state dict.

    They are computed again when weights are loaded: a module made on the device ``meta`` has no
    numbers, and after ``to_empty`` its buffers hold arbitrary ones.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_load_state_dict_post_hook(  # type: ignore[no-untyped-call]
            lambda module, keys: module.hold_constants()
        )

    @abstractmethod
    def constants(self) -> dict[str, Tensor]:
        """Return the constant tensors by name."""

    def hold_constants(self) -> None:
        """Write the constants to buffers, on the device and in the dtype of the parameters."""
        for name, numbers in self.constants().items():
            buffer = self._buffers.get(name)
            if buffer is not None and buffer.shape == numbers.shape and not buffer.is_meta:
                buffer.copy_(numbers)
                continue
            parameter = next(self.parameters())
            numbers = numbers.to(device=parameter.device, dtype=parameter.dtype)
            self.register_buffer(name, numbers, persistent=False)


RelativeKind = Literal["none", "shaw", "shaw-keys", "alibi", "buckets", "rotary"]
LayerKind = Literal["encoder", "decoder", "cross"]


@dataclass(frozen=True)
class PositionSizes:
    """Sizes of the relative positions of a layer; it reads those of its kind.

    clip: the largest distance that has its own embedding, of Shaw's positions.
    buckets: number of buckets of distances, each with a learned bias for every head, see
        `headloom.Buckets`. In a decoder all keys after the query share one bucket; other layers
        use half of the buckets for them.
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
    """Outputs of the heads in one attention call, and the arguments of the call.

    output: (batch, heads, queries, value_depth), before W_O.
    queries, keys: (batch, heads, queries, depth) and (batch, kv_heads, keys, depth), as scored:
    projected, and rotated if positions are rotary.
    values: (batch, kv_heads, keys, value_depth).
    mask, relative, softcap, sinks: arguments of the call; scale: the factor on the scores.
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
    """One attention call of a layer, for an observer.

    caught: the graph or the dense weights, by the observer's `keep`.
    grids: the image grids of queries and keys, if they are patches of an image.
    """

    caught: AttentionGraph | Tensor
    grids: tuple[Grid, Grid] | None


class Observer(Protocol):
    """Protocol of an attention observer."""

    #: What to keep of each call.
    keep: Keep

    def __call__(self, layer: AttentionLayer, observation: Observation) -> None:
        """Receive one call of a layer."""


class Editor(Protocol):
    """Protocol of an editor of head outputs."""

    def __call__(self, layer: AttentionLayer, heads: HeadOutputs) -> Tensor:
        """Return the output for the layer to continue with, in the shape of ``heads.output``."""


class AttentionLayer(nn.Module):
    """Base class of attention layers; tracing a model finds its layers by this class.

    Args:
        heads: number of query heads.
        kv_heads: number of key/value heads; divides heads.
        kind: role of the layer in its model: "encoder", "decoder" or "cross".
        relative: kind of relative positions in its scores.

    observer, editor: None, or called in every attention call.
    grids: the image grids of its queries and keys, if they are always the same.
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
        """Return the state for copies and pickles: without observer and editor."""
        return {**self.__dict__, "observer": None, "editor": None}

    @abstractmethod
    def matrices(self, gradients: bool = False) -> dict[str, Tensor]:
        """Return the learned matrices by name; in a group heads share W_K and W_V.

        W_Q, W_K (heads, width, depth), W_V (heads, width, value_depth), W_O (heads, value_depth,
        width). gradients: return the gradient of the loss by each instead, 0 if there is none.
        """

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, *, mask: MaskLike = None,
        relative: Relative | None = None, scale: float | None = None, dropout: float = 0.0,
        grids: tuple[Grid, Grid] | None = None, softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the output of every head; call the observer and the editor, if there are any.

        Arguments as in `headloom.attention`; grids: of this call, instead of the layer's own.
        Returns: (batch, heads, queries, value_depth).
        """
        observer, editor = self.observer, self.editor  # a trace in another thread may end here
        if dropout or observer is None:
            # Dropout and rounding are the same with and without an observer.
            output = attention(
                queries, keys, values, mask=mask, relative=relative, scale=scale, dropout=dropout,
                softcap=softcap, sinks=sinks,
            )  # fmt: skip
        factor = 1 / math.sqrt(queries.shape[-1]) if scale is None else scale
        call = queries, keys, values, read_mask(mask), factor, relative, softcap, sinks
        if observer is not None:
            undropped, caught = attend(
                queries, keys, values, mask=mask, relative=relative, scale=scale,
                softcap=softcap, sinks=sinks, keep=observer.keep,
            )  # fmt: skip
            output = output if dropout else undropped
            grids = self.grids if grids is None else grids
            observer(self, Observation(output, *call, caught, grids))
        if editor is not None:
            output = editor(self, HeadOutputs(output, *call))
        return output
