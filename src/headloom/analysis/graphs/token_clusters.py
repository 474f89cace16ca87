"""Spectral clustering: which positions look at each other more than at the others.

    W = (P + P^T) / 2,    d_i = sum_j W_ij,    A = D^-1/2 W D^-1/2

Direction is given up: W_ij is what i and j give each other. Of clusters C_1 ... C_k the normalized
cut is what leaves each of them, as a share of what it has:

    Ncut = sum_c cut(C_c) / vol(C_c)
    cut(C) = sum_{i in C, j not in C} W_ij,    vol(C) = sum_{i in C} d_i

The eigenvectors of A of its k largest eigenvalues minimize it over all vectors, not only those that
tell clusters, so that no partition has a smaller one than sum_c (1 - eigenvalue_c). Positions with
like entries in D^-1/2 times these vectors become a cluster, by weighted k-means.

Everything is had from products with P and P^T, for all heads at once, and P is never formed.

Source: Shi and Malik 2000 (the cut, and its relaxation); Dhillon, Guan and Kulis 2004 (that
k-means is to be weighted, by d); Satuluri and Parthasarathy 2011 (W of a directed graph).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.linalg
import torch
from torch import Tensor

from headloom.analysis.arguments import check_source, places_of, real_number
from headloom.analysis.graphs.head_average import Averaged, MeanOfEdges, MeanOfMatrix
from headloom.analysis.interval import Interval, Source, check_numbers, left_out
from headloom.errors import InputError, ShapeError
from headloom.mechanism.graph import AttentionGraph
from headloom.mechanism.shapes import check_flag, whole_number

__all__ = ["TokenClusters", "token_clusters"]

#: Positions up to which A is formed and its eigenvalues are found directly, in float64.
DENSE = 1024
#: The most clusters where their number is not given, and where it is.
MOST, MANY = 16, 64
#: Vectors that a product takes at once, at least: so many cost as much as one.
BLOCK = 32
#: The eigenvalue of a position that is left out, or has no edge.
ABSENT = -2.0
#: Products before the space that they span is cut down to its best vectors.
CYCLE = 8
#: First centres that k-means tries, and steps from each at most.
STARTS, STEPS = 10, 100


@dataclass(frozen=True, eq=False)
class TokenClusters:
    """The clusters of each head, or of a layer; numbered in the order of their first positions.

    labels: (heads, positions), int: the cluster of each position; -1: one without any mass.
    number: (heads,), int: how many there are.
    leaving: (heads, largest number): cut / vol, what leaves each cluster, as a share of what it
    has; NaN where a head has fewer. From all weights both ends are the share of just these
    clusters, as far as float32 goes; from kept edges it lies between them.
    eigenvalues: (heads, the largest number, and one more where there is one): 1 - those of A, from
    the smallest; of the kept edges' matrix, where these were given. NaN past the last, where fewer
    positions are there.
    bound: as large: each is an eigenvalue to within this.
    """

    labels: np.ndarray
    number: np.ndarray
    leaving: Interval
    eigenvalues: Tensor
    bound: Tensor

    @property
    def cut(self) -> Interval:
        """The normalized cut of each head's clusters, (heads,)."""
        return Interval(self.leaving.lower.nansum(-1), self.leaving.upper.nansum(-1))

    @property
    def least(self) -> Tensor:
        """What no partition into so many clusters goes below, (heads,).

        The eigenvalues' sum, each as small as its bound allows.
        """
        among = torch.arange(self.eigenvalues.shape[-1]) < torch.from_numpy(self.number)[:, None]
        return torch.where(among, (self.eigenvalues - self.bound).clamp(min=0), 0.0).sum(-1)


