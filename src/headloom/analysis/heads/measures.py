"""Measures of a head: the share of each row on sets of keys.

Row i is a query, column j a key. A score is the mean over the rows that have such a key, from 0 to
1, and comes with the score of shuffled weights (`headloom.analysis.heads.scores`). `HEAD_MEASURES`
is the list; `layer_scores` measures a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from headloom.analysis.heads.layer_weights import REACH, LayerWeights
from headloom.analysis.heads.patterns import (
    Classes,
    Diagonals,
    HeadKeys,
    Pattern,
    punctuation_marks,
    separators,
)
from headloom.analysis.heads.scores import HeadScores, on_partners, on_patterns, without_chance
from headloom.formats.tokens import each_once, shown
from headloom.formats.trace import TraceLayer

#: Maximal number of keys of a vertical pattern.
STRIPES = 16


@dataclass(frozen=True)
class Role:
    """Name and display of a head in which a measure stands out.

    title     "previous-token head"
    phrase    the end of the sentence "Each token looks ..."
    colours   on a light and on a dark background
    shape     whether it describes the shape of a row only: for heads without another role
    """

    title: str
    phrase: str
    colours: tuple[str, str] = ("#7594a3", "#8a6f42")
    shape: bool = False


@dataclass(frozen=True)
class Measure:
    """Measure of heads: a column of `trace.heads()`, an axis and a bar of the studio.

    name           of the column, and of the role
    title          meaning of its number
    of             returns the pattern of a layer whose mass is measured
    role           None: it has no null distribution, so it cannot be a role
    one_sequence   whether it applies to self-attention only
    scores         computes a measure that is not the mass on a pattern
    """

    name: str
    title: str
    of: Callable[[TraceLayer], Pattern] | None = None
    role: Role | None = None
    one_sequence: bool = False
    scores: Callable[[LayerWeights], HeadScores] | None = None


def _diagonals(lowest: int, highest: int) -> Callable[[TraceLayer], Pattern]:
    return lambda layer: Diagonals(lowest, highest)


def _first(layer: TraceLayer) -> Pattern:
    return Classes.of_keys_at(layer, [0])


def _vertical(layer: TraceLayer) -> Pattern:
    """Return the keys most often among the three strongest of an odd row, for even rows.

    For each head, with more than a uniform weight: STRIPES keys, or a quarter of all; of equals the
    first. So the even rows do not influence the choice, which is the same for any number of kept
    edges from three on.
    """
    graph = layer.graph
    heads, queries, keys = graph.shape
    odd = torch.arange(queries) % 2 == 1
    count = torch.zeros(heads, keys, dtype=torch.float64)
    strongest, even = graph.keys[..., :3], 1 / graph.count.clamp(min=1)
    counted = (strongest >= 0) & (graph.weights[..., :3] > even[..., None]) & odd[:, None]
    count.scatter_add_(1, strongest.clamp(min=0).flatten(1).long(), counted.double().flatten(1))
    # Less than one, so that it only orders equals.
    count -= torch.arange(keys) / (2 * max(keys, 1))
    places = count.topk(min(STRIPES, keys // 4), dim=-1).indices
    return HeadKeys(places, ~odd, keys)


def _breadth(weights: LayerWeights) -> HeadScores:
    counts = weights.graph.count
    share = weights.graph.entropy.double().exp() / counts.clamp(min=1)
    return without_chance(weights, share, counts > 1)


#: Every measure, in the order of the table; measures that can be a role come first.
HEAD_MEASURES: tuple[Measure, ...] = (
    # mean over i >= 1 of w_(i, i-1). Clark et al. 2019, section 3.1; Voita et al. 2019.
    Measure(
        "previous", "weight on the token before", _diagonals(-1, -1),
        Role("previous-token head", "at the one before it", ("#2e63b6", "#8defee")), True,
    ),
    # mean over i < N - 1 of w_(i, i+1). Clark et al. 2019, section 3.1.
    Measure(
        "next", "weight on the token after", _diagonals(1, 1),
        Role("next-token head", "at the one after it", ("#295a63", "#a4ce49")), True,
    ),
    # mean of w_ii. Clark et al. 2019, section 3.1.
    Measure(
        "same", "weight on the token itself", _diagonals(0, 0),
        Role("same-token head", "at itself", ("#502d8c", "#9380ed")), True,
    ),
    # mean of w_i0: a sink for unused weight. Xiao et al. 2024; Clark et al. 2019, section 3.2
    # ([CLS]).
    Measure(
        "first", "weight on the first token", _first,
        Role("first-token sink", "at the first token", ("#4b3c1a", "#7067a8")),
    ),
    # mean of sum_(j in S) w_ij, S by `sink_keys`. Xiao et al. 2024; Sun et al. 2024, section 4; Gu
    # et al. 2025, section 3.
    Measure(
        "sink", "weight on the sinks of the other layers", None,
        Role("sink head", "at the tokens that heads of all layers look at",
             ("#6c6c6c", "#b6c6bc")),
    ),
    # mean of sum_(j in S) w_ij, S the special tokens that end or separate texts, except the first
    # token. Clark et al. 2019, section 3.2.
    Measure(
        "separator", "weight on separators",
        lambda layer: Classes.of_keys_at(layer, separators(layer.key_tokens)),
        Role("separator head", "at the separators", ("#3d3b4a", "#939393")),
    ),
    # mean of sum_(j in S) w_ij, S the tokens of Unicode's punctuation alone. As above.
    Measure(
        "punctuation", "weight on punctuation",
        lambda x: Classes.of_keys_at(x, punctuation_marks(each_once(shown(x.key_tokens)))),
        Role("punctuation head", "at punctuation", ("#949165", "#7d7d7d")),
    ),
    # mean of sum_(j: t_(j-1) = t_i, j != i + 1) w_ij, over the i that have such a j: the head can
    # repeat the token that followed last time. In a causal layer j <= i; the token right after the
    # query follows the query itself. Olsson et al. 2022 ("prefix matching score").
    Measure(
        "induction", "weight on what followed earlier copies of the token",
        partial(Classes.of_tokens, shifted=True),
        Role("induction head", "at what followed earlier copies of itself",
             ("#4b8af4", "#83b5fe")),
    ),
    # mean of sum_(j: t_j = t_i, j != i) w_ij, over the i whose token occurs elsewhere too; between
    # two sequences, on all its places in the other. Wang et al. 2022.
    Measure(
        "duplicate", "weight on copies of the token", partial(Classes.of_tokens, shifted=False),
        Role("duplicate-token head", "at copies of itself", ("#a86bcb", "#a977bc")),
    ),
    # mean of sum_(|i - j| <= 4) w_ij. Clark et al. 2019, section 3.1; Child et al. 2019.
    Measure(
        "local", f"mass within {REACH} tokens", _diagonals(-REACH, REACH),
        Role("local head", "at its neighbours", ("#cd7c15", "#fee298")), True,
    ),
    # mean of sum_(j != i) w_ij w_ji, without a mask. Reciprocity of a weighted graph, Squartini et
    # al. 2013, here by rows.
    Measure(
        "partner", "weight that comes back", None,
        Role("mutual head", "at those that look back at it", ("#42759c", "#8cb2c7")), True,
        on_partners,
    ),
    # mean over even i of sum_(j in S) w_ij, S a few keys, the same for every query: stripes down
    # the matrix. Kovaleva et al. 2019, section 4.1.
    Measure(
        "vertical", "weight on the keys that the other rows look at", _vertical,
        Role("vertical head", "at the same few keys, whatever it is", ("#86481c", "#bd835d"),
             shape=True),
    ),
    # mean of e^(entropy_i) / n_i over rows with more than one visible key: 1 for a uniform row. The
    # perplexity of the row; Clark et al. 2019, section 3.3 ("broad heads").
    Measure("broad", "effective share of the visible keys", scores=_breadth),
    # mean of - sum_j w_ij log w_ij; always exact. Clark et al. 2019, section 3.3.
    Measure(
        "entropy", "entropy of a row, nats",
        scores=lambda weights: without_chance(weights, weights.graph.entropy),
    ),
    # mean of sum_j w_ij |i - j|. Vig and Belinkov 2019, section 5.2.
    Measure(
        "distance", "mean distance, tokens", one_sequence=True,
        scores=lambda weights: without_chance(weights, weights.sums.distance),
    ),
)  # fmt: skip


def head_patterns(layer: TraceLayer, special: Sequence[int] | None = None) -> dict[str, Pattern]:
    """Return the patterns of a layer's measures, except the sinks.

    special: keys that are separators; None: by the names of tokens.
    """
    patterns = {
        measure.name: measure.of(layer)
        for measure in HEAD_MEASURES
        if measure.of is not None and (layer.one_sequence or not measure.one_sequence)
    }
    if special is not None:
        patterns["separator"] = Classes.of_keys_at(layer, special)
    return patterns


def layer_scores(
    layer: TraceLayer | LayerWeights,
    *,
    sinks: Sequence[int] | None = None,
    without: Collection[str] = (),
) -> dict[str, HeadScores]:
    """Return the scores of a layer's heads on every measure that applies to it.

    Args:
        layer: of a trace; or its weights, read with the patterns of `head_patterns`.
        sinks: keys that are sinks; None: unknown, and that measure is left out.
        without: measures to leave out, of those that are not the mass on a pattern.

    >>> import headloom
    >>> before = torch.tensor([[1., 0, 0], [1, 0, 0], [0, 1, 0]])
    >>> trace = headloom.from_weights(before[None], mask=torch.ones(3, 3).bool())
    >>> scores = layer_scores(trace.layers[0])["previous"]
    >>> scores.score.item(), round(scores.chance.item(), 4)
    (1.0, 0.3333)
    """
    if not isinstance(layer, LayerWeights):
        layer = LayerWeights(layer, patterns=head_patterns(layer))
    patterns, masses = dict(layer.patterns), dict(layer.sums.masses)
    if sinks is not None:
        patterns["sink"] = Classes.of_keys_at(layer.layer, sinks)
        masses["sink"] = layer.mass_on(sinks)
    scores = on_patterns(layer, patterns, masses)
    for measure in HEAD_MEASURES:
        applies = layer.layer.one_sequence or not measure.one_sequence
        if measure.scores is not None and applies and measure.name not in without:
            scores[measure.name] = measure.scores(layer)
    return scores
