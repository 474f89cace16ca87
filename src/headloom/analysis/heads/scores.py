"""Scores of a layer's heads, compared with chance.

Chance: each row's weights are shuffled among its visible keys. A row keeps its weights, so its
entropy, its largest weight and its sum of squares are unchanged; only their assignment to keys is
random, uniform over orders and independent between rows. Under this null hypothesis the mass on a
set of keys has a mean and a variance in closed form, and a tail bound without further assumptions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from headloom.analysis.heads.layer_weights import LayerWeights
from headloom.analysis.heads.patterns import Pattern

#: Rates of exponential bounds, 1/2 to 256: doubling steps lose at most a sixth of an exponent.
RATES = 2.0 ** torch.arange(-1, 9, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class HeadScores:
    """Scores of all heads of a layer on one measure; sums over rows, so that texts can be added.

    rows             (heads,): number of rows with a key of the pattern
    total            (heads,): sum over these rows; of kept edges, if there are no others
    chance_total     (heads,): mean of that sum for shuffled weights
    chance_variance  (heads,): its variance; NaN for a measure without a null distribution
    tail_variance    (heads,): the part of the variance used by the tail bound, for `p`
    cap              (heads,): largest excess of one shuffled row over its mean; infinite if rows
                     are not independent
    log_mean         (rates, heads): log of the mean of e^(rate total) of shuffled weights, or an
                     upper bound
    """

    rows: Tensor
    total: Tensor
    chance_total: Tensor
    chance_variance: Tensor
    tail_variance: Tensor
    cap: Tensor
    log_mean: Tensor

    @property
    def score(self) -> Tensor:
        """Mean over rows, (heads,); NaN if no row has a key of the pattern."""
        return self.total / self.rows

    @property
    def chance(self) -> Tensor:
        """Mean score of shuffled weights, (heads,)."""
        return self.chance_total / self.rows

    @property
    def chance_sd(self) -> Tensor:
        """Standard deviation of the score of shuffled weights, (heads,)."""
        return self.chance_variance.sqrt() / self.rows

    @property
    def z(self) -> Tensor:
        """Standard deviations between the score and the null's mean; 0 if nothing varies."""
        apart, sd = self.total - self.chance_total, self.chance_variance.sqrt()
        z = torch.where(sd > 1e-9, apart / sd.clamp(min=1e-9), 0.0)
        return torch.where(self.chance_variance.isnan() | (self.rows == 0), torch.nan, z)

    @property
    def p(self) -> Tensor:
        """Upper bound of the p-value; NaN without a null distribution.

        The smaller of two valid bounds.
        """
        by_variance = bennett(self.total - self.chance_total, self.tail_variance, self.cap)
        bound = torch.minimum(by_variance, chernoff(self.total, self.log_mean))
        return torch.where(self.chance_variance.isnan() | (self.rows == 0), torch.nan, bound)

    @property
    def effect(self) -> Tensor:
        """Effect size: (score - chance) / (1 - chance), (heads,)."""
        return (self.score - self.chance) / (1 - self.chance).clamp(min=1e-12)

    @property
    def information(self) -> Tensor:
        """Information of the score beyond chance, in nats for each row, (heads,).

            s log(s / e) + (1 - s) log((1 - s) / (1 - e))

        the divergence of a score s from the null's mean e, 0 if s is below it. A score on a few
        keys has more information than the same score on many.
        """
        s, e = self.score.clamp(0, 1), self.chance.clamp(1e-12, 1 - 1e-12)
        divergence = torch.xlogy(s, s / e) + torch.xlogy(1 - s, (1 - s) / (1 - e))
        return torch.where(s.isnan(), torch.nan, torch.where(s > e, divergence, 0.0))

    def __add__(self, other: HeadScores) -> HeadScores:
        """Return the scores over the rows of both, for two texts."""
        names = [field.name for field in fields(self)]
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        return HeadScores(**sums | {"cap": torch.maximum(self.cap, other.cap)})


def on_patterns(
    weights: LayerWeights, patterns: Mapping[str, Pattern], masses: Mapping[str, Tensor]
) -> dict[str, HeadScores]:
    """Return the mean mass of each head on each pattern, over the rows with a key of it."""
    known = torch.where(weights.graph.keys >= 0, weights.graph.weights, -1)
    row = known, *weights.left_out, weights.counts
    up, down = log_means(*row, 1), log_means(*row, -1)
    keys, row_mass, squares = weights.counts, weights.row_mass, weights.sums.squares
    scores = {}
    for name, pattern in patterns.items():
        sizes = torch.minimum(weights.visible.sizes(pattern), keys)
        counts = (sizes > 0).double()
        expected, variance = set_moments(sizes, keys, squares, row_mass)
        most = torch.minimum(row_mass, sizes * weights.largest)
        cap = ((most - expected) * counts).clamp(min=0)
        of_sets = set_log_means(sizes, keys, row_mass, up, down)
        spread = (variance * counts).sum(-1)
        scores[name] = HeadScores(
            rows=counts.sum(-1), total=(masses[name] * counts).sum(-1),
            chance_total=(expected * counts).sum(-1), chance_variance=spread, tail_variance=spread,
            cap=cap.amax(-1) if cap.shape[-1] else cap.sum(-1), log_mean=(of_sets * counts).sum(-1),
        )  # fmt: skip
    return scores