def token_clusters(
    source: Source,
    number: int | None = None,
    *,
    together: bool = False,
    without: Sequence[int] = (),
    tolerance: float = 1e-4,
    steps: int = 400,
    seed: int = 0,
) -> TokenClusters:
    """Divide the positions of each head into clusters whose attention stays among themselves.

    Args:
        source: all weights, or the kept edges, of a sequence that looks at itself.
        number: how many clusters, at most 64; None: from 2 to 16, where the step from one
            eigenvalue to the next is largest (von Luxburg 2007).
        together: one partition for the layer, of the mean over its heads.
        without: positions that are left out, with their edges; below 0: from the end. [0]
            takes a sink at the first token away, which ties everything to itself.
        tolerance: how far an eigenvalue may be off.
        steps: products at most.
        seed: of the first vectors and centres.

    Raises: ShapeError: there are not as many keys as queries. InputError: a position is none, or
    the tolerance was not reached in so many steps.

    >>> import headloom
    >>> pairs = torch.eye(2).repeat_interleave(2, 0)[None] * 3       # 0 and 1, 2 and 3
    >>> found = token_clusters(headloom.AttentionMatrix(pairs, pairs), 2)
    >>> found.labels.tolist(), found.cut.upper.round(decimals=4)
    ([[0, 0, 1, 1]], tensor([0.0034], dtype=torch.float64))
    """
    check_source("token_clusters", source)
    if number is not None:
        number = whole_number("token_clusters", "number", number, 1, MANY)
    check_flag("token_clusters", "together", together)
    tolerance = real_number("token_clusters", "tolerance", tolerance, most=2.0, above=True)
    steps = whole_number("token_clusters", "steps", steps, 1)
    seed = whole_number("token_clusters", "seed", seed, 0, 2**32 - 1)
    _, queries, keys = source.shape
    if queries != keys:
        raise ShapeError(
            f"token_clusters: {queries} queries and {keys} keys; expected as many keys as "
            "queries, of a sequence that looks at itself."
        )
    left = places_of("token_clusters", "position", without, keys)
    check_numbers(source, "token_clusters")
    similarity = _Similarity(source, together, left)
    wanted = min(MOST if number is None else number, keys)
    if not wanted or not similarity.graphs:
        return _none(similarity.graphs, keys)
    leading = min(wanted + 1, keys)
    if keys <= max(DENSE, 2 * leading * CYCLE):
        values, vectors, bound = _directly(similarity, leading)
    else:
        values, vectors, bound = _by_products(similarity, leading, tolerance, steps, seed)
    counts = similarity.there.sum(-1).tolist()
    numbers = [
        min(_by_largest_step(values[graph, :count]) if number is None else number, count)
        for graph, count in enumerate(counts)
    ]
    labels = np.stack(
        [
            _rounded(vectors[graph, :, :many], similarity.degrees[graph], many, seed)
            for graph, many in enumerate(numbers)
        ]
    )
    numbers = (labels.max(-1) + 1).tolist()
    eigenvalues = torch.where(values > ABSENT / 2, (1 - values).clamp(min=0), torch.nan)
    return TokenClusters(
        labels,
        np.array(numbers),
        similarity.leaving(torch.from_numpy(labels), max(numbers)),
        eigenvalues[:, : max(numbers) + 1],
        bound[:, : max(numbers) + 1],
    )


