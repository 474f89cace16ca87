"""`TraceLayer`, a layer of a trace, and `Head`, a head of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from headloom.formats.layer_data import LayerData
from headloom.formats.terms import Terms
from headloom.formats.tokens import shown, visible
from headloom.mechanism.drawn import Drawn, DrawnHeads
from headloom.mechanism.graph import AttentionGraph
from headloom.mechanism.matrix.attention_matrix import AttentionMatrix
from headloom.mechanism.shapes import place_of

if TYPE_CHECKING:
    import networkx
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class TraceLayer(DrawnHeads):
    """One attention call of a model.

        name           its path in the model
        kind           "encoder" (self-attention), "decoder" (causal self-attention) or "cross"
                       (the target attends to the source)
        index          its number among the layers of its kind, from 0
        shape          (heads, queries, keys)
        queries_from   the sequence of its queries: "tokens", "source" or "target"
        keys_from      the sequence of its keys
        query_tokens   a token for each row of the weight matrix
        key_tokens     a token for each column
        scale          the factor on the scores
        positions      relative positions: "none", "shaw", "alibi", "rotary" or "bias" (added to
                       the scores, as by T5). With "shaw", "alibi" and "bias", scores are more
                       than scale * queries . keys
        mask           "all", "causal", "window" or "ranges" (one range of keys for each query)
                       where the rule is known, else None
        softcap        c, where scores are c tanh(scale * queries . keys / c), else None
        deviation      largest difference, on a sample of rows, between the recorded attention and
                       the model's own (outputs and weights); None: not measured

    Data on disk are read at first use.
    """

    _elsewhere: ClassVar[dict[str, str]] = {
        name: f"layer[head].{name}" for name in ("weights", "to_pandas", "to_networkx", "exact")
    } | dict.fromkeys(("attention", "attentions", "dense", "numpy"), "layer[head].weights")

    name: str
    kind: str
    index: int
    shape: tuple[int, int, int]
    queries_from: str
    keys_from: str
    query_tokens: list[str]
    key_tokens: list[str]
    scale: float
    data: LayerData = field(repr=False)
    positions: str = "none"
    mask: str | None = None
    softcap: float | None = None
    deviation: float | None = None

    @property
    def heads(self) -> int:
        """Number of heads."""
        return self.shape[0]

    @property
    def one_sequence(self) -> bool:
        """Whether this is self-attention: queries and keys are the same tokens."""
        return self.queries_from == self.keys_from and self.shape[1] == self.shape[2]

    @cached_property
    def graph(self) -> AttentionGraph:
        """Attention graph of the layer."""
        return self.data.graph

    @cached_property
    def _queries_keys(self) -> tuple[Tensor, Tensor] | None:
        return self.data.queries_keys

    @property
    def queries(self) -> Tensor | None:
        """Queries as they were scored, (heads, queries, depth), where they were kept."""
        return None if self._queries_keys is None else self._queries_keys[0]

    @property
    def keys(self) -> Tensor | None:
        """Keys as they were scored, (kv_heads, keys, depth), where they were kept."""
        return None if self._queries_keys is None else self._queries_keys[1]

    @cached_property
    def terms(self) -> Terms | None:
        """Mask, biases and sinks that enter the weights beside queries and keys; None: unknown."""
        return self.data.terms

    @cached_property
    def value_norms(self) -> Tensor | None:
        """Euclidean norm of each value, |v_j|, (kv_heads, keys); None: they were not kept.

        Head h reads the values of kv head ``h // (heads / kv_heads)``. ``w_ij |v_j|`` is how much
        key j gives to the output of query i (Kobayashi et al. 2020, without the projection).
        Values that relative positions add are not included.
        """
        return self.data.value_norms

    @cached_property
    def matrix(self) -> AttentionMatrix | None:
        """Exact weight matrix as an operator, never stored as a whole; None: see `no_matrix`.

        Any tile, ``matrix[head, i0:i1, j0:j1]``, is recomputed from queries, keys and the rows'
        log-sum-exp; for products, column sums and the rest see `headloom.AttentionMatrix`. It is as
        exact as the stored type of queries and keys: with half precision, scores are rounded and
        the log-sum-exp is the model's, so that a row sums to 1 only approximately; see
        `normalised_matrix`.
        """
        # Only the rows are read: a tile needs no edges.
        return None if self.no_matrix is not None else self._operator(self.data.lse)

    @cached_property
    def normalised_matrix(self) -> AttentionMatrix | None:
        """Weights of the stored queries and keys; each row sums to 1.

        Equal to `matrix` unless queries and keys are stored in half precision: each row then has
        the log-sum-exp of its own rounded scores, which takes one pass over queries and keys.
        Measures over whole rows use it, so that shares are at most 1.
        """
        rounded = self.matrix is not None and self.half_precision
        return self._operator(None) if rounded else self.matrix

    @property
    def half_precision(self) -> bool:
        """Whether queries and keys are stored, in float16 or bfloat16."""
        return self.queries is not None and self.queries.dtype in (torch.float16, torch.bfloat16)

    def _operator(self, lse: Tensor | None) -> AttentionMatrix:
        """Return the weight matrix of queries and keys; lse: of each row; None: computed."""
        terms, tensors = self.terms, self._queries_keys
        assert terms is not None and tensors is not None
        return AttentionMatrix(
            # Half precision is for storage only; scores are computed in float32.
            *(tensor.float() for tensor in tensors), mask=terms.mask, bias=terms.bias,
            relative=terms.relative, scale=self.scale, softcap=self.softcap, sinks=terms.sinks,
            lse=lse,
        )  # fmt: skip

    @property
    def no_matrix(self) -> str | None:
        """Reason why the layer has no `matrix`; None: it has one."""
        if self.terms is not None and self.terms.missing is not None:
            return self.terms.missing
        if self._queries_keys is None:
            return "its queries and keys were not kept"
        if self.terms is None:
            return "what enters its scores besides queries and keys was not kept"
        return None

    def __getitem__(self, head: int) -> Head:
        """Return a head, ``layer[2]``; -1 is the last one. Raises: InputError: no such head."""
        return Head(self, place_of("layer", self.name, "head", head, self.heads))

    def __len__(self) -> int:
        """Return the number of heads."""
        return self.heads

    def __iter__(self) -> Iterator[Head]:
        return (self[head] for head in range(self.heads))

    def __repr__(self) -> str:
        verified = "" if self.deviation is None else f", deviation={self.deviation:.1e}"
        return f"TraceLayer({self.name!r}, kind={self.kind!r}, shape={self.shape}{verified})"


@dataclass(frozen=True, eq=False, repr=False)
class Head(Drawn):
    """One head of a layer of a trace: ``trace[layer, head]``.

    layer: its layer; number: its head index in the layer.
    """

    layer: TraceLayer
    number: int

    _elsewhere: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("to_frame", "to_dataframe", "df"), "to_pandas()"),
        **dict.fromkeys(("matrix", "attention", "values", "tensor"), "weights"),
        "tokens": "layer.query_tokens, or layer.key_tokens",
    }

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Take methods of tensors, such as sum and numpy, from `weights`."""
            if name not in self._elsewhere and name[0] != "_" and hasattr(Tensor, name):
                return getattr(self.weights, name)
            return super().__getattr__(name)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape, (queries, keys)."""
        return self.layer.shape[1:]

    @cached_property
    def exact(self) -> bool:
        """Whether `weights` are complete: no edge of the model is missing."""
        return self.layer.matrix is not None or self.layer.data.keeps_every_edge

    @cached_property
    def weights(self) -> Tensor:
        """Weights, (queries, keys): each row is the attention of one query.

        Complete where the trace has the layer's queries and keys, or every edge (`exact`); else
        only the kept edges, with 0 elsewhere.

        Raises: InputError: they take more than a gigabyte; use tiles of ``layer.matrix``.
        """
        layer, complete = self.layer, self.layer.data.keeps_every_edge
        matrix = None if complete and layer.half_precision else layer.normalised_matrix
        source = layer.graph if matrix is None else matrix
        return source.of_head(self.number).to_dense()[0]

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.weights.cpu().numpy(), dtype)

    def __getitem__(self, index: object) -> Tensor:
        """Index the tensor `weights`: ``head[query, key]``, a row or a tile."""
        return self.weights[index]  # type: ignore[index]

    def to_pandas(self) -> pandas.DataFrame:
        """Return the weights as a table: query tokens are its index, key tokens its columns.

        Rows and columns are in the order of the tokens, so labels can repeat.
        """
        import pandas

        layer = self.layer
        index = pandas.Index(shown(layer.query_tokens), name="query")
        columns = pandas.Index(shown(layer.key_tokens), name="key")
        return pandas.DataFrame(np.asarray(self), index, columns)

    def to_networkx(self, threshold: float = 0.0) -> networkx.DiGraph | networkx.Graph:
        """Return the kept edges as a NetworkX graph, with `score` and `weight`, tokens on nodes.

        Nodes are 0, 1, ... for self-attention, else ("query", i) and ("key", j). A node has its
        `token`, its `label` (the displayed token, the name that Gephi shows from GraphML and
        GEXF, `networkx.write_gexf`), its `position` and its `sequence`. The graph has the `name`,
        `kind` and `index` of the layer, and the `head`.

        threshold: least weight of an edge.
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
        self, ax: Axes | Figure | None = None, width: float | None = None, **imshow: object
    ) -> Axes:
        """Draw the weights, tokens on both axes: see `headloom.TraceLayer.plot`."""
        drawn: Axes = self.layer.plot(self.number, ax=ax, width=width, **imshow)
        return drawn

    def __repr__(self) -> str:
        kept = "" if self.exact else f", {self.layer.graph.k} kept edges of each query"
        return f"Head({self.number} of {self.layer.name!r}, shape={self.shape}{kept})"
