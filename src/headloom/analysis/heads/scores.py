"""What the heads of a layer score on a measure, beside what chance would score."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from headloom.analysis.heads.chance import RATES, bennett, chernoff, set_log_means, set_moments
from headloom.analysis.heads.pattern_mass import LayerWeights
from headloom.analysis.heads.patterns import Pattern
from headloom.analysis.interval import Interval

__all__ = ["HeadScores", "Measure", "Role", "no_log_mean", "on_pattern", "without_chance"]


@dataclass(frozen=True, eq=False)
class HeadScores:
    """The scores of all heads of a layer on one measure; sums over rows, so that texts add up.

    rows             (heads,): how many rows count: those that have a key of the pattern at all
    total            (heads,): sum of the rows; a lower bound where they are not known exactly
    upper_total      (heads,): the upper bound
    chance_total     (heads,): what shuffled weights of the same entropy add up to in the mean
    chance_variance  (heads,): and its variance; NaN for a measure without a null distribution
    tail_variance    (heads,): the part of it that bounds how far a sum may stray, for `p`
    cap              (heads,): how far above its mean one shuffled row can be; infinite where
                     rows are not independent of each other
    log_mean         (rates, heads): log of the mean of e^(rate total) of shuffled weights, or more
    """

    measure: str
    rows: Tensor
    total: Tensor
    upper_total: Tensor
    chance_total: Tensor
    chance_variance: Tensor
    tail_variance: Tensor
    cap: Tensor
    log_mean: Tensor

    @property
    def score(self) -> Tensor:
        """The mean over rows, (heads,); NaN where no row has a key of the pattern."""
        return self.total / self.rows

    @property
    def upper(self) -> Tensor:
        """What the score is at most, (heads,)."""
        return self.upper_total / self.rows

    @property
    def chance(self) -> Tensor:
        """The mean score of shuffled weights, (heads,)."""
        return self.chance_total / self.rows

    @property
    def chance_sd(self) -> Tensor:
        """The standard deviation of the score of shuffled weights, (heads,)."""
        return self.chance_variance.sqrt() / self.rows

    @property
    def z(self) -> Tensor:
        """Standard deviations between the score and the null's mean; 0 where nothing varies."""
        apart, sd = self.total - self.chance_total, self.chance_variance.sqrt()
        z = torch.where(sd > 1e-9, apart / sd.clamp(min=1e-9), 0.0)
        return torch.where(self.chance_variance.isnan() | (self.rows == 0), torch.nan, z)

    @property
    def p(self) -> Tensor:
        """A bound of the chance that shuffled weights score as much; NaN without a null.

        The smaller one of two bounds, both of which hold.
        """
        by_variance = bennett(self.total - self.chance_total, self.tail_variance, self.cap)
        bound = torch.minimum(by_variance, chernoff(self.total, self.log_mean))
        return torch.where(self.chance_variance.isnan() | (self.rows == 0), torch.nan, bound)

    @property
    def effect(self) -> Tensor:
        """The score as a share of what chance leaves: (score - chance) / (1 - chance), (heads,)."""
        return (self.score - self.chance) / (1 - self.chance).clamp(min=1e-12)

    @property
    def information(self) -> Tensor:
        """How much more the pattern says than chance, in nats a row, (heads,).

            s log(s / e) + (1 - s) log((1 - s) / (1 - e))

        the divergence of a score s from the null's mean e, 0 where s is below it. A score on a few
        keys says more than the same score on many.
        """
        s, e = self.score.clamp(0, 1), self.chance.clamp(1e-12, 1 - 1e-12)
        divergence = torch.xlogy(s, s / e) + torch.xlogy(1 - s, (1 - s) / (1 - e))
        return torch.where(s.isnan(), torch.nan, torch.where(s > e, divergence, 0.0))

    def __add__(self, other: HeadScores) -> HeadScores:
        """The scores over the rows of both, as of two texts."""
        return HeadScores(
            self.measure,
            self.rows + other.rows,
            self.total + other.total,
            self.upper_total + other.upper_total,
            self.chance_total + other.chance_total,
            self.chance_variance + other.chance_variance,
            self.tail_variance + other.tail_variance,
            torch.maximum(self.cap, other.cap),
            self.log_mean + other.log_mean,
        )


