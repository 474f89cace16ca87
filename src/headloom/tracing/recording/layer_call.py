"""One attention call of a model: as every source gives it, and what the session adds to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headloom.formats.files import JsonObject
from headloom.mechanism.graph import AttentionGraph
from headloom.mechanism.grid import Grid
from headloom.mechanism.masks import Mask
from headloom.mechanism.positions import Relative
from headloom.mechanism.scores import Bilinear, Score

#: Why a layer over the edges of a graph has no matrix.
OVER_EDGES = "its weights over the edges of a graph are no products of queries and keys"

#: The first key of each query and the end of its keys, (2, queries), for each input of a batch;
#: None for one whose mask has no such ranges. None for all: nothing is known of the mask.
RowRanges = tuple[Tensor | None, ...] | None


@dataclass(eq=False, slots=True)
class LayerCall:
    """One attention call that a layer of a model made.

    path, kind      of the layer: "encoder", "decoder" or "cross"
    queries         (batch, heads, queries, depth), as scored
    keys, values    (batch, kv_heads, keys, depth): not repeated
    scale           the factor on the scores
    mask            who may look at whom; None: everybody
    bias            added to the scores, (batch or 1, heads or 1, queries, keys), or None
    relative        relative positions, or None
    softcap, sinks  as `headloom.attend` takes them
    score           of queries and keys; None: their product
    positions       the kind of positions that enter the scores, as a trace says it
    is_causal       whether no query looks ahead, by the mask or by what the model says
    own_output      from rows to what the model's own attention gives for them, (batch, heads, rows,
                    value_depth); None: it cannot be asked
    weights_only    whether its weights alone are known
    values_known    whether `values` are its values, and not numbers in their place
    grids           where its queries and its keys lie, if they are places of an image
    missing         why its scores are no products of queries and keys; None: they are, or nothing
                    is known of it
    tracks          of its queries and its keys: see `Provenance.call`; None: it was not followed
    sequences       those of its queries and of its keys, where the layer names them

    The session adds:

    index           among the layers of its kind
    graph           with a batch
    value_norms     (batch, kv_heads, keys), or None
    ranges          of the mask: see `RowRanges`
    deviations      see TraceLayer.deviation, for each input of the batch, or one for all
    """

    path: str
    kind: str
    queries: Tensor
    keys: Tensor
    values: Tensor
    scale: float
    mask: Mask | None = None
    bias: Tensor | None = None
    relative: Relative | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    score: Score | None = None
    positions: str = "none"
    is_causal: bool = False
    own_output: Callable[[Tensor], Tensor] | None = None
    weights_only: bool = False
    values_known: bool = True
    grids: tuple[Grid, Grid] | None = None
    missing: str | None = None
    tracks: tuple[int, int] | None = None
    sequences: tuple[str, str] | None = None
    index: int = 0
    graph: AttentionGraph = field(init=False)
    value_norms: Tensor | None = None
    ranges: RowRanges = None
    deviations: Sequence[float | None] = (None,)

    @classmethod
    def over_edges(cls, path: str, kind: str, graph: AttentionGraph) -> LayerCall:
        """A call of a layer over the edges of a graph, of which the weights alone are known."""
        batch, heads, queries, keys = graph.shape
        rows, columns = (graph.lse.new_zeros(batch, heads, size, 0) for size in (queries, keys))
        return cls(
            path, kind, rows, columns, columns, scale=1.0, weights_only=True, missing=OVER_EDGES
        )

    def arguments(self) -> JsonObject:
        """The keywords of `headloom.attend`."""
        names = ("mask", "bias", "relative", "scale", "softcap", "sinks")
        return {name: getattr(self, name) for name in names}

    @property
    def has_products(self) -> bool:
        """Whether the products of queries and keys are the scores, and known."""
        return not self.weights_only and self.missing is None

    def products(self) -> tuple[Tensor, Tensor]:
        """Queries and keys whose products are the scores."""
        if isinstance(self.score, Bilinear):
            # In half precision what A makes of a query would be rounded once more.
            return self.queries.float() @ self.score.form().float(), self.keys.float()
        return self.queries, self.keys

    def mask_of(self, rows: Tensor) -> Tensor | None:
        """Which keys some queries may look at, (batch or 1, heads or 1, rows, keys)."""
        if self.mask is None:
            return None
        keys = self.keys.shape[2]
        cells = [self.mask.cells(range(row, row + 1), keys, rows.device) for row in rows.tolist()]
        return torch.cat(cells, 2)

    def bias_of(self, rows: Tensor) -> Tensor | None:
        """What is added to the scores of some queries."""
        one_for_all = self.bias is None or self.bias.shape[-2] == 1
        return self.bias if self.bias is None or one_for_all else self.bias[..., rows, :]

    def changed(self, **values: object) -> LayerCall:
        """The same with other values for some fields."""
        other = copy(self)
        for name, value in values.items():
            setattr(other, name, value)
        return other
