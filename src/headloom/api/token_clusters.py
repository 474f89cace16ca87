"""What `headloom clusters` was asked: a row for each layer, or the clusters of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headloom.analysis.graphs.table import layer_source
from headloom.analysis.graphs.token_clusters import TokenClusters, token_clusters
from headloom.errors import InputError
from headloom.formats.trace import TraceData, TraceLayer, layer_number
from headloom.mechanism.shapes import place_of

__all__ = ["LayerClusters", "chosen_layers", "clusters_of"]


@dataclass(frozen=True)
class LayerClusters:
    """The clusters of one layer's mean over heads, or of one head.

    label: the layer as people read it; source: "exact", "rounded" (of queries and keys in half
    precision) or "kept".
    """

    number: int
    label: str
    layer: TraceLayer
    head: int | None
    clusters: TokenClusters
    source: str

    @property
    def graph(self) -> int:
        """Which of the rows of `clusters` is asked about."""
        return self.head or 0


def chosen_layers(trace: TraceData, layer: str | None) -> list[int]:
    """The numbers of the layers to divide: one, or all in which a sequence looks at itself.

    Raises: InputError: there is no such layer, or none of that kind.
    """
    if layer is not None:
        return [layer_number(trace, layer)]
    fitting = [
        number for number, each in enumerate(trace.layers) if each.one_sequence and all(each.shape)
    ]
    if not fitting:
        raise InputError(
            "token_clusters: in no layer of the trace does a sequence look at itself; expected a "
            "layer of as many keys as queries."
        )
    return fitting


def clusters_of(
    trace: TraceData,
    number: int,
    head: int | None,
    count: int | None,
    without: Sequence[int],
    exact: bool | None,
) -> LayerClusters:
    """Divide one layer. Raises: InputError, ShapeError: see `token_clusters`."""
    layer = trace.layers[number]
    if head is not None:
        head = place_of("layer", "token_clusters", "head", head, layer.heads)
    source, name = layer_source("token_clusters", layer, exact)
    found = token_clusters(source, count, together=head is None, without=without)
    return LayerClusters(number, trace.label(number), layer, head, found, name)