@dataclass(frozen=True)
class Role:
    """What a head is called in which a measure stands out, and how it is shown.

    title     "previous-token head"
    phrase    what follows "Each token looks"
    colours   on a light and on a dark ground
    shape     whether it says the shape of a row only: a role of heads that have no other
    """

    title: str
    phrase: str
    colours: tuple[str, str] = ("#7594a3", "#8a6f42")
    shape: bool = False


@dataclass(frozen=True)
class Measure:
    """A measure of heads: a column of `trace.heads()`, an axis and a bar of the studio.

    name           of the column, and of the role
    title          what its number is
    scores         the function
    role           None: it has no null distribution, so that it cannot be a role
    one_sequence   whether it is of sequences that look at themselves
    """

    name: str
    title: str
    scores: Callable[[LayerWeights], HeadScores]
    role: Role | None = None
    one_sequence: bool = False


def on_pattern(measure: str, weights: LayerWeights, pattern: Pattern) -> HeadScores:
    """The mean mass of the rows of each head on a pattern, over the rows that have a key of it."""
    mass = weights.mass(pattern)
    sizes = weights.sizes(pattern)
    counts = (sizes > 0).double()
    expected, variance = set_moments(
        sizes, weights.allowed.count, weights.squares.upper, weights.row_mass
    )
    most = torch.minimum(weights.row_mass, sizes * weights.largest)
    cap = ((most - expected) * counts).clamp(min=0)
    return HeadScores(
        measure,
        counts.sum(-1),
        (mass.lower * counts).sum(-1),
        _upper_total(mass.upper, counts > 0, weights.certain(pattern)),
        (expected * counts).sum(-1),
        (variance * counts).sum(-1),
        (variance * counts).sum(-1),
        cap.amax(-1) if cap.shape[-1] else cap.sum(-1),
        _log_mean(weights, sizes, counts),
    )


def _upper_total(upper: Tensor, counted: Tensor, certain: Tensor) -> Tensor:
    """What rows sum to at most, (heads,): as many times the largest mean as rows are counted.

    A row that is counted and may have no key of the pattern counts in the mean where that makes it
    larger: so do those with the largest masses.
    """
    there, doubtful = counted & certain, counted & ~certain
    total, rows = torch.where(there, upper, 0).sum(-1), there.sum(-1)
    if not doubtful.any():
        return total
    others = torch.where(doubtful, upper, 0).sort(-1, descending=True).values
    nothing = torch.zeros_like(total[:, None])
    totals = total[:, None] + torch.cat((nothing, others.cumsum(-1)), -1)
    counts = rows[:, None] + torch.arange(others.shape[-1] + 1)
    return (totals / counts.clamp(min=1)).amax(-1) * counted.sum(-1)


def _log_mean(weights: LayerWeights, sizes: Tensor, counts: Tensor) -> Tensor:
    """The log of the mean exponential of the sum over rows, or more, (rates, heads)."""
    rows = set_log_means(sizes, weights.allowed.count, weights.row_mass, *weights.log_means)
    return (rows * counts).sum(-1)


def no_log_mean(heads: int) -> Tensor:
    """Of a sum whose rows depend on each other: no bound, (rates, heads)."""
    return torch.full((len(RATES), heads), torch.inf, dtype=torch.float64)


def without_chance(
    measure: str, weights: LayerWeights, value: Interval, counted: Tensor | None = None
) -> HeadScores:
    """The mean of a number of each row, over the rows that count; random weights have none."""
    counted = weights.graph.count > 0 if counted is None else counted
    lower, upper = (torch.where(counted, part, 0).sum(-1) for part in (value.lower, value.upper))
    rows, none = counted.sum(-1).double(), torch.full_like(lower, torch.nan)
    log_mean = no_log_mean(len(lower))
    return HeadScores(measure, rows, lower, upper, none, none, none, none, log_mean)
