"""What a graph of kept edges says of the whole matrix: an interval that holds the true value.

A row's kept edges are its strongest and exact; their mass and `rest` are known. So what was left
out of row i has the mass ``mass_i`` in all, and no single weight of it is above ``largest_i``:

    mass_i = rest_i where some key was left out, else 0
    largest_i = min(mass_i, smallest kept weight of the row)

A sink's mass is part of `rest`, which makes intervals wider, never wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headloom.errors import InputError
from headloom.mechanism.graph import AttentionGraph
from headloom.mechanism.matrix.attention_matrix import AttentionMatrix

__all__ = [
    "Interval",
    "Source",
    "check_numbers",
    "column_maxima",
    "keeps_all",
    "left_out",
    "mass_on_keys",
    "to_others",
]

#: What a measure is taken from: all weights, or the kept edges.
Source = AttentionMatrix | AttentionGraph


@dataclass(frozen=True, eq=False)
class Interval:
    """Two numbers, or tensors of them, that the true value lies between; equal where it is known.

    >>> Interval(torch.tensor([0.25]), torch.tensor([0.75])).middle
    tensor([0.5000])
    """

    lower: Tensor
    upper: Tensor

    @classmethod
    def exactly(cls, value: Tensor) -> Interval:
        """Both ends at a value that is known, float64."""
        return cls(value.double(), value.double())

    @property
    def middle(self) -> Tensor:
        """Halfway: off by half the width at most."""
        return (self.lower + self.upper) / 2

    @property
    def width(self) -> Tensor:
        """How much is not known."""
        return self.upper - self.lower


def check_numbers(source: Source, measure: str) -> None:
    """Refuse weights that are not numbers, which a sum would hide or spread.

    Raises: InputError: a row whose log-sum-exp is NaN.

    >>> import headloom
    >>> check_numbers(headloom.AttentionMatrix(torch.ones(1, 2, 1), torch.ones(1, 2, 1)),
    ...               "received")
    """
    broken = source.lse.isnan()
    if broken.any():
        head, query = broken.nonzero()[0].tolist()
        raise InputError(
            f"{measure}: the weights of head {head}, query {query} are not numbers (NaN), since "
            "the model's queries or keys were not. All such rows of a trace: headloom query TRACE "
            '"select layer, head, query from rows where isnan(lse)".'
        )


def keeps_all(graph: AttentionGraph) -> bool:
    """Whether every key that a row may look at is among its kept edges: then all is known.

    >>> import headloom
    >>> tokens = torch.eye(3)[None]
    >>> graphs = [headloom.attend(tokens, tokens, tokens, keep=headloom.Top(k))[1] for k in (2, 3)]
    >>> [keeps_all(graph) for graph in graphs]
    [False, True]
    """
    return bool((graph.count <= (graph.keys >= 0).sum(-1)).all())


def mass_on_keys(graph: AttentionGraph, sinks: Tensor) -> Tensor:
    """What each row has on its keys where a sink takes the rest, (heads, queries), float64.

        m_i = 1 - e^(sink - lse_i), 0 of a row without keys

    sinks: the logit of each head's sink, (heads,).

    >>> import math, headloom
    >>> tokens, sinks = torch.eye(3)[None], torch.tensor([math.log(4)])   # rows of 2, 1, 1, and 4
    >>> _, graph = headloom.attend(
    ...     tokens, tokens, tokens, scale=math.log(2), sinks=sinks, keep=headloom.Top(1)
    ... )
    >>> mass_on_keys(graph, sinks)
    tensor([[0.5000, 0.5000, 0.5000]], dtype=torch.float64)
    """
    taken = (sinks[:, None].double() - graph.lse.double()).exp()
    return torch.where(graph.count > 0, (1 - taken).clamp(0, 1), 0.0)


def left_out(graph: AttentionGraph, masses: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The mass of each row on keys that were not kept, and the largest weight among them at most.

    masses: what each row has on all its keys, (heads, queries), where a sink's share is known;
    None: what a sink takes counts as left out.

    Returns: two tensors, (heads, queries).

    >>> import math, headloom
    >>> tokens = torch.eye(3)[None]                    # rows of 2, 1, 1 quarters
    >>> _, graph = headloom.attend(tokens, tokens, tokens, scale=math.log(2), keep=headloom.Top(1))
    >>> [float(part[0, 0]) for part in left_out(graph)]
    [0.5, 0.5]
    """
    kept = (graph.keys >= 0).sum(-1)
    some = kept < graph.count
    rest = graph.rest if masses is None else masses - graph.weights.sum(-1, dtype=torch.float64)
    mass = torch.where(some, rest.clamp(min=0), 0.0)
    if graph.k == 0:
        return mass, mass
    # Rows are sorted: the last edge is the smallest. Of a row that keeps none nothing is known.
    last = graph.weights.gather(-1, (kept - 1).clamp(min=0)[..., None])[..., 0]
    smallest = torch.where(kept > 0, torch.where(some, last, 0.0), mass.to(last.dtype))
    return mass, torch.minimum(mass, smallest)


def column_maxima(graph: AttentionGraph, weights: Tensor, largest: Tensor) -> Tensor:
    """The largest weight of each column at most, (heads, keys), float64.

    weights: of the kept edges, as the graph's; largest: of each row's others, at most.
    """
    there = torch.where(graph.keys >= 0, graph.keys, graph.length).long().flatten(-2)
    maxima = weights.new_zeros(graph.keys.shape[0], graph.length + 1, dtype=torch.float64)
    maxima = maxima.scatter_reduce(-1, there, weights.double().flatten(-2), "amax")[..., :-1]
    if not largest.shape[-1]:
        return maxima
    return torch.maximum(maxima, largest.double().max(-1, keepdim=True).values)


def to_others(graph: AttentionGraph, amounts: Tensor) -> Tensor:
    """What each key gets where every row gives something to each key that it did not keep.

    amounts: (heads, queries). Returns: (heads, keys).
    """
    there = torch.where(graph.keys >= 0, graph.keys, graph.length).long().flatten(-2)
    known = amounts.new_zeros(*amounts.shape[:-1], graph.length + 1)
    kept = amounts[..., None].expand(graph.keys.shape).flatten(-2)
    known = known.scatter_add(-1, there, kept)[..., :-1]
    return (amounts.sum(-1, keepdim=True) - known).clamp(min=0)
