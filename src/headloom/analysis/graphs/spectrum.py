"""Spectra of the weights: how many directions each head uses."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from headloom.analysis.weights import Source, check_numbers
from headloom.errors import InputError
from headloom.mechanism import spectra
from headloom.mechanism.graph import AttentionGraph

__all__ = ["DENSE", "effective_rank", "energy_rank"]

#: Positions up to which a head's matrix is formed and all its singular values are found: 3 s a head
#: there, 0.05 s of 512 positions.
DENSE = 2048


def effective_rank(source: Source) -> Tensor:
    """How many directions each head's weights use, from all singular values.

        exp(-sum_i p_i log p_i), p_i = s_i / sum_j s_j

    Args: source: all weights; or the kept edges: then it is that of their matrix.
    Returns: (heads,).
    Raises: InputError: more than 2,048 positions, where all singular values take too long.
    Source: Roy and Vetterli 2007.

    >>> import headloom
    >>> tokens = torch.eye(4)[None] * 99                      # everyone looks at itself
    >>> effective_rank(headloom.AttentionMatrix(tokens, tokens)).round(decimals=4)
    tensor([4.])
    """
    ranks = [
        spectra.effective_rank(spectra.singular_values("effective_rank", dense))
        for dense in _formed("effective_rank", source)
    ]
    return torch.stack(ranks).float() if ranks else torch.zeros(0)


def energy_rank(source: Source) -> Tensor:
    """How many directions each head's weights use, by energy.

        exp(-sum_i q_i log q_i), q_i = s_i^2 / sum_j s_j^2

    As `effective_rank`, with squared singular values: the exponential of the von Neumann entropy of
    P P^T / |P|^2.

    Returns: (heads,); 0 for a head without weights.
    Raises: InputError: more than 2,048 positions.

    >>> import headloom
    >>> tokens = torch.eye(4)[None] * 99
    >>> energy_rank(headloom.AttentionMatrix(tokens, tokens)).round(decimals=4)
    tensor([4.])
    """
    ranks = []
    for dense in _formed("energy_rank", source):
        short = dense.T if dense.shape[0] > dense.shape[1] else dense
        energy = torch.linalg.eigvalsh(spectra.finite("energy_rank", short @ short.T)).clamp(min=0)
        share = energy / energy.sum().clamp(min=1e-300)
        ranks.append((-torch.xlogy(share, share).sum()).exp() * bool(energy.any()))
    return torch.stack(ranks).float() if ranks else torch.zeros(0)


def _formed(operation: str, source: Source) -> Iterator[Tensor]:
    """The matrix of each head, (queries, keys), float64."""
    heads, queries, keys = source.shape
    if max(queries, keys) > DENSE:
        raise InputError(
            f"{operation}: {queries:,} x {keys:,} weights; all singular values of more than "
            f"{DENSE:,} take too long. Measure a shorter text."
        )
    check_numbers(source, operation)
    for head in range(heads):
        if isinstance(source, AttentionGraph):
            yield torch.from_numpy(source.adjacency(head).toarray()).double()
        else:
            yield source[head, :, :].double()
