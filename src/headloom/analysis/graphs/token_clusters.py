"""Spectral clustering: groups of positions that attend to each other more than to others.

    W = (P + P^T) / 2,    d_i = sum_j W_ij,    A = D^-1/2 W D^-1/2

W_ij ignores direction: it is the mean weight between i and j. The normalized cut of clusters C_1
... C_k is the mass that leaves each of them, as a share of its own mass:

    Ncut = sum_c cut(C_c) / vol(C_c)
    cut(C) = sum_{i in C, j not in C} W_ij,    vol(C) = sum_{i in C} d_i

The eigenvectors of A of its k largest eigenvalues minimize it over all vectors, not only indicators
of clusters, so that no partition has a smaller cut than sum_c (1 - eigenvalue_c). Positions with
similar entries in D^-1/2 times these vectors become a cluster, by k-means.

All of this uses products with P and P^T; P is never formed.

Source: Shi and Malik 2000 (the cut, and its relaxation); Satuluri and Parthasarathy 2011 (W of a
directed graph).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from scipy.cluster.vq import kmeans2
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from headloom.analysis.arguments import places_of
from headloom.analysis.graphs.strength import check_square
from headloom.analysis.weights import Source, mean_over_heads
from headloom.errors import InputError
from headloom.mechanism.graph import AttentionGraph
from headloom.mechanism.shapes import whole_number

#: Positions up to which A is formed and its eigenvalues are computed directly.
DENSE = 1024
#: Largest number of clusters if it is chosen automatically, and if it is given.
MOST, MANY = 16, 64
#: Tolerance of an eigenvalue, and largest number of restarts of Lanczos's method.
TOLERANCE, RESTARTS = 1e-4, 25
#: Initializations of k-means, and steps from each.
STARTS, STEPS = 10, 30

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TokenClusters:
    """Clusters of a layer, or of a head, numbered in the order of their first positions.

    labels: (positions,): the cluster of each position; -1: no mass, or left out.
    leaving: (clusters,): cut / vol, the share of each cluster's mass that leaves it.
    eigenvalues: 1 - the eigenvalues of A, smallest first, one more than clusters if possible.
    """

    labels: Labels
    leaving: Floats
    eigenvalues: Floats

    @property
    def number(self) -> int:
        """Number of clusters."""
        return len(self.leaving)

    @property
    def sizes(self) -> Labels:
        """Number of positions of each cluster."""
        return np.bincount(self.labels[self.labels >= 0], minlength=self.number)

    @property
    def cut(self) -> float:
        """Normalized cut."""
        return float(self.leaving.sum())

    @property
    def least(self) -> float:
        """Lower bound of the cut of any partition into as many clusters."""
        return float(self.eigenvalues[: self.number].sum())


def token_clusters(
    source: Source, number: int | None = None, *, head: int | None = None,
    without: Sequence[int] = (), seed: int = 0,
) -> TokenClusters:  # fmt: skip
    """Divide the positions of a layer into clusters whose attention stays among themselves.

    Args:
        source: all weights, or the kept edges, of self-attention.
        number: of clusters, at most 64; None: from 2 to 16, at the largest gap between
            eigenvalues (von Luxburg 2007).
        head: number of a head; None: the mean over heads.
        without: positions to leave out, with their edges; below 0: from the end. [0] removes a
            sink at the first token, which would tie all tokens together.
        seed: of the initial vectors and centres.

    Raises: ShapeError: the numbers of keys and queries differ. InputError: no such position, or the
    eigenvalues did not converge.

    >>> import torch, headloom
    >>> pairs = torch.eye(2).repeat_interleave(2, 0)[None] * 3       # 0 and 1, 2 and 3
    >>> clusters = token_clusters(headloom.AttentionMatrix(pairs, pairs), 2)
    >>> clusters.labels.tolist(), round(clusters.cut, 4)
    ([0, 0, 1, 1], 0.0034)
    """
    if number is not None:
        number = whole_number("token_clusters", "number", number, 1, MANY)
    check_square("token_clusters", source)
    length = source.shape[1]
    chosen = np.ones(length, np.float32)
    chosen[places_of("token_clusters", "position", without, length)] = 0
    if head is None:
        weights = mean_over_heads(source)
    elif isinstance(source, AttentionGraph):
        weights = source.adjacency(head)
    else:
        weights = source.head(head)

    def shared(vectors: Floats) -> Floats:
        """Return ``W x``, without the positions that are left out."""
        along = (chosen[:, None] * vectors).astype(np.float32)
        product: Floats = chosen[:, None] * (weights @ along + weights.T @ along) / 2.0
        return product

    degrees = shared(np.ones((length, 1)))[:, 0].astype(np.float64).clip(min=0)
    connected = np.flatnonzero(degrees > 0)
    labels = np.full(length, -1, np.int64)
    most = min(MOST if number is None else number, len(connected))
    if not most:
        return TokenClusters(labels, np.zeros(0), np.zeros(0))
    size, scale = len(connected), 1 / np.sqrt(degrees[connected])[:, None]

    def product(vectors: Floats) -> Floats:
        """Return ``A x``."""
        spread = np.zeros((length, vectors.size // size))
        spread[connected] = scale * vectors.reshape(size, -1)
        result: Floats = scale * shared(spread)[connected]
        return result

    leading = min(most + 1, size)
    if size <= max(DENSE, 2 * leading):
        formed = product(np.eye(size))
        ends = size - leading, size - 1
        values, vectors = scipy.linalg.eigh((formed + formed.T) / 2, subset_by_index=ends)
    else:
        operator = LinearOperator((size, size), product, matmat=product, dtype=np.float64)
        first = np.random.default_rng(seed).standard_normal(size)
        try:
            values, vectors = eigsh(
                operator, leading, which="LA", v0=first, tol=TOLERANCE, maxiter=RESTARTS
            )
        except ArpackNoConvergence as error:
            raise InputError(f"token_clusters: {error}. Ask for fewer clusters.") from error
    order = np.argsort(-values)
    values, vectors = values[order], vectors[:, order]
    clusters = most
    if number is None and len(values) > 2:  # 2 at least
        clusters = 2 + int((values[1:-1] - values[2:]).argmax())
    places = vectors[:, :clusters] * scale
    labels[connected] = _k_means(places, clusters, seed)
    clusters = int(labels.max()) + 1
    members = (labels[:, None] == np.arange(clusters)).astype(np.float64)
    volume, inside = members.T @ degrees, (members * shared(members)).sum(0)
    leaving = (volume - inside).clip(min=0) / volume
    return TokenClusters(labels, leaving, (1 - values[: clusters + 1]).clip(min=0))


def _k_means(places: Floats, number: int, seed: int) -> Labels:
    """Return each position's cluster by k-means, the best of several runs, numbered in order."""
    random, tries = np.random.default_rng(seed), []
    for _ in range(STARTS):
        with warnings.catch_warnings(action="ignore"):  # of empty clusters
            centres, labels = kmeans2(places, number, iter=STEPS, minit="++", seed=random)
        tries.append((float(np.square(places - centres[labels]).sum()), labels.tolist()))
    # The first position of a cluster gives it its number.
    _, first, inverse = np.unique(min(tries)[1], return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]
