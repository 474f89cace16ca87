"""The measures of a head: how much of each row goes where, one function each.

Direction: row i is the query that looks, column j the key that is looked at. A score is the mean
over the rows that have such a key, from 0 to 1, and comes with what shuffled weights would score
(`headloom.analysis.heads.chance`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from headloom.analysis.arguments import keys_named
from headloom.analysis.heads.chance import partner_moments
from headloom.analysis.heads.pattern_mass import LayerWeights, weights_of
from headloom.analysis.heads.patterns import (
    Classes,
    Diagonals,
    punctuation_marks,
    separators,
)
from headloom.analysis.heads.scores import (
    HeadScores,
    Measure,
    Role,
    no_log_mean,
    on_pattern,
    without_chance,
)
from headloom.analysis.heads.stripes import sink, vertical
from headloom.analysis.interval import Interval
from headloom.errors import InputError
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
    "local_window",
    "next_token",
    "previous_token",
    "punctuation",
    "same_token",
    "separator",
    "symmetric_partner",
]

_Layer = TraceLayer | LayerWeights


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


def _one_sequence(layer: _Layer, measure: str) -> LayerWeights:
    """The weights of a layer in which a sequence looks at itself."""
    weights = weights_of(layer)
    _, queries, keys = weights.layer.shape
    if weights.layer.queries_from != weights.layer.keys_from or queries != keys:
        raise InputError(
            f"{measure}: layer {weights.layer.name} looks from one sequence at another, where "
            "positions do not correspond. Choose a layer in which a sequence looks at itself."
        )
    return weights


def previous_token(layer: _Layer) -> HeadScores:
    """Mass on the token before the query.

        mean over i >= 1 of w_(i, i-1)

    Source: Clark et al. 2019, section 3.1; Voita et al. 2019 ("positional heads").

    >>> from headloom.analysis.dense_layer import layer_of_weights
    >>> before = torch.tensor([[1., 0, 0], [1, 0, 0], [0, 1, 0]])
    >>> scores = previous_token(layer_of_weights(before[None]))
    >>> scores.score.item(), round(scores.chance.item(), 4)
    (1.0, 0.3333)
    """
    return on_pattern("previous", _one_sequence(layer, "previous_token"), Diagonals(-1, -1))


def next_token(layer: _Layer) -> HeadScores:
    """Mass on the token after the query; nowhere in a causal layer.

        mean over i < N - 1 of w_(i, i+1)

    Source: Clark et al. 2019, section 3.1.

    >>> from headloom.analysis.dense_layer import layer_of_weights
    >>> after = torch.tensor([[0., 1, 0], [0, 0.5, 0.5], [0, 0, 1]])
    >>> next_token(layer_of_weights(after[None])).score.item()
    0.75
    """
    return on_pattern("next", _one_sequence(layer, "next_token"), Diagonals(1, 1))


def same_token(layer: _Layer) -> HeadScores:
    """Mass on the query's own position.

        mean of w_ii

    Source: Clark et al. 2019, section 3.1.

    >>> from headloom.analysis.dense_layer import layer_of_weights
    >>> same_token(layer_of_weights(torch.eye(3)[None])).score.item()
    1.0
    """
    return on_pattern("same", _one_sequence(layer, "same_token"), Diagonals(0, 0))


def first_token(layer: _Layer) -> HeadScores:
    """Mass on the first token, where heads put what they have no use for: an attention sink.

        mean of w_i0

    Source: Xiao et al. 2024; Clark et al. 2019, section 3.2 ([CLS]).

    >>> from headloom.analysis.dense_layer import layer_of_weights
    >>> weights = torch.tensor([[1., 0], [0.5, 0.5]])
    >>> first_token(layer_of_weights(weights[None], mask="causal")).score.item()
    0.75
    """
    weights = weights_of(layer)
    return on_pattern("first", weights, Classes.of_keys_at(weights.layer, [0]))


def separator(layer: _Layer, at: Sequence[int] | None = None) -> HeadScores:
    """Mass on the special tokens that end or part texts, [SEP] or </s>, but for the first token.

        mean of sum_(j in S) w_ij

    Args:
        layer: of a trace.
        at: which keys; None: those named in `patterns.SEPARATORS`.

    Source: Clark et al. 2019, section 3.2.

    >>> from headloom.analysis.dense_layer import layer_of_weights
    >>> weights = torch.tensor([[0., 0, 1], [0, 0, 1], [0, 1, 0]])
    >>> round(separator(layer_of_weights(weights[None], ["[CLS]", "a", "[SEP]"])).score.item(), 4)
    0.6667
    """
    weights = weights_of(layer)
    if at is None:
        at = separators(weights.layer.key_tokens)
    at = keys_named("separator", "at", at, weights.layer.shape[2])
    return on_pattern("separator", weights, Classes.of_keys_at(weights.layer, at))


def punctuation(layer: _Layer) -> HeadScores:
    """Mass on full stops, commas and the like: tokens of Unicode's punctuation alone.

        mean of sum_(j in S) w_ij

    Source: Clark et al. 2019, section 3.2.

    >>> from headloom.analysis.dense_layer import layer_of_weights
    >>> weights = torch.tensor([[0., 0.5, 0.5], [0, 0, 1], [1, 0, 0]])
    >>> punctuation(layer_of_weights(weights[None], ["a", "b", "."])).score.item()
    0.5
    """
    weights = weights_of(layer)
    at = punctuation_marks(each_once(shown(weights.layer.key_tokens)))
    return on_pattern("punctuation", weights, Classes.of_keys_at(weights.layer, at))


def local_window(layer: _Layer, reach: int = 4) -> HeadScores:
    """Mass on the tokens around the query.

        mean of sum_(|i - j| <= reach) w_ij

    Source: Clark et al. 2019, section 3.1; Child et al. 2019 (local patterns).

    >>> from headloom.analysis.dense_layer import layer_of_weights
    >>> far = torch.eye(3).flip(1)
    >>> round(local_window(layer_of_weights(far[None]), reach=1).score.item(), 4)
    0.3333
    """
    reach = whole_number("local_window", "reach", reach, 0)
    weights = _one_sequence(layer, "local_window")
    # There are no diagonals further out, and each is looked at.
    reach = min(reach, weights.layer.shape[2])
    return on_pattern("local", weights, Diagonals(-reach, reach))


def duplicate_token(layer: _Layer) -> HeadScores:
    """Mass on the other places where the query's token stands; in a causal layer, earlier ones.

        mean of sum_(j: t_j = t_i, j != i) w_ij, over the i whose token stands elsewhere too

    Between two sequences: on all places of the other where the token stands.

    Source: Wang et al. 2022 ("duplicate token heads").

    >>> from headloom.analysis.dense_layer import layer_of_weights
    >>> other = torch.tensor([[0., 0, 1], [0, 1, 0], [0.5, 0, 0.5]])
    >>> duplicate_token(layer_of_weights(other[None], ["a", "b", "a"])).score.item()
    0.75
    """
    weights = weights_of(layer)
    return on_pattern("duplicate", weights, Classes.of_tokens(weights.layer, shifted=False))


def induction(layer: _Layer) -> HeadScores:
    """Mass on the tokens that followed earlier copies of the query's token.

        mean of sum_(j: t_(j-1) = t_i, j != i + 1) w_ij, over the i that have such a j

    A head that looks there can repeat what came next the last time. In a causal layer j <= i; the
    token right after the query follows the query itself, and does not count.

    Source: Olsson et al. 2022 ("prefix matching score").

    >>> from headloom.analysis.dense_layer import layer_of_weights
    >>> after = torch.tensor([[1., 0, 0], [0, 1, 0], [0, 1, 0]])
    >>> induction(layer_of_weights(after[None], ["a", "b", "a"], mask="causal")).score.item()
    1.0
    """
    weights = weights_of(layer)
    return on_pattern("induction", weights, Classes.of_tokens(weights.layer, shifted=True))


def symmetric_partner(layer: _Layer) -> HeadScores:
    """How much each token is looked back at by those it looks at.

        mean of sum_(j != i) w_ij w_ji

    Only where every token may look at every other: there is no looking back under a causal mask.

    Source: reciprocity of a weighted graph, Squartini et al. 2013, here in its rows.

    >>> from headloom.analysis.dense_layer import layer_of_weights
    >>> pairs = torch.tensor([[0., 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]])
    >>> symmetric_partner(layer_of_weights(pairs[None])).score.item()
    1.0
    """
    weights = _one_sequence(layer, "symmetric_partner")
    heads, queries, keys = weights.layer.shape
    rows = torch.full((heads,), queries, dtype=torch.float64)
    if not bool((weights.allowed.count == keys).all()):
        no = torch.zeros(heads, dtype=torch.float64)
        return HeadScores("partner", no, no, no, no, no, no, no, no_log_mean(heads))
    mass = weights.partners()
    mean, variance, of_terms = partner_moments(weights.allowed.count, weights.squares.upper)
    # A pair counts twice, and is at most the product of the two largest weights of all.
    top = weights.largest.topk(min(2, queries), dim=-1).values
    cap = 2 * top.prod(-1)
    return HeadScores(
        "partner",
        rows,
        mass.lower.sum(-1),
        mass.upper.sum(-1),
        mean,
        variance,
        of_terms,
        cap,
        no_log_mean(heads),
    )


def entropy(layer: _Layer) -> HeadScores:
    """Entropy of a row's weights, in nats; always exact.

        mean of - sum_j w_ij log w_ij

    Source: Clark et al. 2019, section 3.3.

    >>> from headloom.analysis.dense_layer import layer_of_weights
    >>> round(entropy(layer_of_weights(torch.full((1, 4, 4), 0.25))).score.item(), 4)    # log 4
    1.3863
    """
    weights = weights_of(layer)
    value = weights.graph.entropy
    return without_chance("entropy", weights, Interval.exactly(value))


def breadth(layer: _Layer) -> HeadScores:
    """The share of its keys that a row effectively looks at: 1 for a row that is uniform.

        mean of e^(entropy_i) / n_i, over the rows that may look at more than one key

    Source: the perplexity of the row; Clark et al. 2019, section 3.3 ("broad heads").

    >>> from headloom.analysis.dense_layer import layer_of_weights
    >>> uniform, one_key = torch.full((4, 4), 0.25), torch.eye(4)
    >>> breadth(layer_of_weights(torch.stack((uniform, one_key)))).score.round(decimals=4)
    tensor([1.0000, 0.2500], dtype=torch.float64)
    """
    weights = weights_of(layer)
    counts = weights.graph.count
    share = weights.graph.entropy.double().exp() / counts.clamp(min=1)
    return without_chance("broad", weights, Interval.exactly(share), counts > 1)


def distance(layer: _Layer) -> HeadScores:
    """How far away a head looks, in tokens.

        mean of sum_j w_ij |i - j|

    Source: Vig and Belinkov 2019, section 5.2.

    >>> from headloom.analysis.dense_layer import layer_of_weights
    >>> far = torch.eye(3).flip(1)
    >>> round(distance(layer_of_weights(far[None])).score.item(), 4)     # 2, 0 and 2 tokens
    1.3333
    """
    weights = _one_sequence(layer, "distance")
    return without_chance("distance", weights, weights.distance())
