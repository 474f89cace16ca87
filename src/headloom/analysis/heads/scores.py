"""What the heads of a layer score on a measure, beside what chance would score."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headloom.analysis.heads.chance import (
    RATES,
    bennett,
    chernoff,
    partner_moments,
    set_log_means,
    set_moments,
)
from headloom.analysis.heads.layer_weights import LayerWeights
from headloom.analysis.heads.patterns import Pattern

__all__ = [
    "HeadScores",
    "Measure",
    "Role",
    "on_partners",
    "on_patterns",
    "summed",
    "without_chance",
]


@dataclass(frozen=True, eq=False)
class HeadScores:
    """The scores of all heads of a layer on one measure; sums over rows, so that texts add up.

    rows             (heads,): how many rows count: those that have a key of the pattern at all
    total            (heads,): sum of the rows; of kept edges, where these are all there is
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
    of             the function: to the pattern on which mass is measured, or to the scores
    role           None: it has no null distribution, so that it cannot be a role
    one_sequence   whether it is of sequences that look at themselves
    """

    name: str
    title: str
    of: Callable[[LayerWeights], Pattern | HeadScores]
    role: Role | None = None
    one_sequence: bool = False


def on_patterns(weights: LayerWeights, patterns: dict[str, Pattern]) -> dict[str, HeadScores]:
    """The mean mass of the rows of each head on each pattern, over the rows with a key of it."""
    sizes, masses = weights.measured(list(patterns.values()))
    return {
        name: _on_pattern(name, weights, sizes[place], masses[place])
        for place, name in enumerate(patterns)
    }


def _on_pattern(measure: str, weights: LayerWeights, sizes: Tensor, mass: Tensor) -> HeadScores:
    counts = (sizes > 0).double()
    keys, row_mass = weights.counts, weights.row_mass
    expected, variance = set_moments(sizes, keys, weights.squares, row_mass)
    most = torch.minimum(row_mass, sizes * weights.largest)
    cap = ((most - expected) * counts).clamp(min=0)
    log_means = set_log_means(sizes, keys, row_mass, *weights.log_means)
    return HeadScores(
        measure,
        counts.sum(-1),
        (mass * counts).sum(-1),
        (expected * counts).sum(-1),
        (variance * counts).sum(-1),
        (variance * counts).sum(-1),
        cap.amax(-1) if cap.shape[-1] else cap.sum(-1),
        (log_means * counts).sum(-1),
    )


def on_partners(weights: LayerWeights) -> HeadScores:
    """How much each token is looked back at, of heads whose rows see all keys; else no row."""
    heads, queries, keys = weights.layer.shape
    none = torch.full((len(RATES), heads), torch.inf, dtype=torch.float64)
    if not bool((weights.counts == keys).all()):
        no = torch.zeros(heads, dtype=torch.float64)
        return HeadScores("partner", no, no, no, no, no, no, none)
    mean, variance, of_terms = partner_moments(weights.counts, weights.squares)
    # A pair counts twice, and is at most the product of the two largest weights of all.
    cap = 2 * weights.largest.topk(min(2, queries), dim=-1).values.prod(-1)
    rows = torch.full((heads,), queries, dtype=torch.float64)
    total = weights.partners().sum(-1)
    return HeadScores("partner", rows, total, mean, variance, of_terms, cap, none)


def without_chance(
    measure: str, weights: LayerWeights, value: Tensor, counted: Tensor | None = None
) -> HeadScores:
    """The mean of a number of each row, over the rows that count; random weights have none."""
    counted = weights.graph.count > 0 if counted is None else counted
    total, rows = torch.where(counted, value.double(), 0).sum(-1), counted.sum(-1).double()
    none = torch.full_like(total, torch.nan)
    log_mean = torch.full((len(RATES), len(total)), torch.inf, dtype=torch.float64)
    return HeadScores(measure, rows, total, none, none, none, none, log_mean)


def summed(scores: Sequence[dict[str, HeadScores]]) -> dict[str, HeadScores]:
    """The scores of several texts put together."""
    together: dict[str, HeadScores] = {}
    for of_text in scores:
        for name, score in of_text.items():
            together[name] = together[name] + score if name in together else score
    return together
