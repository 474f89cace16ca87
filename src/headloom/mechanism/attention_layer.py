"""What every attention layer of headloom shares: it can be watched, edited, and asked for
matrices.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Literal

from torch import Tensor, nn

from headloom.mechanism.function import attend, attention
from headloom.mechanism.grid import Grid
from headloom.mechanism.masks import Mask, as_mask
from headloom.mechanism.observe import Editor, HeadOutputs, Observation, Observer
from headloom.mechanism.positions import Relative

__all__ = ["AttentionLayer", "LayerKind", "RelativeKind"]

RelativeKind = Literal["none", "shaw", "shaw-keys", "alibi", "buckets", "rotary"]
LayerKind = Literal["encoder", "decoder", "cross"]


class AttentionLayer(nn.Module):
    """A layer around the attention function; whatever asks a model for its attention finds it.

    Args:
        heads: of the queries.
        kv_heads: of keys and values; divides heads.
        kind: what the layer is in its model: "encoder", "decoder" or "cross".
        relative: relative positions that enter its scores.

    observer, editor: see `headloom.mechanism.observe`.
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
        """W_Q, W_K (heads, width, depth), W_V (heads, width, value_depth) and W_O (heads,
        value_depth, width), as formulas have them; heads of a group share W_K and W_V.

        gradients: those of the loss by each, instead; 0 where there is none.
        """

    def attend(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        mask: Mask | Tensor | None = None,
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
        if dropout or self.observer is None:
            # What is dropped, and rounded, is as where nobody observes.
            output = attention(
                queries, keys, values, mask=mask, relative=relative, scale=scale, dropout=dropout,
                softcap=softcap, sinks=sinks,
            )  # fmt: skip
        if self.observer is not None:
            whole, caught = attend(
                queries, keys, values, mask=mask, relative=relative, scale=scale,
                softcap=softcap, sinks=sinks, keep=self.observer.keep,
            )  # fmt: skip
            output = output if dropout else whole
            factor = 1 / math.sqrt(queries.shape[-1]) if scale is None else scale
            rule = None if mask is None else as_mask(mask)
            places = self.grids if grids is None else grids
            seen = Observation(
                queries, keys, values, caught, factor, rule, relative, places, softcap, sinks
            )
            self.observer(self, seen)
        if self.editor is not None:
            output = self.editor(self, HeadOutputs(output, queries, keys, values, mask))
        return output
