"""Spectra of the weights: singular values and effective rank, at any length."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from headloom.analysis.arguments import check_source
from headloom.analysis.interval import Interval, Source, check_numbers, left_out
from headloom.errors import InputError
from headloom.mechanism import spectra
from headloom.mechanism.graph import AttentionGraph
from headloom.mechanism.matrix.attention_matrix import AttentionMatrix
from headloom.mechanism.shapes import whole_number

__all__ = [
    "EXACT_RANK",
    "effective_rank",
    "energy_rank",
]

#: Positions up to which a head's matrix is formed and all its singular values are found.
DENSE = 2048

#: Positions up to which the rank by energy has them all where nothing else is asked for: 0.05 s a
#: head there, 0.5 s with twice as many.
EXACT_RANK = 512


def effective_rank(source: Source) -> Tensor:
    """How many directions each head's weights use, from all singular values.

        exp(-sum_i p_i log p_i), p_i = s_i / sum_j s_j

    Args: source: all weights; or the kept edges: then it is that of their matrix.
    Returns: (heads,).
    Raises: InputError: more than 2,048 positions, where all singular values take too long; see
    `energy_rank`.
    Source: Roy and Vetterli 2007.

    >>> import headloom
    >>> tokens = torch.eye(4)[None] * 99                      # everyone looks at itself
    >>> effective_rank(headloom.AttentionMatrix(tokens, tokens)).round(decimals=4)
    tensor([4.])
    """
    check_source("effective_rank", source)
    _, queries, keys = source.shape
    if max(queries, keys) > DENSE:
        raise InputError(
            f"effective_rank: {queries:,} x {keys:,} weights; all singular values of more than "
            f"{DENSE:,} take too long. Take energy_rank, which needs the leading ones."
        )
    check_numbers(source, "effective_rank")
    ranks = [
        spectra.effective_rank(spectra.singular_values("effective_rank", dense))
        for dense in _formed(source)
    ]
    return torch.stack(ranks).float() if ranks else torch.zeros(0)


def energy_rank(
    source: Source, leading: int = 32, *, exact_up_to: int = EXACT_RANK, seed: int = 0
) -> Interval:
    """How many directions each head's weights use, by energy: between two bounds, at any length.

        exp(S(G)), G = P P^T / |P|^2, S(G) = -sum_i q_i log q_i, q_i = s_i^2 / sum_j s_j^2

    As the effective rank of Roy and Vetterli, with squared singular values; the von Neumann
    entropy of G. Of a head with at most exact_up_to^2 cells its matrix is formed and G has all its
    eigenvalues, in float64: both ends are the rank.

    Of a larger one the ends can be far apart, by a factor of a hundred and more in trained models.
    Q, orthonormal, spans about the leading directions (a randomized projection, Halko et al. 2011);
    then G is a mixture of what lies in Q and of the rest, ``G = (1 - t) B + t R`` up to their
    coherence, whose entropy is known to lie between

        (1 - t) S(B) + t S(R)    and    (1 - t) S(B) + t S(R) + h(t)

    for ``P^T P = (Q^T P)^T (Q^T P) + rest``: entropy is concave, and mixing adds h(t) = -t log t -
    (1 - t) log(1 - t) at most. t, the energy of the rest, is known exactly from |P|^2. S(R) is at
    most the logarithm of its dimension n - leading, and at least that of its energy over the
    largest squared singular value, which is at most the largest column sum (times the largest row
    sum, 1); nor is S(G) below the logarithm of |P|^2 over that. Both ends meet where the leading
    directions hold everything, and where all are alike.

    From kept edges K: that of K, widened by what was left out, E. |E|^2 <= sum_i mass_i largest_i,
    and with T = |E| (|P| + |K|) / |K|^2, the trace distance of both at most, entropies differ by
    T log(n - 1) + h(T) at most (Audenaert 2007).

    Args:
        source: all weights, or the kept edges.
        leading: how many directions are found of a head that is not formed; more give narrower
            bounds.
        exact_up_to: positions up to which heads are formed; the time grows with their third power,
            0.05 s a head of 512, 3 s of 2,048. 0: none is.
        seed: of the projection.

    Returns: (heads,); 0 for a head without weights.

    >>> import headloom
    >>> tokens = torch.eye(64)[None] * 999                    # everyone looks at itself
    >>> matrix = headloom.AttentionMatrix(tokens, tokens)
    >>> energy_rank(matrix).lower.round(decimals=4)
    tensor([64.])
    >>> rank = energy_rank(matrix, leading=8, exact_up_to=0)
    >>> rank.lower.round(decimals=2), rank.upper.round(decimals=2)
    (tensor([64.]), tensor([64.]))
    """
    check_source("energy_rank", source)
    leading = whole_number("energy_rank", "leading", leading, 1)
    exact_up_to = whole_number("energy_rank", "exact_up_to", exact_up_to, 0)
    seed = whole_number("energy_rank", "seed", seed, 0, 2**32 - 1)
    check_numbers(source, "energy_rank")
    heads, queries, keys = source.shape
    leading = min(leading, queries, keys)
    if not leading:
        return Interval(torch.zeros(heads), torch.zeros(heads))
    if queries * keys <= exact_up_to**2:
        ends = [(entropy, entropy) for entropy in map(_entropy, _formed(source))]
    elif isinstance(source, AttentionGraph):
        ends = [_of_edges(source, head, leading, seed) for head in range(heads)]
    else:
        ends = _of_matrix(source, leading, seed)
    lower, upper = torch.tensor(ends, dtype=torch.float64).reshape(-1, 2).T
    if isinstance(source, AttentionGraph):
        doubt = torch.tensor([_doubt(source, head) for head in range(heads)])
        lower = (lower - doubt).clamp(min=0)
        upper = (upper + doubt).clamp(max=math.log(max(1, min(queries, keys))))
    if isinstance(source, AttentionGraph):
        mass = source.weights.sum((-2, -1)) + left_out(source)[0].sum(-1)
    else:
        mass = source.sum_of_squares().sum(-1)
    there = (mass > 0).float()
    # Of a flat spectrum both ends are one number, rounded twice.
    return Interval(torch.minimum(lower, upper).exp().float() * there, upper.exp().float() * there)


def _formed(source: Source) -> Iterator[Tensor]:
    """The matrix of each head, (queries, keys), float64."""
    for head in range(source.shape[0]):
        if isinstance(source, AttentionGraph):
            yield torch.from_numpy(source.adjacency(head).toarray()).double()
        else:
            yield source[head, :, :].double()


def _entropy(dense: Tensor) -> float:
    """``S(G)`` from all eigenvalues; 0 of a matrix of zeros."""
    if dense.shape[0] > dense.shape[1]:
        dense = dense.T
    energy = torch.linalg.eigvalsh(spectra.finite("energy_rank", dense @ dense.T)).clamp(min=0)
    share = energy / energy.sum().clamp(min=1e-300)
    return float(-torch.xlogy(share, share).sum())


def _of_matrix(source: AttentionMatrix, leading: int, seed: int) -> list[tuple[float, float]]:
    heads, queries, _ = source.shape
    probe = torch.randn(queries, leading, generator=torch.Generator().manual_seed(seed))
    # One pass to and fro turns random vectors towards the leading directions.
    basis, _ = torch.linalg.qr(source @ torch.linalg.qr(source.T @ probe).Q)
    ones = torch.ones(heads, queries, 1)
    products = source.T @ torch.cat((basis, ones), -1)
    squares = source.sum_of_squares().double().sum(-1)
    return [
        _ends(
            products[head, :, :-1],
            float(squares[head]),
            float(products[head, :, -1].max()),
            queries,
        )
        for head in range(heads)
    ]


def _of_edges(graph: AttentionGraph, head: int, leading: int, seed: int) -> tuple[float, float]:
    edges = graph.adjacency(head)
    queries, _ = edges.shape
    probe = torch.randn(queries, leading, generator=torch.Generator().manual_seed(seed))
    turned = torch.linalg.qr(torch.from_numpy(edges.T @ probe.numpy())).Q
    basis = torch.linalg.qr(torch.from_numpy(edges @ turned.numpy())).Q
    products = torch.from_numpy(edges.T @ basis.numpy())
    column = float(edges.sum(0).max()) if edges.nnz else 0.0
    return _ends(products, float((edges.data.astype("float64") ** 2).sum()), column, queries)


def _ends(products: Tensor, square: float, column: float, queries: int) -> tuple[float, float]:
    """Bounds of the entropy. products: P^T Q; square: |P|^2; column: the largest column sum."""
    if square <= 0:
        return 0.0, 0.0
    energy = spectra.singular_values("energy_rank", products.double()).square()
    inside = min(float(energy.sum()), square)
    rest = max(0.0, 1 - inside / square)
    if rest < 1e-6:  # float32 has no finer idea of it
        rest = 0.0
    share = energy / energy.sum().clamp(min=1e-300)
    known = float(-torch.xlogy(share, share).sum())
    dimension = min(queries, products.shape[0]) - products.shape[1]
    most = math.log(dimension) if dimension > 0 else 0.0
    least = min(most, max(0.0, math.log(max(rest * square / max(column, 1e-300), 1e-300))))
    # Nor is the entropy below that of a spectrum that is as flat as its largest value allows.
    flat = math.log(max(square / max(column, 1e-300), 1.0))
    lower = max((1 - rest) * known + rest * least, flat)
    upper = (1 - rest) * known + rest * most + _binary(rest)
    return lower, min(upper, math.log(max(1, min(queries, products.shape[0]))))


def _binary(t: float) -> float:
    """``-t log t - (1 - t) log(1 - t)``."""
    return -sum(x * math.log(x) for x in (t, 1 - t) if x > 0)


def _doubt(graph: AttentionGraph, head: int) -> float:
    """How far the entropy of the kept edges can be from that of all."""
    mass, largest = (part[head].double() for part in left_out(graph))
    error = math.sqrt(float((mass * largest).sum()))
    if error == 0:
        return 0.0
    square = float(graph.weights[head].double().square().sum())
    norm = math.sqrt(square)
    if norm == 0:
        return math.inf
    size = max(2, min(graph.shape[1:]))
    # Beyond 1 - 1 / n the bound falls again, of a distance that is itself a bound.
    distance = min(1 - 1 / size, error * (2 * norm + error) / square)
    return distance * math.log(max(1, size - 1)) + _binary(distance)
