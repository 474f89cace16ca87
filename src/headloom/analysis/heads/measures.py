"""The measures of a head: how much of each row goes where, one function each.

Direction: row i is the query that looks, column j the key that is looked at. A score is the mean
over the rows that have such a key, from 0 to 1, and comes with what shuffled weights would score
(`headloom.analysis.heads.chance`). A function gives the sets of keys whose mass is the measure
(`headloom.analysis.heads.patterns`), or the scores themselves; `layer_scores` applies them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

import torch

from headloom.analysis.heads.layer_weights import LayerWeights
from headloom.analysis.heads.patterns import (
    Classes,
    Diagonals,
    HeadKeys,
    Pattern,
    punctuation_marks,
    separators,
)
from headloom.analysis.heads.scores import (
    HeadScores,
    Measure,
    Role,
    on_partners,
    on_patterns,
    without_chance,
)
from headloom.formats.tokens import each_once, shown
from headloom.formats.trace import TraceLayer
from headloom.mechanism.shapes import whole_number

__all__ = [
    "breadth",
    "distance",
    "duplicate_token",
    "entropy",
    "first_token",
    "head_measures",
    "induction",
    "layer_scores",
    "local_window",
    "next_token",
    "previous_token",
    "punctuation",
    "same_token",
    "separator",
    "sink",
    "symmetric_partner",
    "vertical",
]

#: Keys of a vertical pattern, at most.
STRIPES = 16


def head_measures(
    special: Sequence[int] | None = None, reach: int = 4, sinks: Sequence[int] = ()
) -> tuple[Measure, ...]:
    """Every measure, in the order of the table; first those that can be a role.

    Args:
        special: which keys are separators; None: those with the names of some.
        reach: tokens on either side that are local.
        sinks: which keys are sinks, from `headloom.analysis.heads.sinks.sink_keys`.
    """
    return (
        Measure(
            "previous", "weight on the token before", previous_token,
            Role("previous-token head", "at the one before it", ("#2e63b6", "#8defee")), True,
        ),
        Measure(
            "next", "weight on the token after", next_token,
            Role("next-token head", "at the one after it", ("#295a63", "#a4ce49")), True,
        ),
        Measure(
            "same", "weight on the token itself", same_token,
            Role("same-token head", "at itself", ("#502d8c", "#9380ed")), True,
        ),
        Measure(
            "first", "weight on the first token", first_token,
            Role("first-token sink", "at the first token", ("#4b3c1a", "#7067a8")),
        ),
        Measure(
            "sink", "weight on the sinks of the other layers", partial(sink, at=sinks),
            Role("sink head", "at the tokens that heads of all layers look at",
                 ("#6c6c6c", "#b6c6bc")),
        ),
        Measure(
            "separator", "weight on separators", partial(separator, at=special),
            Role("separator head", "at the separators", ("#3d3b4a", "#939393")),
        ),
        Measure(
            "punctuation", "weight on punctuation", punctuation,
            Role("punctuation head", "at punctuation", ("#949165", "#7d7d7d")),
        ),
        Measure(
            "induction", "weight on what followed earlier copies of the token", induction,
            Role("induction head", "at what followed earlier copies of itself",
                 ("#4b8af4", "#83b5fe")),
        ),
        Measure(
            "duplicate", "weight on copies of the token", duplicate_token,
            Role("duplicate-token head", "at copies of itself", ("#a86bcb", "#a977bc")),
        ),
        Measure(
            "local", f"mass within {reach} tokens", partial(local_window, reach=reach),
            Role("local head", "at its neighbours", ("#cd7c15", "#fee298")), True,
        ),
        Measure(
            "partner", "weight that comes back", symmetric_partner,
            Role("mutual head", "at those that look back at it", ("#42759c", "#8cb2c7")), True,
        ),
        Measure(
            "vertical", "weight on the keys that the other rows look at", vertical,
            Role("vertical head", "at the same few keys, whatever it is", ("#86481c", "#bd835d"),
                 shape=True),
        ),
        Measure("broad", "keys looked at, as if evenly, of those allowed", breadth),
        Measure("entropy", "entropy of a row, nats", entropy),
        Measure("distance", "mean distance, tokens", distance, one_sequence=True),
    )  # fmt: skip


def layer_scores(
    layer: TraceLayer | LayerWeights,
    *,
    special: Sequence[int] | None = None,
    reach: int = 4,
    sinks: Sequence[int] | None = None,
    without: Collection[str] = (),
) -> dict[str, HeadScores]:
    """The scores of a layer's heads on every measure that applies to it.

    Args:
        layer: of a trace.
        special: which keys are separators; None: those with the names of some.
        reach: tokens on either side that are local.
        sinks: which keys are sinks; None: it is not known, and that measure is left out.
        without: measures that are left out.

    >>> from headloom.analysis.dense_layer import layer_of_weights
    >>> before = torch.tensor([[1., 0, 0], [1, 0, 0], [0, 1, 0]])
    >>> scores = layer_scores(layer_of_weights(before[None]))["previous"]
    >>> scores.score.item(), round(scores.chance.item(), 4)
    (1.0, 0.3333)
    """
    reach = whole_number("layer_scores", "reach", reach, 0)
    weights = layer if isinstance(layer, LayerWeights) else LayerWeights(layer)
    measured = {
        measure.name: measure.of(weights)
        for measure in head_measures(special, reach, sinks or ())
        if (weights.one_sequence or not measure.one_sequence)
        and (sinks is not None or measure.name != "sink")
        and measure.name not in without
    }
    scores = {name: of for name, of in measured.items() if isinstance(of, HeadScores)}
    patterns = {name: of for name, of in measured.items() if not isinstance(of, HeadScores)}
    of_patterns = on_patterns(weights, patterns)
    return {name: scores.get(name) or of_patterns[name] for name in measured}


def previous_token(weights: LayerWeights) -> Pattern:
    """Mass on the token before the query.

        mean over i >= 1 of w_(i, i-1)

    Source: Clark et al. 2019, section 3.1; Voita et al. 2019 ("positional heads").
    """
    return Diagonals(-1, -1, weights.layer.shape[2])


def next_token(weights: LayerWeights) -> Pattern:
    """Mass on the token after the query; nowhere in a causal layer.

        mean over i < N - 1 of w_(i, i+1)

    Source: Clark et al. 2019, section 3.1.
    """
    return Diagonals(1, 1, weights.layer.shape[2])


def same_token(weights: LayerWeights) -> Pattern:
    """Mass on the query's own position.

        mean of w_ii

    Source: Clark et al. 2019, section 3.1.
    """
    return Diagonals(0, 0, weights.layer.shape[2])


def first_token(weights: LayerWeights) -> Pattern:
    """Mass on the first token, where heads put what they have no use for: an attention sink.

        mean of w_i0

    Source: Xiao et al. 2024; Clark et al. 2019, section 3.2 ([CLS]).
    """
    return Classes.of_keys_at(weights.layer, [0])


def sink(weights: LayerWeights, at: Sequence[int]) -> Pattern:
    """Mass on the sinks: tokens at which heads of all layers look, the first or any other.

        mean of sum_(j in S) w_ij

    at: S, chosen without this layer: `headloom.analysis.heads.sinks.sink_keys`.

    Source: Xiao et al. 2024; Sun et al. 2024, section 4; Gu et al. 2025, section 3.
    """
    return Classes.of_keys_at(weights.layer, at)


def separator(weights: LayerWeights, at: Sequence[int] | None = None) -> Pattern:
    """Mass on the special tokens that end or part texts, [SEP] or </s>, but for the first token.

        mean of sum_(j in S) w_ij

    at: which keys; None: those named in `patterns.SEPARATORS`.

    Source: Clark et al. 2019, section 3.2.
    """
    return Classes.of_keys_at(
        weights.layer, separators(weights.layer.key_tokens) if at is None else at
    )


def punctuation(weights: LayerWeights) -> Pattern:
    """Mass on full stops, commas and the like: tokens of Unicode's punctuation alone.

        mean of sum_(j in S) w_ij

    Source: Clark et al. 2019, section 3.2.
    """
    at = punctuation_marks(each_once(shown(weights.layer.key_tokens)))
    return Classes.of_keys_at(weights.layer, at)


def local_window(weights: LayerWeights, reach: int = 4) -> Pattern:
    """Mass on the tokens around the query.

        mean of sum_(|i - j| <= reach) w_ij

    Source: Clark et al. 2019, section 3.1; Child et al. 2019 (local patterns).
    """
    return Diagonals(-reach, reach, weights.layer.shape[2])


def duplicate_token(weights: LayerWeights) -> Pattern:
    """Mass on the other places where the query's token stands; in a causal layer, earlier ones.

        mean of sum_(j: t_j = t_i, j != i) w_ij, over the i whose token stands elsewhere too

    Between two sequences: on all places of the other where the token stands.

    Source: Wang et al. 2022 ("duplicate token heads").
    """
    return Classes.of_tokens(weights.layer, shifted=False)


def induction(weights: LayerWeights) -> Pattern:
    """Mass on the tokens that followed earlier copies of the query's token.

        mean of sum_(j: t_(j-1) = t_i, j != i + 1) w_ij, over the i that have such a j

    A head that looks there can repeat what came next the last time. In a causal layer j <= i; the
    token right after the query follows the query itself, and does not count.

    Source: Olsson et al. 2022 ("prefix matching score").
    """
    return Classes.of_tokens(weights.layer, shifted=True)


def symmetric_partner(weights: LayerWeights) -> HeadScores:
    """How much each token is looked back at by those it looks at.

        mean of sum_(j != i) w_ij w_ji

    Only where every token may look at every other: there is no looking back under a causal mask.

    Source: reciprocity of a weighted graph, Squartini et al. 2013, here in its rows.
    """
    return on_partners(weights)


def vertical(weights: LayerWeights) -> Pattern:
    """Mass on a few keys that are the same for every query: stripes down the matrix.

        mean over even i of sum_(j in S) w_ij

    S are the keys that stand most often among the three strongest of an odd row of the head, with
    more than an even row gives them: 16 of them, or a quarter of all; of equals the first. So the
    even rows have no part in choosing them, and the choice is the same however few edges of a row
    were kept, from three on.

    Source: Kovaleva et al. 2019, section 4.1 ("vertical" patterns).
    """
    heads, queries, keys = weights.graph.shape
    odd = torch.arange(queries) % 2 == 1
    count = torch.zeros(heads, keys, dtype=torch.float64)
    strongest = weights.graph.keys[..., :3]
    even = 1 / weights.graph.count.clamp(min=1)
    counted = (strongest >= 0) & (weights.graph.weights[..., :3] > even[..., None]) & odd[:, None]
    count.scatter_add_(1, strongest.clamp(min=0).flatten(1).long(), counted.double().flatten(1))
    # Less than one, so that only equals are ordered by it.
    count -= torch.arange(keys) / (2 * max(keys, 1))
    places = count.topk(min(STRIPES, keys // 4), dim=-1).indices
    return HeadKeys(places, ~odd, keys)


def entropy(weights: LayerWeights) -> HeadScores:
    """Entropy of a row's weights, in nats; always exact.

        mean of - sum_j w_ij log w_ij

    Source: Clark et al. 2019, section 3.3.
    """
    return without_chance("entropy", weights, weights.graph.entropy)


def breadth(weights: LayerWeights) -> HeadScores:
    """The share of its keys that a row effectively looks at: 1 for a row that is uniform.

        mean of e^(entropy_i) / n_i, over the rows that may look at more than one key

    Source: the perplexity of the row; Clark et al. 2019, section 3.3 ("broad heads").
    """
    counts = weights.graph.count
    share = weights.graph.entropy.double().exp() / counts.clamp(min=1)
    return without_chance("broad", weights, share, counts > 1)


def distance(weights: LayerWeights) -> HeadScores:
    """How far away a head looks, in tokens.

        mean of sum_j w_ij |i - j|

    Source: Vig and Belinkov 2019, section 5.2.
    """
    return without_chance("distance", weights, weights.distance())
