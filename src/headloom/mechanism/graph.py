"""Attention graph: the strongest edges of every query, and totals of all edges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from headloom.errors import InputError
from headloom.mechanism.drawn import DrawnHeads
from headloom.mechanism.parts import changed
from headloom.mechanism.shapes import describe, in_words, place_of, whole_number

if TYPE_CHECKING:
    import networkx
    import scipy.sparse

#: Largest number of slots of a row that may exceed the number of keys; see `Top`.
PLACES = 1024

#: Tensors of a graph; the last three only if requested.
TENSORS = (
    "keys", "scores", "weights", "lse", "entropy", "rest", "count",
    "received", "received_most", "received_last",
)  # fmt: skip

#: Cells above which `AttentionGraph.to_dense` needs force=True: 1 GiB of float32.
DENSE_LIMIT = 2**28


@dataclass(frozen=True)
class Top:
    """Keep the k strongest edges of every query.

    Each row has k slots; those past its last edge are empty. If k is larger than both 1,024 and the
    number of keys, a row has as many slots as the larger of the two.
    """

    k: int = 32

    def __post_init__(self) -> None:
        k = whole_number("Top", "k", self.k, 0, None)
        object.__setattr__(self, "k", k)  # as a Python int

    def places(self, keys: int) -> int:
        """Return the slots of a row for a number of keys: Top(32) has 32 even for 8 keys."""
        return self.k if self.k <= PLACES else min(self.k, max(keys, PLACES))


@dataclass(frozen=True)
class All:
    """Keep every edge: the dense matrix of weights."""


Keep = Top | All
#: Type of `keep` arguments: a number of edges of each query, or "all".
KeepLike = Keep | int | Literal["all"]


def as_keep(operation: str, keep: KeepLike) -> Keep:
    """Return the `Keep` of an argument: ``Top(32)`` for 32, ``All()`` for "all".

    Raises: InputError: it is something else.
    """
    if isinstance(keep, (Top, All)):
        return keep
    if isinstance(keep, str) and keep == "all":
        return All()
    try:
        return Top(keep)
    except InputError:
        raise InputError(
            f'{operation}: keep={in_words(keep)}; expected a number of edges, as 32, or "all".'
        ) from None


def _as_array(tensor: Tensor) -> np.ndarray:
    """Return a tensor as a NumPy array; half precision as float32, since NumPy has no bfloat16."""
    half = tensor.dtype in (torch.float16, torch.bfloat16)
    return (tensor.float() if half else tensor).detach().cpu().numpy()


@dataclass(frozen=True, eq=False)
class Row:
    """Query of one head: its kept edges, strongest first, and its totals."""

    keys: Tensor
    scores: Tensor
    weights: Tensor
    lse: float
    entropy: float
    rest: float
    count: int


@dataclass(frozen=True, eq=False)
class AttentionGraph(DrawnHeads):
    """Kept edges and row totals of one attention call.

    A weighted, directed graph: an edge leads from a query (row) to a key (column) that it attends
    to. Exact: the kept edges are the true strongest ones of each row, in a tie the lower key;
    ``weight = exp(score - lse)``; ``rest`` is the mass of all other edges.

    A batch gives a graph with a leading batch dimension in every tensor; ``graph[b]`` is one graph.

        keys, scores, weights   (heads, queries, k): key index, score before and weight after the
                                softmax, strongest first; past the last edge -1, -inf and 0
        lse                     (heads, queries): log-sum-exp of the row's scores and its sink; NaN
                                if one of them is NaN or infinity (then all weights of the row are
                                NaN)
        entropy                 (heads, queries): entropy of the row's weights, in nats
        rest                    (heads, queries): mass outside the kept edges, with the sink's
        count                   (heads, queries): number of visible keys, with a score above minus
                                infinity. Without a cell mask and a bias, kernels count every key
                                in a row's range, even if its product is minus infinity
        length                  number of keys: the columns of the matrix
        symmetric               whether score(i, j) = score(j, i) by construction

    If requested (see `headloom.attend`), else None; exact, over all weights of a column, kept or
    not, without the sink's mass:

        received                (heads, keys): sum of the weights on a key, sum_i w_ij
        received_most           (heads, keys): largest weight on a key, max_i w_ij
        received_last           (heads, keys): sum over the last queries only
    """

    _elsewhere: ClassVar[dict[str, str]] = {
        **dict.fromkeys(
            ("sum", "mean", "max", "argmax", "topk", "numpy"),
            'to_dense(), or headloom.attend(..., keep="all") for the weights as a tensor',
        ),
        **dict.fromkeys(("nodes", "edges", "neighbors"), "to_networkx(head)"),
    }

    keys: Tensor
    scores: Tensor
    weights: Tensor
    lse: Tensor
    entropy: Tensor
    rest: Tensor
    count: Tensor
    length: int
    symmetric: bool = False
    received: Tensor | None = None
    received_most: Tensor | None = None
    received_last: Tensor | None = None

    @property
    def batched(self) -> bool:
        """Whether there is a batch dimension."""
        return self.keys.ndim == 4

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the weight matrix: (heads, queries, keys), the batch before it if any."""
        return (*self.keys.shape[:-1], self.length)

    @property
    def k(self) -> int:
        """Largest number of kept edges of a row."""
        return self.keys.shape[-1]

    def __repr__(self) -> str:
        edges = int((self.keys >= 0).sum())
        return f"AttentionGraph(shape={self.shape}, k={self.k}, edges={edges:,})"

    def __getitem__(self, index: int | slice | Tensor | tuple[int, int]) -> Any:
        """Return one graph of a batch, ``graph[b]``, or one row, ``graph[head, query]``.

        ``graph[indices]`` of a list or tensor of integers is a batch of these graphs.
        """
        if isinstance(index, tuple):
            return self._row(index)
        if not self.batched:
            raise InputError(
                f"graph[{index}]: this graph has no batch. For one row, write graph[head, query]; "
                "for one head as a matrix, graph.adjacency(head)."
            )
        if not isinstance(index, slice | list | Tensor | np.ndarray):
            place = place_of("batch", "graph[b]", "graph", index, len(self))
            return self._map(lambda tensor: tensor[place])
        return self._map(lambda tensor: tensor[index])

    def _row(self, index: tuple[int, ...]) -> Row:
        operation = "graph[head, query]"
        self._one(operation)
        if len(index) != 2:
            raise InputError(f"{operation}: got {len(index)} numbers; expected a head and a query.")
        heads, queries = self.lse.shape
        head = place_of("graph", operation, "head", index[0], heads)
        query = place_of("graph", operation, "row", index[1], queries)
        kept = self.keys[head, query] >= 0
        return Row(
            self.keys[head, query][kept], self.scores[head, query][kept],
            self.weights[head, query][kept], float(self.lse.detach()[head, query]),
            float(self.entropy.detach()[head, query]), float(self.rest.detach()[head, query]),
            int(self.count[head, query]),
        )  # fmt: skip

    def __iter__(self) -> Iterator[AttentionGraph]:
        """Iterate over the graphs of a batch."""
        return (self[place] for place in range(len(self)))

    def __bool__(self) -> bool:
        """Return True, so that a graph without a batch, which has no len(), can be tested."""
        return True

    def __len__(self) -> int:
        """Return the number of graphs in a batch."""
        if not self.batched:
            raise InputError("len(graph): this graph has no batch; its sizes are in graph.shape.")
        return len(self.keys)

    def _map(self, change: Callable[[Tensor], Tensor]) -> AttentionGraph:
        parts = {name: getattr(self, name) for name in TENSORS}
        return changed(self, **{n: change(part) for n, part in parts.items() if part is not None})

    def of_head(self, head: int) -> AttentionGraph:
        """Return one head of a graph without a batch."""
        self._one("of_head")
        head = place_of("graph", "of_head", "head", head, len(self.lse))
        return self._map(lambda tensor: tensor[head : head + 1])

    def of_places(self, places: int) -> AttentionGraph:
        """Return the graph with at most this number of slots, and edges, in a row."""
        if self.k <= places:
            return self
        cut = {n: getattr(self, n)[..., :places] for n in ("keys", "scores", "weights")}
        return changed(self, **cut)

    def above(self, weight: float) -> AttentionGraph:
        """Return the graph without edges below a weight; their mass is added to `rest`."""
        kept = (self.keys >= 0) & (self.weights >= weight)
        places = int(kept.sum(-1).max()) if kept.numel() else 0
        dropped = self.weights.masked_fill(kept, 0).sum(-1)
        padding = {"keys": -1, "scores": -np.inf, "weights": 0}
        cut = {
            name: getattr(self, name).masked_fill(~kept, value)[..., :places]
            for name, value in padding.items()
        }
        return changed(self, **cut, rest=self.rest + dropped)

    def as_batch(self) -> AttentionGraph:
        """Return this graph as a batch of one."""
        self._one("as_batch")
        return self._map(lambda tensor: tensor[None])

    def detach(self) -> AttentionGraph:
        """Return the graph, detached from autograd."""
        return self._map(Tensor.detach)

    def cpu(self) -> AttentionGraph:
        """Return the graph on the CPU."""
        return self._map(Tensor.cpu)

    def _one(self, operation: str) -> None:
        if self.batched:
            raise InputError(
                f"{operation}: the graph has a batch of {len(self.keys)}. Choose one, as in "
                "graph[0]."
            )

    def _edges(self, operation: str, head: int) -> tuple[np.ndarray, ...]:
        """Return query, key, score and weight of every kept edge of a head."""
        self._one(operation)
        head = place_of("graph", operation, "head", head, self.keys.shape[0])
        rows, places = (self.keys[head] >= 0).nonzero(as_tuple=True)
        columns = self.keys[head, rows, places]
        scores, weights = (part[head, rows, places] for part in (self.scores, self.weights))
        return tuple(_as_array(tensor) for tensor in (rows, columns, scores, weights))

    def adjacency(self, head: int, of: str = "weights") -> scipy.sparse.csr_array:
        """Return the kept edges of a head as a sparse matrix; rows are queries, columns keys.

        Args:
            head: index of the head.
            of: "weights" or "scores".

        Returns: scipy.sparse.csr_array, (queries, keys), columns of a row in ascending order.
        """
        import scipy.sparse

        if not isinstance(of, str) or of not in ("weights", "scores"):
            raise InputError(f'adjacency: of={in_words(of)}; expected "weights" or "scores".')
        rows, columns, scores, weights = self._edges("adjacency", head)
        _, queries, keys = self.shape
        matrix = scipy.sparse.csr_array(
            (weights if of == "weights" else scores, (rows, columns)), shape=(queries, keys)
        )
        matrix.sort_indices()
        return matrix

    def to_dense(self, force: bool = False) -> Tensor:
        """Return the kept weights as a dense tensor of the graph's `shape`, 0 elsewhere.

        A row with a score of NaN or infinity is NaN, as with softmax.

        force: build it even if it takes more than 1 GiB.
        """
        cells = int(np.prod(self.shape))
        if cells > DENSE_LIMIT and not force:
            raise InputError(
                f"to_dense: {describe(self.keys)} edges make a matrix of {self.shape}, "
                f"{cells * self.weights.element_size() / 2**30:.1f} GiB. Use adjacency(head), or "
                "to_dense(force=True)."
            )
        # Empty slots write into one extra column, which is cut off.
        columns = torch.where(self.keys >= 0, self.keys, self.length).long()
        matrix = self.weights.new_zeros(*self.shape[:-1], self.length + 1)
        matrix = matrix.scatter(-1, columns, self.weights)[..., :-1]
        return matrix.masked_fill(self.lse.isnan()[..., None], torch.nan)

    dense = to_dense  # its name in older code

    def strength(self) -> Tensor:
        """Return the in-strength: the sum of the kept weights on each key, (heads, keys).

        A lower bound of the column sums of the whole matrix, which are `received`, if requested;
        the total mass left out is ``graph.rest.sum(-1)``.
        """
        columns = torch.where(self.keys >= 0, self.keys, self.length).long().flatten(-2)
        strength = self.weights.new_zeros(*self.keys.shape[:-2], self.length + 1)
        return strength.scatter_add(-1, columns, self.weights.flatten(-2))[..., :-1]

    def to_networkx(
        self, head: int, *, one_sequence: bool | None = None
    ) -> networkx.DiGraph | networkx.Graph:
        """Return a head as a NetworkX graph with `score` and `weight` on its edges.

        Self-attention has one node for each token, 0, 1, ...; cross-attention the nodes
        ("query", i) and ("key", j). It is a DiGraph; if the score is symmetric and no pair is
        masked, a Graph with scores only (weights are never symmetric: each row has its own sum).

        one_sequence: whether queries and keys are the same tokens; None: if their numbers agree.
        """
        import networkx

        rows, columns, scores, weights = self._edges("to_networkx", head)
        _, queries, keys = self.shape
        one_sequence = queries == keys if one_sequence is None else one_sequence
        unmasked = bool((self.count[head] == self.length).all())
        undirected = self.symmetric and one_sequence and unmasked
        graph = networkx.Graph() if undirected else networkx.DiGraph()
        first: list[object] = [*range(queries)]
        second = first
        if not one_sequence:
            first, second = [("query", i) for i in first], [("key", j) for j in range(keys)]
        graph.add_nodes_from(first)
        graph.add_nodes_from(second)
        edges = zip(rows.tolist(), columns.tolist(), scores.tolist(), weights.tolist(), strict=True)
        for i, j, score, weight in edges:
            values = {"score": score} if undirected else {"score": score, "weight": weight}
            graph.add_edge(first[i], second[j], **values)
        return graph
