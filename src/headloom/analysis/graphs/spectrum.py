"""Spectra of the weights: how many directions each head uses, and where a walk along them stays."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headloom.analysis.arguments import real_number
from headloom.analysis.graphs.strength import check_square
from headloom.analysis.weights import Source, average_edges, check_numbers
from headloom.errors import InputError
from headloom.mechanism import spectra
from headloom.mechanism.graph import AttentionGraph

#: Positions up to which a head's matrix is formed and all its singular values are found: 3 s a head
#: there, 0.05 s of 512 positions.
DENSE = 2048


def effective_rank(source: Source) -> Tensor:
    """How many directions each head's weights use, from all singular values.

        exp(-sum_i p_i log p_i), p_i = s_i / sum_j s_j

    Args: source: all weights; or the kept edges: then it is that of their matrix.
    Returns: (heads,); 0 for a head without weights.
    Raises: InputError: more than 2,048 positions, where all singular values take too long.
    Source: Roy and Vetterli 2007.

    >>> import headloom
    >>> tokens = torch.eye(4)[None] * 99                      # everyone looks at itself
    >>> effective_rank(headloom.AttentionMatrix(tokens, tokens)).round(decimals=4)
    tensor([4.])
    """
    return spectra.effective_rank(_singular_values("effective_rank", source)).float()


def energy_rank(source: Source) -> Tensor:
    """How many directions each head's weights use, by energy: `effective_rank` of s_i^2.

    It is the exponential of the von Neumann entropy of P P^T / |P|^2.

    >>> import headloom
    >>> tokens = torch.eye(4)[None] * 99
    >>> energy_rank(headloom.AttentionMatrix(tokens, tokens)).round(decimals=4)
    tensor([4.])
    """
    return spectra.effective_rank(_singular_values("energy_rank", source).square()).float()


def _singular_values(operation: str, source: Source) -> Tensor:
    """Those of each head's matrix, (heads, the shorter side), float64."""
    heads, queries, keys = source.shape
    if max(queries, keys) > DENSE:
        raise InputError(
            f"{operation}: {queries:,} x {keys:,} weights; all singular values of more than "
            f"{DENSE:,} take too long. Measure a shorter text."
        )
    check_numbers(source, operation)
    values = torch.zeros(heads, min(queries, keys), dtype=torch.float64)
    for head in range(heads):
        if isinstance(source, AttentionGraph):
            dense = torch.from_numpy(source.adjacency(head).toarray())
        else:
            dense = source[head, :, :]
        values[head] = spectra.singular_values(operation, dense.double())
    return values


@dataclass(frozen=True, eq=False)
class PageRank:
    """heads: (heads, positions); mean: of the mean over heads, (positions,); each sums to 1."""

    heads: Tensor
    mean: Tensor


def pagerank(source: Source, *, damping: float = 0.85, tolerance: float = 1e-6) -> PageRank:
    """The PageRank of every head, and of their mean.

        r = d P^T r + (1 - d) / n,    P the weights, each row divided by its sum

    A walker at query i goes on to key j with the probability d P_ij, or else to any position. A row
    without mass leads everywhere alike. From kept edges, rows are those of the kept edges.

    Found by steps of this equation, each of which brings r nearer by the factor d at least.

    Args:
        source: all weights, or the kept edges, of a sequence that looks at itself.
        damping: d, how often the walker follows the weights; 0 to less than 1.
        tolerance: the error, summed over positions, at most, but for what float32 rounds.

    Raises: ShapeError: there are not as many keys as queries.
    Source: Page et al. 1999.

    >>> import headloom
    >>> ahead = torch.tensor([[[0.0, 99.0], [0.0, 99.0]]])       # both look at position 1
    >>> _, graph = headloom.attend(ahead, torch.eye(2)[None], ahead, scale=1.0)
    >>> pagerank(graph, damping=0.5).mean.round(decimals=4)      # r_0 = (1 - 0.5) / 2
    tensor([0.2500, 0.7500])
    """
    damping = real_number("pagerank", "damping", damping, below=True)
    tolerance = real_number("pagerank", "tolerance", tolerance, above=True)
    check_square("pagerank", source)
    heads, length, _ = source.shape
    if isinstance(source, AttentionGraph):
        walks = [source.adjacency(head).astype(np.float64) for head in range(heads)]
        walks.append(average_edges(source).astype(np.float64))
        sums = torch.from_numpy(np.stack([np.asarray(walk.sum(1)) for walk in walks]))

        def moved(along: Tensor) -> Tensor:
            pairs = zip(walks, along.numpy(), strict=True)
            return torch.from_numpy(np.stack([walk.T @ x for walk, x in pairs]))
    else:
        matrix = source
        sums = (matrix @ torch.ones(length)).double()
        sums = torch.cat((sums, sums.mean(0, keepdim=True)))

        def moved(along: Tensor) -> Tensor:
            # Each head carries its own vector and that of the mean.
            vectors = torch.stack((along[:-1], along[-1:].expand(heads, -1)), -1)
            products = (matrix.T @ vectors.to(matrix.queries)).double()
            return torch.cat((products[..., 0], products[..., 1].mean(0, keepdim=True)))

    blind = sums <= 0
    ranks = torch.full_like(sums, 1 / max(length, 1))
    # Each step divides the error, 2 at most, by 1 / d at least: so many suffice.
    most = math.ceil(math.log(tolerance / 2) / math.log(damping)) if damping > 0 else 1
    for _ in range(most if length else 0):
        before = ranks
        along = torch.where(blind, 0.0, ranks / sums.masked_fill(blind, 1))
        lost = torch.where(blind, ranks, 0.0).sum(-1, keepdim=True)
        ranks = damping * (moved(along) + lost / length) + (1 - damping) / length
        ranks = ranks / ranks.sum(-1, keepdim=True)
        if float((ranks - before).abs().sum(-1).max()) * damping <= tolerance * (1 - damping):
            break
    return PageRank(ranks[:-1].float(), ranks[-1].float())
