"""Spectra of the weights: effective ranks of heads, and PageRank."""

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

#: Positions up to which all singular values of a head's matrix are computed: 3 s a head there,
#: 0.05 s at 512 positions.
DENSE = 2048


def effective_rank(source: Source) -> Tensor:
    """Return the effective rank of each head's weights, from all singular values.

        exp(-sum_i p_i log p_i), p_i = s_i / sum_j s_j

    Args: source: all weights, or the kept edges (then of their matrix).
    Returns: (heads,); 0 for a head without weights.
    Raises: InputError: more than 2,048 positions, where all singular values take too long.
    Source: Roy and Vetterli 2007.

    >>> import headloom
    >>> tokens = torch.eye(4)[None] * 99                      # each token attends to itself
    >>> effective_rank(headloom.AttentionMatrix(tokens, tokens)).round(decimals=4)
    tensor([4.])
    """
    return spectra.effective_rank(_singular_values("effective_rank", source)).float()


def energy_rank(source: Source) -> Tensor:
    """Return the effective rank by energy of each head's weights: `effective_rank` of s_i^2.

    It is the exponential of the von Neumann entropy of P P^T / |P|^2.

    >>> import headloom
    >>> tokens = torch.eye(4)[None] * 99
    >>> energy_rank(headloom.AttentionMatrix(tokens, tokens)).round(decimals=4)
    tensor([4.])
    """
    return spectra.effective_rank(_singular_values("energy_rank", source).square()).float()


def _singular_values(operation: str, source: Source) -> Tensor:
    """Return the singular values of each head's matrix, (heads, the shorter side), float64."""
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
    """PageRanks. heads: (heads, positions); mean: of the mean, (positions,); each sums to 1."""

    heads: Tensor
    mean: Tensor


def pagerank(source: Source, *, damping: float = 0.85, tolerance: float = 1e-6) -> PageRank:
    """Return the PageRank of every head, and of their mean.

        r = d P^T r + (1 - d) / n,    P the weights, each row divided by its sum

    A walker at query i moves to key j with the probability d P_ij, otherwise to any position. A row
    without mass leads to all positions equally. With kept edges only, rows are of these.

    Computed by iterating this equation; each step reduces the error at least by the factor d.

    Args:
        source: all weights, or the kept edges, of self-attention.
        damping: d, the probability to follow the weights; 0 to less than 1.
        tolerance: largest error, summed over positions, except for the rounding of float32.

    Raises: ShapeError: the numbers of keys and queries differ.
    Source: Page et al. 1999.

    >>> import headloom
    >>> ahead = torch.tensor([[[0.0, 99.0], [0.0, 99.0]]])       # both attend to position 1
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
            # Each head has its own vector and the mean's.
            vectors = torch.stack((along[:-1], along[-1:].expand(heads, -1)), -1)
            products = (matrix.T @ vectors.to(matrix.queries)).double()
            return torch.cat((products[..., 0], products[..., 1].mean(0, keepdim=True)))

    blind = sums <= 0
    ranks = torch.full_like(sums, 1 / max(length, 1))
    # The error is 2 at most, and each step multiplies it by d at most.
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
