"""The null distribution against shuffles that are really made."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tests.analysis.dense_layer import layer_of_weights
from tests.slow import slow
from torch import Tensor

from headloom.analysis.heads.measures import layer_scores
from headloom.analysis.heads.roles import MEASURES
from headloom.analysis.heads.scores import HeadScores, bennett, log_means, set_moments
from headloom.formats.trace import TraceLayer

TOKENS = [str(i * i % 7) for i in range(16)]
SHUFFLES = 4000


def peaked(causal: bool) -> Tensor:
    """Rows from nearly uniform to nearly on one key, (1, 16, 16)."""
    generator = torch.Generator().manual_seed(4)
    scores = torch.randn(16, 16, generator=generator) * torch.linspace(0.1, 6, 16)[:, None]
    if causal:
        scores = scores.masked_fill(~torch.ones(16, 16, dtype=torch.bool).tril(), -torch.inf)
    return scores.softmax(-1)[None]


def shuffled(weights: Tensor, causal: bool) -> Tensor:
    """Each row's weights dealt out anew among its keys, (shuffles, 16, 16)."""
    generator = torch.Generator().manual_seed(5)
    found = weights.repeat(SHUFFLES, 1, 1)
    for i in range(16):
        end = i + 1 if causal else 16
        order = torch.rand(SHUFFLES, end, generator=generator).argsort(-1)
        found[:, i, :end] = found[:, i, :end].gather(-1, order)
    return found


def score(layer: TraceLayer, measure: str) -> HeadScores:
    others = {name for name in MEASURES if name != measure}
    return layer_scores(layer, without=others)[measure]


PATTERNS = ["previous", "first", "duplicate", "induction"]


@pytest.mark.parametrize(
    ("measure", "causal"),
    [
        *slow(("partner", False)),
        *((one, rule) for one in PATTERNS for rule in (False, True)),
    ],
)
def test_mean_variance_and_tail_against_shuffles(measure: str, causal: bool) -> None:
    mask = "causal" if causal else "all"
    weights = peaked(causal)
    layer = layer_of_weights(weights, TOKENS, mask=mask)  # type: ignore[arg-type]
    scores = score(layer, measure)
    every = layer_of_weights(shuffled(weights, causal), TOKENS, mask=mask)  # type: ignore[arg-type]
    drawn = score(every, measure).score
    error = drawn.std() / SHUFFLES**0.5
    assert scores.chance.item() == pytest.approx(drawn.mean().item(), abs=4 * error.item())
    assert scores.chance_sd.item() == pytest.approx(drawn.std().item(), rel=0.06)
    # The bound of the tail holds, at every height.
    for quantile in (0.5, 0.9, 0.99, 0.999):
        height = drawn.quantile(quantile)
        at = replace(scores, total=height[None] * scores.rows)
        share = (drawn >= height).double().mean().item()
        assert at.p.item() >= share - 4 * (share / SHUFFLES) ** 0.5


def test_one_key_in_n_is_a_coin() -> None:
    mean, variance = set_moments(torch.tensor(3), torch.tensor(10), torch.tensor(1.0))
    assert mean.item() == pytest.approx(0.3)
    assert variance.item() == pytest.approx(0.3 * 0.7)
    # All keys: nothing varies. No key: nothing there.
    assert set_moments(torch.tensor(10), torch.tensor(10), torch.tensor(0.5))[1].item() == 0
    assert [x.item() for x in set_moments(*torch.zeros(3, 1).long())] == [0, 0]


def test_bennett_bounds_the_binomial_tail() -> None:
    """Exact tail of 18 rows on one key of 19 each: P(X >= k) by hand."""
    from math import comb

    chance = 1 / 19
    for k in range(2, 19):
        exact = sum(comb(18, j) * chance**j * (1 - chance) ** (18 - j) for j in range(k, 19))
        bound = bennett(
            torch.tensor(k - 18 * chance),
            torch.tensor(18 * chance * (1 - chance)),
            torch.tensor(1 - chance),
        ).item()
        assert exact <= bound <= 40 * exact**0.7


def test_chernoff_of_one_key_in_n_is_the_product() -> None:
    """Rows with one key each, all of them on the first: chance is 1 / n! in a causal layer."""
    n = 14
    first = torch.zeros(1, n, n)
    first[..., 0] = 1
    scores = score(layer_of_weights(first, mask="causal"), "first")
    exact = 1 / math.factorial(n)
    assert exact <= scores.p.item() <= 1.001 * exact


@pytest.mark.parametrize("seed", range(3))
def test_the_tail_of_short_causal_rows_is_exact_or_larger(seed: int) -> None:
    """Six causal rows have 720 orders: the share of those that score as much, counted."""
    scores = 2 * torch.randn(6, 6, generator=torch.Generator().manual_seed(seed))
    hidden = ~torch.ones(6, 6, dtype=torch.bool).tril()
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    layer = layer_of_weights(weights[None], mask="causal")
    for measure, place in (("same", lambda i: i), ("first", lambda i: 0)):
        found = score(layer, measure)
        # Under the null row i puts any of its i + 1 weights on the one key, each as likely.
        sums = torch.zeros(1, dtype=torch.float64)
        for i in range(6):
            sums = (sums[:, None] + weights[i, : i + 1].double()).flatten()
        reached = sum(float(weights[i, place(i)]) for i in range(6))
        exact = float((sums >= reached - 1e-6).double().mean())
        assert found.p.item() >= exact


def test_weights_that_are_not_known_make_the_bound_larger() -> None:
    weights = torch.rand(5, 30, generator=torch.Generator().manual_seed(3)).sort(-1, True).values
    weights = weights / weights.sum(-1, keepdim=True)
    counts, nothing = torch.full((5,), 30), torch.zeros(5)
    for sign in (1, -1):
        whole = log_means(weights, nothing, nothing, counts, sign)
        kept = log_means(weights[:, :8], weights[:, 8:].sum(-1), weights[:, 7], counts, sign)
        assert bool((kept >= whole - 1e-9).all())
        assert bool((kept[:4] < whole[:4] + 0.5).all())