def on_partners(weights: LayerWeights) -> HeadScores:
    """Return the mass of mutual attention, for heads without a mask; otherwise no rows."""
    heads, queries, keys = weights.layer.shape
    no = torch.zeros(heads, dtype=torch.float64)
    none = torch.full((len(RATES), heads), torch.inf, dtype=torch.float64)
    if not bool((weights.counts == keys).all()):
        return HeadScores(no, no, no, no, no, no, none)
    mean, variance, of_terms = partner_moments(weights.sums.squares)
    # A pair counts twice, and is at most the product of the two largest weights.
    cap = 2 * weights.largest.topk(min(2, queries), dim=-1).values.prod(-1)
    total = weights.partners().sum(-1)
    return HeadScores(no + queries, total, no + mean, variance, of_terms, cap, none)


def without_chance(
    weights: LayerWeights, value: Tensor, counted: Tensor | None = None
) -> HeadScores:
    """Return the mean of a number of each row, without a null distribution."""
    counted = weights.graph.count > 0 if counted is None else counted
    total, rows = torch.where(counted, value.double(), 0).sum(-1), counted.sum(-1).double()
    none = torch.full_like(total, torch.nan)
    log_mean = torch.full((len(RATES), len(total)), torch.inf, dtype=torch.float64)
    return HeadScores(rows, total, none, none, none, none, log_mean)