class _Similarity:
    """``D^-1/2 W D^-1/2`` of each head, or of their mean, by products.

    degrees: d, (graphs, positions), float64; there: where it is above 0.
    """

    def __init__(self, source: Source, together: bool, without: Sequence[int]) -> None:
        self.source, (heads, self.length, _) = source, source.shape
        self.graphs = min(heads, 1) if together else heads
        self._mean: Averaged | None = None
        if together and heads:
            self._mean = _mean(source)
        self._edges = None
        if isinstance(source, AttentionGraph) and not together:
            self._edges = [source.adjacency(head) for head in range(heads)]
        self.chosen = torch.ones(self.length)
        self.chosen[list(without)] = 0
        ones = torch.ones(self.graphs, self.length, 1)
        self.degrees = self.shared(ones)[..., 0].double().clamp(min=0)
        self.there = self.degrees > 0
        self._scale = torch.where(self.there, self.degrees, 1.0).rsqrt() * self.there

    def __matmul__(self, vectors: Tensor) -> Tensor:
        """``A x``; vectors: (graphs, positions, columns), float32.

        Positions that are not there are no part of A: each has an eigenvalue of its own, ABSENT,
        below all of A's, which lie from -1 to 1.
        """
        scale = self._scale.float()[..., None]
        absent = ABSENT * (~self.there).float()[..., None]
        return scale * self.shared(scale * vectors) + absent * vectors

    def shared(self, vectors: Tensor) -> Tensor:
        """``W x``, without the positions that are left out."""
        chosen = self.chosen[:, None]
        return chosen * self._products(chosen * vectors) / 2

    def _products(self, vectors: Tensor) -> Tensor:
        """``P x + P^T x``."""
        if self._mean is not None:
            columns = vectors[0].contiguous()
            return (self._mean @ columns + self._mean.transposed(columns))[None].float()
        if self._edges is not None:
            along = [
                edges @ x + edges.T @ x
                for edges, x in zip(self._edges, vectors.numpy(), strict=True)
            ]
            return torch.from_numpy(np.stack(along)).float()
        matrix = self.source
        assert not isinstance(matrix, AttentionGraph)
        values = vectors.to(matrix.queries.dtype)
        return (matrix @ values + matrix.T @ values).float()

    def leaving(self, labels: Tensor, number: int) -> Interval:
        """What leaves each cluster as a share of what it has, (graphs, number).

        From kept edges: of a cluster whose rows left out the mass M, and other rows M', it is
        least where all of M stays inside and M' outside, and most where both cross the border;
        an edge counts half to either end.
        """
        members = (labels[..., None] == torch.arange(number)).float()
        held = (members * self.degrees[..., None]).sum(1)
        inside = (members * self.shared(members)).sum(1, dtype=torch.float64)
        across = (held - inside).clamp(min=0)
        within = torch.zeros(1, 1, dtype=torch.float64)
        between = within
        if isinstance(self.source, AttentionGraph):
            mass = left_out(self.source)[0].double()
            mass = (mass.mean(0, keepdim=True) if self._mean is not None else mass) * self.chosen
            within = (members * mass[..., None]).sum(1, dtype=torch.float64)
            between = mass.sum(-1, keepdim=True) / 2
        there = torch.where(held > 0, 1.0, torch.nan)
        return Interval(
            there * across / (held + within), there * (across + between) / (held + between)
        )


def _mean(source: Source) -> Averaged:
    if isinstance(source, AttentionGraph):
        return MeanOfEdges(source)
    return MeanOfMatrix(source)


def _directly(similarity: _Similarity, leading: int) -> tuple[Tensor, Tensor, Tensor]:
    """The largest eigenvalues and their vectors, of the matrix itself, in float64."""
    graphs, length = similarity.graphs, similarity.length
    formed = (similarity @ torch.eye(length).expand(graphs, -1, -1)).double()
    formed = (formed + formed.transpose(1, 2)) / 2
    values, vectors = [], []
    for matrix in formed.numpy():
        value, vector = scipy.linalg.eigh(matrix, subset_by_index=[length - leading, length - 1])
        values.append(value[::-1].copy())
        vectors.append(vector[:, ::-1].copy())
    found = torch.from_numpy(np.stack(values))
    return found, torch.from_numpy(np.stack(vectors)), torch.full_like(found, 2.0**-20)


