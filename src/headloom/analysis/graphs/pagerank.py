"""PageRank: the stationary distribution of a walk along the weights.

    r = d P^T r + (1 - d) / n,    P the weights, each row divided by its sum

A walker at query i goes on to key j with the probability d P_ij, or else to any position. A row
without mass leads everywhere alike. r sums to 1.

Source: Page et al. 1999. Every result comes with a bound on its error, whose derivation stands at
`_of_matrix` for all weights and at `_of_edges` for the kept edges.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from headloom.analysis.arguments import check_source, real_number
from headloom.analysis.graphs.head_average import average_edges
from headloom.analysis.interval import Source, check_numbers, column_maxima, left_out, to_others
from headloom.errors import InputError, ShapeError
from headloom.mechanism.graph import AttentionGraph
from headloom.mechanism.matrix.attention_matrix import AttentionMatrix
from headloom.mechanism.shapes import check_type, whole_number

__all__ = ["PageRank", "pagerank"]

#: What float32 rounds in a product with a matrix whose rows sum to 1, as a share of the whole.
ROUNDING = 2.0**-20
#: Weights up to which a layer's are formed, a head at a time.
DENSE_CELLS = 2**24

#: Products of conjugate residuals before they start anew.
CYCLE = 40
#: Products, at most, unless the caller says more.
STEPS = 2_000
#: Products with kept edges that guess the next step of an exact solution.
GUESSES = 8


@dataclass(frozen=True, eq=False)
class PageRank:
    """The PageRank of each head, and of the mean of a layer's heads.

    heads: (heads, positions); mean: (positions,); each sums to 1.
    bound, mean_bound: alike: no entry is further than this from the true one.
    """

    heads: Tensor
    mean: Tensor
    bound: Tensor
    mean_bound: Tensor


def pagerank(
    source: Source,
    *,
    damping: float = 0.85,
    tolerance: float = 1e-6,
    steps: int = STEPS,
    edges: AttentionGraph | None = None,
) -> PageRank:
    """The PageRank of every head, and of their mean.

    Args:
        source: all weights, or the kept edges, of a sequence that looks at itself.
        damping: d, how often the reader follows the weights; 0 to less than 1.
        tolerance: what the error of solving the equation is to be, summed over positions. Where
            the products are float32's, so is what can be had: `bound` says what was.
        steps: products at most.
        edges: kept edges of the same matrix: they speed up the exact solution.

    Raises: ShapeError: there are not as many keys as queries. InputError: damping is not below 1,
    or the tolerance was not reached in so many steps.

    >>> import headloom
    >>> ahead = torch.tensor([[[0.0, 99.0], [0.0, 99.0]]])       # both look at position 1
    >>> _, graph = headloom.attend(ahead, torch.eye(2)[None], ahead, scale=1.0,
    ...                             keep=headloom.Top(2))
    >>> pagerank(graph, damping=0.5).mean.round(decimals=4)      # r_0 = (1 - 0.5) / 2
    tensor([0.2500, 0.7500])
    """
    check_source("pagerank", source)
    damping = real_number("pagerank", "damping", damping, below=True)
    tolerance = real_number("pagerank", "tolerance", tolerance, most=math.inf, above=True)
    steps = whole_number("pagerank", "steps", steps, 1)
    if edges is not None:
        check_type("pagerank", "edges", edges, AttentionGraph, "kept edges, layer.graph, or None")
        if edges.shape != source.shape:
            raise ShapeError(
                f"pagerank: edges of {tuple(edges.shape)} for weights {tuple(source.shape)}; "
                "expected kept edges of the same layer."
            )
    heads, queries, keys = source.shape
    if queries != keys:
        raise ShapeError(
            f"pagerank: {queries} queries and {keys} keys; expected as many keys as queries, of a "
            "sequence that looks at itself."
        )
    check_numbers(source, "pagerank")
    if not queries:
        nothing = torch.zeros(heads, 0)
        return PageRank(nothing, torch.zeros(0), nothing, torch.zeros(0))
    if isinstance(source, AttentionGraph):
        return _of_edges(source, damping, tolerance, steps)
    if heads * queries * keys <= DENSE_CELLS:
        return _of_weights(source, damping, tolerance)
    return _of_matrix(source, damping, tolerance, steps, edges)


def _of_edges(graph: AttentionGraph, damping: float, tolerance: float, steps: int) -> PageRank:
    """From the kept edges K; what was left out of a row is spread over the keys it may look at.

    With s the sum of a row, which lies between that of its kept edges and that with all that was
    left out, a sink's share included, and K each kept weight over the most that s can be: L, the
    solution for K alone, is at most r and at most the estimate, entry by entry (all terms of the
    series sum_t (d P^T)^t are larger). Both sum to 1, so e = r - L sums to m = 1 - sum_j L_j; and
    since e = d P^T e + d (P - K)^T L,

        0 <= e_j <= min(m, d m c_j + d sum_i L_i l_i + d sum_i L_i (w_ij / least s - K_ij))

    the first sum over rows that left key j out, the second over those that kept it, with c_j the
    largest weight of column j and l_i the largest that row i left out, over the least s, at most.
    The estimate is off by e_j or by how far it is above L_j, whichever is more.
    """
    walk = _Walk(graph)
    start = torch.full((graph.keys.shape[0] + 1, graph.length), (1 - damping) / graph.length)
    start = start.double()
    ranks, error = _solve(walk, start, start / (1 - damping), damping, tolerance, steps)
    _check_reached(error, damping, tolerance, steps)
    lower, doubt = _solve(walk.alone, start, ranks, damping, tolerance, steps)
    _check_reached(doubt, damping, tolerance, steps)
    missing = (1 - lower.sum(-1, keepdim=True)).clamp(min=0)
    kept = graph.weights.double().sum(-1)
    over = torch.where(kept > 0, 1 / kept.clamp(min=1e-300), 1.0)
    largest = left_out(graph)[1].double() * over
    column = column_maxima(graph, graph.weights * over[..., None], largest)
    others = to_others(graph, largest * lower[:-1])
    # A row of the mean walk is the sum of its heads' rows over the sum of their masses.
    share = torch.where(kept.sum(0) > 0, 1 / kept.sum(0).clamp(min=1e-300), 1.0)
    largest = left_out(graph)[1].double() * share
    others = torch.cat((others, to_others(graph, largest * lower[-1]).sum(0, keepdim=True)))
    of_mean = column_maxima(graph, graph.weights * share[:, None], largest).sum(0, keepdim=True)
    column = torch.cat((column, torch.minimum(column.amax(0, keepdim=True), of_mean)))
    others += walk.doubt(lower)
    more = torch.minimum(missing, damping * (missing * column + others))
    bound = torch.maximum(more, (ranks - lower).clamp(min=0))
    return _result(ranks, bound + (error + doubt)[:, None])


def _of_weights(matrix: AttentionMatrix, damping: float, tolerance: float) -> PageRank:
    """From the weights themselves: P is formed, and the equation solved in float64, by head."""
    heads, length, _ = matrix.shape
    start = torch.full((length,), (1 - damping) / length, dtype=torch.float64)
    by_head, errors = [], []

    def solve(weights: Tensor) -> None:
        sums = weights.sum(-1, keepdim=True)
        blind = sums <= 0
        walk = torch.where(blind, 1 / length, weights / sums.masked_fill(blind, 1)).T
        ranks = torch.linalg.solve(torch.eye(length, dtype=torch.float64) - damping * walk, start)
        by_head.append(ranks)
        errors.append((start - ranks + damping * (walk @ ranks)).abs().sum() / (1 - damping))

    mean = torch.zeros(length, length, dtype=torch.float64)
    for head in range(heads):
        weights = matrix[head, :, :].double()
        mean += weights / heads
        solve(weights)
    solve(mean)
    error = torch.stack(errors)
    _check_reached(error, damping, tolerance, 0)
    error = error + damping / (1 - damping) * _rounding(matrix)
    return _result(torch.stack(by_head), error[:, None].expand(-1, length))


def _of_matrix(
    matrix: AttentionMatrix,
    damping: float,
    tolerance: float,
    steps: int,
    edges: AttentionGraph | None,
) -> PageRank:
    """From products with the whole transposed matrix, for all heads and for their mean at once.

    They solve ``(I - d P^T) r = (1 - d) / n``: generalized conjugate residuals, and where these
    stand still, ``r <- d P^T r + (1 - d) / n``, of which every step divides the bound by 1 / d at
    least. The residual bounds the error, |r - r*|_1 <= |residual|_1 / (1 - d), since no column of
    P^T sums to more than 1. Added to it is what float32 rounds: in a product 2^-20 of its sum at
    most, and of a weight by its score, see `_rounding`.

    Source: Eisenstat, Elman and Schultz 1983 (the solver).
    """
    heads, length, _ = matrix.shape
    sums = (matrix @ torch.ones(length)).double()
    sums = torch.cat((sums, sums.mean(0, keepdim=True)))

    def walk(state: Tensor) -> Tensor:
        along, lost = _divided(state, sums)
        # Each head carries its own vector and that of the mean.
        vectors = torch.stack((along[:-1], along[-1:].expand(heads, -1)), -1).float()
        products = (matrix.T @ vectors).double()
        moved = torch.cat((products[..., 0], products[..., 1].mean(0, keepdim=True)))
        return moved + lost / length

    start = torch.full((heads + 1, length), (1 - damping) / length, dtype=torch.float64)
    guess, first = None, start / (1 - damping)
    if edges is not None:
        kept = _Walk(edges)
        first, _ = _solve(kept, start, first, damping, tolerance, CYCLE)

        def guess(residual: Tensor) -> Tensor:
            return _descend(kept, residual, residual, damping, 0.0, GUESSES)

    # Below what the products round there is nothing to be had.
    rounding = damping / (1 - damping) * ROUNDING
    tolerance = max(tolerance, rounding)
    ranks, error = _solve(walk, start, first, damping, tolerance, steps, guess=guess)
    _check_reached(error, damping, tolerance, steps)
    error = error + rounding + damping / (1 - damping) * _rounding(matrix)
    return _result(ranks, error[:, None].expand_as(ranks))


def _check_reached(error: Tensor, damping: float, tolerance: float, steps: int) -> None:
    """Raise an InputError where a solution is further off than it may be."""
    largest = float(error.max())
    if not largest <= tolerance:
        raise InputError(
            f"pagerank: with damping={damping} the error is {largest:.1e}"
            + (f" after {steps:,} steps" if steps else ", as far as float64 goes")
            + f", above tolerance={tolerance:.1e}. "
            + ("Give more steps=, a larger tolerance=" if steps else "Give a larger tolerance=")
            + " or a smaller damping=."
        )


def _result(ranks: Tensor, bound: Tensor) -> PageRank:
    ranks = ranks / ranks.sum(-1, keepdim=True).clamp(min=1e-300)
    bound = bound.float()
    return PageRank(ranks[:-1].float(), ranks[-1].float(), bound[:-1], bound[-1])


def _divided(state: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
    """A state over the sums of the rows it leaves from, and the mass on rows that lead nowhere."""
    blind = sums <= 0
    along = torch.where(blind, 0.0, state / sums.masked_fill(blind, 1))
    return along, torch.where(blind, state, 0.0).sum(-1, keepdim=True)


class _Walk:
    """One step along the kept edges of every head, and of their mean: P^T of (heads + 1, n)."""

    def __init__(self, graph: AttentionGraph) -> None:
        heads, length = graph.keys.shape[0], graph.length
        there = graph.keys >= 0
        first = torch.arange(heads, dtype=graph.keys.dtype)[:, None, None] * length
        starts = np.zeros(heads * length + 1, np.int64)
        np.cumsum(there.sum(-1).flatten().numpy(), out=starts[1:])
        # All heads in one, side by side; the transpose of rows is columns, without a copy.
        self.heads = scipy.sparse.csr_array(
            (graph.weights[there].double().numpy(), (graph.keys + first)[there].numpy(), starts),
            shape=(heads * length, heads * length),
        ).T
        self.mean = average_edges(graph, merged=False).astype(np.float64).T
        mass = left_out(graph)[0].double()
        least = graph.weights.sum(-1, dtype=torch.float64)
        self.mass = torch.cat((mass, mass.mean(0, keepdim=True)))
        #: What a row sums to at least, where a sink has all that was left out, and at most.
        self.least = torch.cat((least, least.mean(0, keepdim=True)))
        self.sums = self.least + self.mass
        ahead = torch.arange(1, length + 1)
        self.causal = bool((graph.count == ahead).all())
        self.reach = (
            ahead.double() if self.causal else torch.full((length,), float(length)).double()
        )

    def __call__(self, state: Tensor) -> Tensor:
        """With what a row left out leading everywhere that it could."""
        along, lost = _divided(state, self.sums)
        moved = self._moved(along)
        each = along * self.mass / self.reach
        if self.causal:
            moved += each.flip(-1).cumsum(-1).flip(-1)
        else:
            moved += each.sum(-1, keepdim=True)
        return moved + lost / state.shape[-1]

    def alone(self, state: Tensor) -> Tensor:
        """With what a row left out lost."""
        along, lost = _divided(state, self.sums)
        return self._moved(along) + lost / state.shape[-1]

    def doubt(self, state: Tensor) -> Tensor:
        """How much more than `alone` the kept edges lead to, where sinks have all that is left."""
        along = _divided(state, self.least)[0] - _divided(state, self.sums)[0]
        return self._moved(along.clamp(min=0))

    def _moved(self, along: Tensor) -> Tensor:
        of_heads = torch.from_numpy(self.heads @ along[:-1].numpy().ravel())
        of_mean = torch.from_numpy(self.mean @ along[-1].numpy())
        return torch.cat((of_heads.reshape(-1, along.shape[-1]), of_mean[None]))


def _solve(
    walk: Callable[[Tensor], Tensor],
    start: Tensor,
    first: Tensor,
    damping: float,
    tolerance: float,
    steps: int,
    *,
    guess: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """``x - d P^T x = start``, for each row of (batch, n), from a first x.

    guess: a residual -> about the x that it asks for; None: the residual itself.

    Returns: x, and a bound of its error summed over positions, (batch,): at most the tolerance,
    unless the steps did not suffice.
    """

    def left(x: Tensor) -> tuple[Tensor, Tensor]:
        residual = start - (x - damping * walk(x))
        return residual, residual.abs().sum(-1) / (1 - damping)

    x = first
    residual, error = left(x)
    taken = 1
    while taken < steps and not bool((error <= tolerance).all()):
        size = min(CYCLE, steps - taken)
        other = _descend(walk, residual, torch.zeros_like(x), damping, tolerance, size, guess) + x
        taken += size + 1
        # Conjugate residuals lower the sum of squares; that of magnitudes need not go with it.
        its_residual, its_error = left(other)
        better = (its_error < error)[:, None]
        x, residual = torch.where(better, other, x), torch.where(better, its_residual, residual)
        error = torch.minimum(error, its_error)
        for _ in range(min(CYCLE, steps - taken)):
            if bool((error <= tolerance).all()):
                break
            x = x + residual
            residual, error = left(x)
            taken += 1
    return x, error


def _descend(
    walk: Callable[[Tensor], Tensor],
    start: Tensor,
    first: Tensor,
    damping: float,
    tolerance: float,
    steps: int,
    guess: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """What so many steps of generalized conjugate residuals make of `_solve`'s equation."""
    x = first.clone()
    residual = start - (x - damping * walk(x)) if bool(x.any()) else start.clone()
    directions: list[tuple[Tensor, Tensor]] = []
    for _ in range(steps):
        error = residual.abs().sum(-1) / (1 - damping)
        if bool((error <= tolerance).all()):
            break
        direction = residual if guess is None else guess(residual)
        image = direction - damping * walk(direction)
        for before, its_image in directions:
            share = (image * its_image).sum(-1, keepdim=True)
            direction = direction - share * before
            image = image - share * its_image
        size = image.norm(dim=-1, keepdim=True)
        # A row that is solved asks for nothing more.
        size = torch.where(size > 1e-300, size, 1.0)
        direction, image = direction / size, image / size
        share = (residual * image).sum(-1, keepdim=True)
        x, residual = x + share * direction, residual - share * image
        directions.append((direction, image))
    return x


def _rounding(matrix: AttentionMatrix) -> float:
    """By what share of itself float32 rounds a weight, about: by what it rounds its score.

    A score and the row's log-sum-exp are rounded to 2^-24 of the largest there can be.
    """
    if matrix.queries.dtype == torch.float64 or not matrix.queries.numel():
        return 0.0
    lse = matrix.lse[matrix.lse.isfinite()].abs()
    largest = matrix.largest_score() + float(lse.max() if len(lse) else 0)
    return 2.0**-24 * (1 + largest)