def set_moments(
    sizes: Tensor, counts: Tensor, squares: Tensor, mass: Tensor | float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return mean and variance of a shuffled row's mass on a set of its keys.

        mean     = M m / n
        variance = m (n - m) / (n^2 (n - 1)) (n sum_j w_j^2 - M^2)

    for m keys of n and weights w_j that add up to M: the sum of m weights drawn without
    replacement.

    Args:
        sizes: m, the number of keys in the set.
        counts: n, the number of visible keys.
        squares: the row's sum of squares; its inverse is the effective number of keys.
        mass: M; 1 without a sink.

    Returns: mean and variance, of the common shape; 0 if n = 0.
    Source: Cochran 1977, theorems 2.1 and 2.2.
    """
    m, n = sizes.double(), counts.double()
    total = torch.as_tensor(mass).double()
    mean = torch.where(n > 0, total * m / n.clamp(min=1), 0.0)
    spread = (n * squares.double() - total.square()).clamp(min=0)
    variance = m * (n - m).clamp(min=0) * spread / (n.square() * (n - 1)).clamp(min=1)
    return mean, variance


def partner_moments(squares: Tensor) -> tuple[float, Tensor, Tensor]:
    """Return mean and variance of ``sum_i sum_(j != i) w_ij w_ji`` for shuffled rows.

    For n rows with n visible keys each. A shuffled weight has the mean 1 / n; with q_i = sum_j
    w_ij^2, its square has the mean q_i / n, and the product of two weights of a row the mean c_i =
    (1 - q_i) / (n (n - 1)):

        mean     = (n - 1) / n
        variance = 4 / n^2 sum_(i<j) (q_i q_j - 1 / n^2)
                   + 4 (n - 1) (n - 2) / n^2 sum_i (c_i - 1 / n^2)

    The second part is negative: pairs that share a row are negatively associated.

    Args: squares: q, (heads, n).
    Returns: mean, variance, and its first part, for a tail bound; (heads,).
    """
    n, q = max(squares.shape[-1], 1), squares.double()
    pairs = (q.sum(-1).square() - q.square().sum(-1)) / 2
    apart = 4 / n**2 * (pairs - (n - 1) / (2 * n))
    c = (1 - q) / max(n * (n - 1), 1)
    together = 4 * (n - 1) * (n - 2) / n**2 * (c - 1 / n**2).sum(-1)
    return (n - 1) / n, (apart + together).clamp(min=0), apart.clamp(min=0)


def bennett(excess: Tensor, variance: Tensor, cap: Tensor) -> Tensor:
    """Return Bennett's bound of the probability that a sum exceeds its mean by `excess`.

        P(S - E S >= t) <= exp(-V / b^2 h(b t / V)),  h(u) = (1 + u) log(1 + u) - u

    Holds for terms that are independent, or negatively associated (as in one shuffled row), and at
    most b above their mean; they need not be normal. The true p-value is smaller.

    Args:
        excess: t.
        variance: V, the sum of the terms' variances.
        cap: b, the largest excess of one term over its mean.

    Returns: at most 1; 1 if nothing varies.
    Source: Bennett 1962; Boucheron, Lugosi, Massart 2013, theorem 2.9; for negatively associated
    terms Joag-Dev and Proschan 1983, Dubhashi and Ranjan 1998.
    """
    t, v, b = excess.double(), variance.double(), cap.double()
    varies = (t > 0) & (v > 1e-18) & (b > 1e-12)
    u = b * t / v.clamp(min=1e-18)
    exponent = v / b.clamp(min=1e-12).square() * ((1 + u) * torch.log1p(u) - u)
    return torch.where(varies, torch.exp(-exponent), 1.0).clamp(max=1)


def log_means(weights: Tensor, left: Tensor, largest: Tensor, counts: Tensor, sign: int) -> Tensor:
    """Return the log of the mean exponential of the weight of a row's random key.

        K(a) = log (1 / n sum_j e^(a w_j)),  a = sign * RATES

    For unknown weights only their sum and an upper bound of each are known; as the exponential is
    convex, K is largest if as many as possible of them equal the bound and the others are 0.

    Args:
        weights: the known ones, (..., k); minus 1: no weight.
        left: sum of the others, (...,).
        largest: upper bound of each of the others, (...,).
        counts: n, (...,).
        sign: 1 or -1.

    Returns: (rates, ...).
    """
    known, n = weights >= 0, counts.double()
    w, others = weights.double(), n - known.sum(-1)
    # As many as possible equal the bound; if rounding requires more, all share the rest.
    most = torch.maximum(largest.double(), left.double() / others.clamp(min=1)) * (others > 0)
    full = torch.where(most > 0, left.double() / most.clamp(min=1e-300), 0.0)
    powers = torch.where(known, (w * sign / 2).exp(), 0.0)
    bound = (most * sign / 2).exp()
    parts = []
    for _ in RATES:
        # Only terms of one sign: a row of few keys may add up to e^-256.
        total = powers.sum(-1) + full * bound + (others - full).clamp(min=0)
        parts.append((total / n.clamp(min=1)).clamp(min=1e-300).log())
        # Each rate is twice the one before it.
        powers.square_()
        bound.square_()
    return torch.stack(parts)


def set_log_means(
    sizes: Tensor, counts: Tensor, mass: Tensor | float, up: Tensor, down: Tensor
) -> Tensor:
    """Return a bound of the log of the mean exponential of a shuffled row's mass on a set.

        log E e^(a S) <= min(m K(a), a M + (n - m) K(-a))

    for m keys of n and weights that add up to M: m weights drawn without replacement vary no more
    than m drawn with replacement, and S is M less the mass on the other n - m keys.

    Args: sizes: m. counts: n. mass: M. up, down: K(a) and K(-a), from `log_means`.
    Returns: (rates, ...).
    Source: Hoeffding 1963, theorem 4.
    """
    m, n = sizes.double(), counts.double()
    rates = RATES.reshape(-1, *[1] * (up.ndim - 1))
    others = rates * torch.as_tensor(mass).double() + (n - m) * down
    return torch.minimum(m * up, others)


def chernoff(total: Tensor, log_mean: Tensor) -> Tensor:
    """Return Chernoff's bound of the probability that a sum of independent rows is as large.

        P(S >= t) <= min over a of e^(-a t) E e^(a S)

    If a few rows are sharp this is much tighter than a bound by variance: for rows with one key
    each it is the product of their 1 / n_i.

    Args: total: t, (heads,). log_mean: log E e^(a S) or a bound of it, (rates, heads).
    Source: Chernoff 1952; Boucheron, Lugosi, Massart 2013, section 2.2.
    """
    exponents = log_mean - RATES[:, None] * total.double()
    return exponents.amin(0).clamp(max=0).exp()


def holm(p: Tensor) -> Tensor:
    """Return p-values with Holm's correction for multiple tests (family-wise error rate).

    The i-th smallest of n is multiplied by n - i + 1, and is at least as large as the one before.

    Args: p: (tests,); NaN: no test.
    Returns: (tests,), with the same NaN.
    Source: Holm 1979.

    >>> holm(torch.tensor([0.01, 0.04, float("nan"), 0.03], dtype=torch.float64))
    tensor([0.0300, 0.0600,    nan, 0.0600], dtype=torch.float64)
    """
    tested = ~p.isnan()
    ordered, order = p[tested].sort()
    factors = torch.arange(len(ordered), 0, -1, dtype=p.dtype)
    corrected = torch.empty_like(ordered)
    corrected[order] = (
        (ordered * factors).cummax(0).values.clamp(max=1) if len(ordered) else ordered
    )
    result = torch.full_like(p, torch.nan)
    result[tested] = corrected
    return result