def _by_products(
    similarity: _Similarity, leading: int, tolerance: float, steps: int, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The same from products: a block Krylov space, cut down to its best vectors at times.

    |A x - value x| of a unit vector bounds how far the value is from an eigenvalue.

    Source: Wu and Simon 2000 (thick restart); Golub and Underwood 1977 (blocks).
    """
    graphs, length = similarity.graphs, similarity.length
    block = min(max(BLOCK, 2 * leading), length // CYCLE)
    noise = torch.randn(length, block, generator=torch.Generator().manual_seed(seed))
    vectors = torch.linalg.qr(noise.expand(graphs, -1, -1)).Q
    taken = 0
    while True:
        space, images = vectors, [similarity @ vectors]
        taken += 1
        values = (vectors * images[0]).sum(1).double()
        off = (images[0] - values[:, None].float() * vectors).norm(dim=1).double()
        if bool((off[:, :leading] <= tolerance).all()):
            return values[:, :leading], vectors[..., :leading].double(), off[:, :leading]
        if taken + CYCLE > steps:
            raise InputError(
                "token_clusters: an eigenvalue is off by up to "
                f"{float(off[:, :leading].max()):.1e} after {taken} products, and the tolerance "
                f"is {tolerance:g}. Ask for fewer clusters; or, in Python, for more steps= than "
                f"{steps}, or a larger tolerance=."
            )
        for _ in range(CYCLE - 1):
            new = images[-1]
            for _ in range(2):  # once more, for what rounding left of the others
                new = torch.linalg.qr(new - space @ (space.transpose(1, 2) @ new)).Q
            space = torch.cat((space, new), -1)
            images.append(similarity @ new)
            taken += 1
        small = (space.transpose(1, 2) @ torch.cat(images, -1)).double()
        _, turned = torch.linalg.eigh((small + small.transpose(1, 2)) / 2)
        vectors = space @ turned[..., -block:].flip(-1).float()


def _by_largest_step(values: Tensor) -> int:
    """How many clusters the eigenvalues of A, from the largest, speak for: 2 at least."""
    if len(values) < 3:
        return len(values)
    return 2 + int((values[1:-1] - values[2:]).argmax())


def _rounded(vectors: Tensor, degrees: Tensor, number: int, seed: int) -> np.ndarray:
    """Eigenvectors -> the cluster of each position, by weighted k-means from several starts.

    The first centres are drawn as in k-means++ (Arthur and Vassilvitskii 2007).
    """
    there = (degrees > 0).numpy()
    labels = np.full(len(there), -1, np.int64)
    weights = degrees.numpy()[there]
    if not len(weights):
        return labels
    places = vectors.numpy()[there] / np.sqrt(weights)[:, None]
    squares = (places**2).sum(1)
    random = np.random.default_rng(seed)

    def distances(centres: np.ndarray) -> np.ndarray:
        crossed = squares[:, None] - 2 * places @ centres.T + (centres**2).sum(1)
        return np.asarray(crossed.clip(min=0))

    best, best_error = np.zeros(len(weights), np.int64), np.inf
    for _ in range(STARTS if number > 1 else 1):
        centres = places[random.choice(len(places), 1, p=weights / weights.sum())]
        for _ in range(number - 1):
            odds = weights * distances(centres).min(1)
            if odds.sum() <= 0:
                break
            chosen = random.choice(len(places), 1, p=odds / odds.sum())
            centres = np.concatenate((centres, places[chosen]))
        error = np.inf
        for _ in range(STEPS):
            apart = distances(centres)
            nearest = apart.argmin(1)
            before, error = error, float((weights * apart.min(1)).sum())
            if error < best_error:
                best, best_error = nearest, error
            if error >= before * (1 - 1e-6):
                break
            mass = np.bincount(nearest, weights, len(centres))
            sums = np.stack(
                [np.bincount(nearest, weights * along, len(centres)) for along in places.T], 1
            )
            used = mass > 0
            centres[used] = sums[used] / mass[used, None]
    # The first position of a cluster gives it its number.
    _, first, inverse = np.unique(best, return_index=True, return_inverse=True)
    labels[there] = np.argsort(np.argsort(first))[inverse]
    return labels


def _none(graphs: int, length: int) -> TokenClusters:
    """Of no position, or of no head."""
    nothing = torch.zeros(graphs, 0, dtype=torch.float64)
    labels = np.full((graphs, length), -1, np.int64)
    return TokenClusters(
        labels, np.zeros(graphs, int), Interval(nothing, nothing), nothing, nothing
    )
