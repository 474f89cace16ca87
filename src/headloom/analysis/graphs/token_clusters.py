"""Spectral clustering: which positions look at each other more than at the others.

    W = (P + P^T) / 2,    d_i = sum_j W_ij,    A = D^-1/2 W D^-1/2

Direction is given up: W_ij is what i and j give each other. Of clusters C_1 ... C_k the normalized
cut is what leaves each of them, as a share of what it has:

    Ncut = sum_c cut(C_c) / vol(C_c)
    cut(C) = sum_{i in C, j not in C} W_ij,    vol(C) = sum_{i in C} d_i

The eigenvectors of A of its k largest eigenvalues minimize it over all vectors, not only those that
tell clusters, so that no partition has a smaller one than sum_c (1 - eigenvalue_c). Positions with
like entries in D^-1/2 times these vectors become a cluster, by k-means.

Everything is had from products with P and P^T, and P is never formed.

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

#: Positions up to which A is formed and its eigenvalues are found directly.
DENSE = 1024
#: The most clusters where their number is not given, and where it is.
MOST, MANY = 16, 64
#: How far an eigenvalue may be off, and restarts of Lanczos's method at most.
TOLERANCE, RESTARTS = 1e-4, 25
#: First centres that k-means tries, and steps from each.
STARTS, STEPS = 10, 30

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TokenClusters:
    """The clusters of a layer, or of a head; numbered in the order of their first positions.

    labels: (positions,): the cluster of each position; -1: one without any mass, or left out.
    leaving: (clusters,): cut / vol, what leaves each cluster, as a share of what it has.
    eigenvalues: 1 - those of A, from the smallest, one more than clusters where there is one.
    """

    labels: Labels
    leaving: Floats
    eigenvalues: Floats

    @property
    def number(self) -> int:
        """How many clusters there are."""
        return len(self.leaving)

    @property
    def sizes(self) -> Labels:
        """How many positions each has."""
        return np.bincount(self.labels[self.labels >= 0], minlength=self.number)

    @property
    def cut(self) -> float:
        """The normalized cut."""
        return float(self.leaving.sum())

    @property
    def least(self) -> float:
        """What no partition into so many clusters goes below."""
        return float(self.eigenvalues[: self.number].sum())


def token_clusters(
    source: Source,
    number: int | None = None,
    *,
    head: int | None = None,
    without: Sequence[int] = (),
    seed: int = 0,
) -> TokenClusters:
    """Divide the positions of a layer into clusters whose attention stays among themselves.

    Args:
        source: all weights, or the kept edges, of a sequence that looks at itself.
        number: how many clusters, at most 64; None: from 2 to 16, where the step from one
            eigenvalue to the next is largest (von Luxburg 2007).
        head: of this head; None: of the mean over heads.
        without: positions that are left out, with their edges; below 0: from the end. [0]
            takes a sink at the first token away, which ties everything to itself.
        seed: of the first vectors and centres.

    Raises: ShapeError: there are not as many keys as queries. InputError: a position is none, or
    the eigenvalues were not found.

    >>> import torch, headloom
    >>> pairs = torch.eye(2).repeat_interleave(2, 0)[None] * 3       # 0 and 1, 2 and 3
    >>> found = token_clusters(headloom.AttentionMatrix(pairs, pairs), 2)
    >>> found.labels.tolist(), round(found.cut, 4)
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
        """``W x``, without the positions that are left out."""
        along = (chosen[:, None] * vectors).astype(np.float32)
        given: Floats = chosen[:, None] * (weights @ along + weights.T @ along) / 2.0
        return given

    degrees = shared(np.ones((length, 1)))[:, 0].astype(np.float64).clip(min=0)
    there = np.flatnonzero(degrees > 0)
    labels = np.full(length, -1, np.int64)
    wanted = min(MOST if number is None else number, len(there))
    if not wanted:
        return TokenClusters(labels, np.zeros(0), np.zeros(0))
    size, scale = len(there), 1 / np.sqrt(degrees[there])[:, None]

    def product(vectors: Floats) -> Floats:
        """``A x``."""
        spread = np.zeros((length, vectors.size // size))
        spread[there] = scale * vectors.reshape(size, -1)
        found: Floats = scale * shared(spread)[there]
        return found

    leading = min(wanted + 1, size)
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
    clusters = wanted
    if number is None and len(values) > 2:  # 2 at least
        clusters = 2 + int((values[1:-1] - values[2:]).argmax())
    places = vectors[:, :clusters] * scale
    labels[there] = _k_means(places, clusters, seed)
    clusters = int(labels.max()) + 1
    members = (labels[:, None] == np.arange(clusters)).astype(np.float64)
    held, inside = members.T @ degrees, (members * shared(members)).sum(0)
    leaving = (held - inside).clip(min=0) / held
    return TokenClusters(labels, leaving, (1 - values[: clusters + 1]).clip(min=0))


def _k_means(places: Floats, number: int, seed: int) -> Labels:
    """The cluster of each position by its place, the best of several starts, numbered in order."""
    random, tries = np.random.default_rng(seed), []
    for _ in range(STARTS):
        with warnings.catch_warnings(action="ignore"):  # that a cluster is empty
            centres, labels = kmeans2(places, number, iter=STEPS, minit="++", seed=random)
        tries.append((float(np.square(places - centres[labels]).sum()), labels.tolist()))
    # The first position of a cluster gives it its number.
    _, first, inverse = np.unique(min(tries)[1], return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]
