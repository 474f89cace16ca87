"""One attention call of a model: fields set by its source, and fields added by the session."""

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

#: Reason why a layer over the edges of a graph has no matrix.
OVER_EDGES = "its weights over the edges of a graph are not products of queries and keys"

#: First key of each query and the end of its keys, (2, queries), for each input of a batch; None
#: for an input whose mask has no such ranges. None for all: the mask is unknown.
RowRanges = tuple[Tensor | None, ...] | None


@dataclass(eq=False, slots=True)
class LayerCall:
    """One attention call of a layer.

    path, kind      of the layer: "encoder", "decoder" or "cross"
    queries         (batch, heads, queries, depth), as scored
    keys, values    (batch, kv_heads, keys, depth): not repeated
    scale           the factor on the scores
    mask            of the keys that each query sees; None: all
    bias            added to the scores, (batch or 1, heads or 1, queries, keys), or None
    relative        relative positions, or None
    softcap, sinks  see `headloom.attend`
    score           of queries and keys; None: their product
    positions       the kind of positions that enter the scores, as in a trace
    is_causal       whether no query sees a later key, by the mask or by a flag of the model
    own_output      function from rows to the output of the model's own attention, (batch, heads,
                    rows, value_depth); None: it cannot be computed
    weights_only    whether only the weights are known
    values_known    whether `values` are its values, not placeholders
    grids           of its queries and its keys, if they are places of an image
    missing         reason why its scores are not products of queries and keys; None: they are, or
                    it is unknown
    tracks          of its queries and its keys: see `Provenance.call`; None: not followed
    sequences       of its queries and of its keys, if the layer names them
    packed          calls of the texts in its row, in `generate_batch`; it then has no mask itself

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
    packed: tuple[LayerCall, ...] = ()
    index: int = 0
    graph: AttentionGraph = field(init=False)
    value_norms: Tensor | None = None
    ranges: RowRanges = None
    deviations: Sequence[float | None] = (None,)

    @classmethod
    def over_edges(cls, path: str, kind: str, graph: AttentionGraph) -> LayerCall:
        """Return the call of a layer over the edges of a graph, with its weights only."""
        batch, heads, queries, keys = graph.shape
        rows, columns = (graph.lse.new_zeros(batch, heads, size, 0) for size in (queries, keys))
        return cls(
            path, kind, rows, columns, columns, scale=1.0, weights_only=True, missing=OVER_EDGES
        )

    def arguments(self) -> JsonObject:
        """Return the keywords for `headloom.attend`."""
        names = ("mask", "bias", "relative", "scale", "softcap", "sinks")
        return {name: getattr(self, name) for name in names}

    @property
    def has_products(self) -> bool:
        """Whether the scores are products of known queries and keys."""
        return not self.weights_only and self.missing is None

    def products(self) -> tuple[Tensor, Tensor]:
        """Return queries and keys whose products are the scores."""
        if isinstance(self.score, Bilinear):
            # In float32: half precision would round the transformed queries once more.
            return self.queries.float() @ self.score.form().float(), self.keys.float()
        return self.queries, self.keys

    def mask_of(self, rows: Tensor) -> Tensor | None:
        """Return the mask of some queries, (batch or 1, heads or 1, rows, keys)."""
        if self.mask is None:
            return None
        keys = self.keys.shape[2]
        cells = [self.mask.cells(range(row, row + 1), keys, rows.device) for row in rows.tolist()]
        return torch.cat(cells, 2)

    def bias_of(self, rows: Tensor) -> Tensor | None:
        """Return the bias of some queries."""
        same_rows = self.bias is None or self.bias.shape[-2] == 1
        return self.bias if self.bias is None or same_rows else self.bias[..., rows, :]

    def changed(self, **values: object) -> LayerCall:
        """Return a copy with other values of some fields."""
        other = copy(self)
        for name, value in values.items():
            setattr(other, name, value)
        return other
