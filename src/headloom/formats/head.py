"""`Head`: one head of a traced layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from torch import Tensor

from headloom.errors import Hints
from headloom.formats.tokens import shown, visible
from headloom.mechanism.drawn import Drawn

if TYPE_CHECKING:
    import networkx
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from headloom.formats.trace import TraceLayer


@dataclass(frozen=True, eq=False, repr=False)
class Head(Drawn, Hints):
    """One head of a layer of a trace: ``trace[layer, head]``.

    layer: the layer that it belongs to; number: its place among the heads of the layer.
    """

    layer: TraceLayer
    number: int

    _elsewhere: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("to_frame", "to_dataframe", "df"), "to_pandas()"),
        **dict.fromkeys(("numpy", "to_numpy"), "numpy.asarray(head)"),
        **dict.fromkeys(("matrix", "attention", "values", "tensor"), "weights"),
        **dict.fromkeys(("sum", "mean", "max", "argmax", "topk", "detach"), "weights, a tensor"),
        "tokens": "layer.query_tokens, or layer.key_tokens",
    }

    @property
    def shape(self) -> tuple[int, int]:
        """(queries, keys)."""
        return self.layer.shape[1:]

    @cached_property
    def exact(self) -> bool:
        """Whether `weights` are all that the model had: no edge is missing."""
        return self.layer.matrix is not None or self.layer.data.keeps_every_edge

    @cached_property
    def weights(self) -> Tensor:
        """The weights, (queries, keys): each row is how a query spreads its attention.

        All of them where the trace has the layer's queries and keys, or every edge (`exact`); else
        those of the kept edges, with 0 for every other.

        Raises: InputError: they are more than a gigabyte; ask for tiles of ``layer.matrix``.
        """
        layer, every = self.layer, self.layer.data.keeps_every_edge
        matrix = None if every and layer.half_precision else layer.normalised_matrix
        source = layer.graph if matrix is None else matrix
        return source.of_head(self.number).dense()[0]

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.weights.cpu().numpy(), dtype)

    def __getitem__(self, index: object) -> Tensor:
        """``head[query, key]``, a row or a tile, as of the tensor `weights`."""
        return self.weights[index]  # type: ignore[index]

    def __len__(self) -> int:
        return self.shape[0]

    def to_pandas(self) -> pandas.DataFrame:
        """The weights as a table: query tokens are its index, key tokens its columns.

        Rows and columns stand in the order of the tokens, of which several may be equal.
        """
        import pandas

        layer = self.layer
        index = pandas.Index(shown(layer.query_tokens), name="query")
        columns = pandas.Index(shown(layer.key_tokens), name="key")
        return pandas.DataFrame(np.asarray(self), index, columns)

    def to_networkx(self, threshold: float = 0.0) -> networkx.DiGraph | networkx.Graph:
        """The kept edges as a NetworkX graph: `score` and `weight` on them, tokens on the nodes.

        Nodes are 0, 1, ... where a sequence looks at itself, else ("query", i) and ("key", j); each
        has its `token`, its `label`, the token as it is shown, by which Gephi names it in GraphML
        and GEXF (`networkx.write_gexf`), its `position` and its `sequence`. The graph has the
        `name`, `kind` and `index` of the layer, and the `head`.

        threshold: the least weight of an edge.
        """
        layer, head = self.layer, self.number
        edges = layer.graph.of_head(head)
        edges = edges.above(threshold) if threshold else edges
        graph = edges.to_networkx(0, one_sequence=layer.one_sequence)
        graph.graph.update(name=layer.name, kind=layer.kind, index=layer.index, head=head)
        tokens = {"query": shown(layer.query_tokens), "key": shown(layer.key_tokens)}
        names = {"query": layer.queries_from, "key": layer.keys_from}
        for node, values in graph.nodes(data=True):
            side, position = node if isinstance(node, tuple) else ("query", node)
            token = tokens[side][position]
            values |= {"token": token, "label": visible(token, 1000)}
            values |= {"position": position, "sequence": names[side]}
        return graph

    def plot(
        self, ax: Axes | Figure | None = None, width: float | None = None, **imshow: Any
    ) -> Axes:
        """Draw the weights, tokens on both axes: see `headloom.TraceLayer.plot`."""
        drawn: Axes = self.layer.plot(self.number, ax=ax, width=width, **imshow)
        return drawn

    def __repr__(self) -> str:
        kept = "" if self.exact else f", {self.layer.graph.k} kept edges of each query"
        return f"Head({self.number} of {self.layer.name!r}, shape={self.shape}{kept})"
