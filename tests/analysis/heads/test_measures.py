"""Every measure against loops over the dense matrix; reference values of a real model."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from tests.analysis.dense_layer import layer_of_weights
from torch import Tensor

import headloom
from headloom.analysis.heads.layer_weights import LayerWeights
from headloom.analysis.heads.measures import head_patterns, layer_scores
from headloom.analysis.heads.patterns import SEPARATORS
from headloom.analysis.heads.retrieval import find_needle, retrieval_score
from headloom.analysis.heads.scores import HeadScores
from headloom.api.trace import Trace
from headloom.formats.tokens import Tokens
from headloom.formats.trace import TraceLayer
from headloom.mechanism.multihead import MultiHeadAttention
from headloom.mechanism.reference import graphs as reference

Make = Callable[..., tuple[TraceLayer, Tensor]]

REACH = 4


class Random(torch.nn.Module):
    """One layer of random weights over tokens that repeat."""

    def __init__(self, heads: int, causal: bool, relative: str, kv_heads: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(8, 16)
        kind = "decoder" if causal else "encoder"
        self.layer = MultiHeadAttention(16, heads, kv_heads=kv_heads, relative=relative, kind=kind)
        self.mask = headloom.causal() if causal else None

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        state = 3 * self.embedding(tokens)
        found: torch.Tensor = self.layer(state, mask=self.mask)
        return found


@pytest.fixture
def random_layer() -> Callable[..., tuple[TraceLayer, torch.Tensor]]:
    """A function that gives a traced layer of random weights, and these weights, dense."""

    def make(
        causal: bool = False, relative: str = "none", keep: int = 5, kv_heads: int = 4
    ) -> tuple[TraceLayer, torch.Tensor]:
        torch.manual_seed(40 + causal)
        model = Random(4, causal, relative, kv_heads)
        tokens = torch.randint(0, 8, (40,))
        whole = headloom.trace(model, tokens, keep=headloom.All())
        part = headloom.trace(model, tokens, keep=headloom.Top(keep))
        return part.layers[0], whole.layers[0].graph.to_dense().double()

    return make


#: As if other layers looked there.
SINKS = [0, 3, 17]


PATTERNS = (
    "previous", "next", "same", "first", "sink", "separator", "punctuation", "local", "duplicate",
    "induction",
)  # fmt: skip


def scores(layer: TraceLayer, exact: bool | None = None) -> dict[str, HeadScores]:
    weights = LayerWeights(layer, exact=exact, patterns=head_patterns(layer))
    return layer_scores(weights, sinks=SINKS)


def by_reference(measure: str, weights: Tensor, tokens: list[str], causal: bool) -> Tensor:
    """The score of each head by headloom.mechanism.reference; 0 where no row has such a key."""
    places = {
        "sink": SINKS,
        "separator": [j for j in range(1, len(tokens)) if tokens[j] in SEPARATORS],
        "punctuation": [j for j in range(len(tokens)) if tokens[j] in ",.!?"],
    }
    formulas: dict[str, Callable[[Tensor], float]] = {
        "previous": reference.previous,
        "next": reference.next_token,
        "same": reference.same,
        "first": reference.first,
        "local": lambda head: reference.local(head, REACH),
        "duplicate": lambda head: reference.duplicate(head, tokens, causal=causal),
        "induction": lambda head: reference.induction(head, tokens, causal=causal),
        "broad": lambda head: reference.broad(head, causal=causal),
    } | {
        name: lambda head, at=at: reference.separator(head, at, causal=causal)
        for name, at in places.items()
    }
    return torch.tensor([formulas[measure](head) for head in weights]).double()


@pytest.mark.parametrize(
    ("causal", "relative", "kv_heads"),
    [(False, "none", 4), (True, "none", 2), (True, "rotary", 4), (False, "shaw", 4)],
)
def test_against_the_reference(
    random_layer: Make, causal: bool, relative: str, kv_heads: int
) -> None:
    layer, weights = random_layer(causal=causal, relative=relative, kv_heads=kv_heads)
    edges = layer.graph.to_dense().double()
    for exact, of in ((None, weights), (True, weights), (False, edges)):
        found = scores(layer, exact)
        for measure in PATTERNS:
            expected = by_reference(measure, of, layer.query_tokens, causal)
            assert torch.allclose(found[measure].score.nan_to_num(0), expected, atol=2e-6), measure
    needle = find_needle(layer.query_tokens, layer.query_tokens[0])
    places = (needle.start, needle.answer, needle.length)
    expected = torch.tensor([reference.retrieval(w, layer.query_tokens, *places) for w in weights])
    assert torch.allclose(retrieval_score(layer, needle), expected)
    broad = by_reference("broad", weights, layer.query_tokens, causal)
    assert torch.allclose(found["broad"].score, broad, atol=2e-6)


def test_punctuation_is_known_by_its_text() -> None:
    """The vocabulary of GPT-2 spells a dash by its three bytes."""
    tokens = Tokens(
        ["a", "\u00e2\u0122\u0136", "b", "\u00e3\u0122", "\u0124"],
        ["a", "\u2014", "b", "\u3002\u00b9\u2044\u2082", "\u3002\u00b2\u2044\u2082"],
    )
    layer = layer_of_weights(torch.full((1, 5, 5), 0.2), tokens)
    # The dash, and the full stop that two tokens share, once.
    assert scores(layer)["punctuation"].score.item() == pytest.approx(0.4)


def test_scores_that_have_a_cap() -> None:
    """As in Gemma 2: the weights from which every measure is read are those of capped scores."""
    generator = torch.Generator().manual_seed(7)
    queries, keys = 4 * torch.randn(2, 4, 40, 8, generator=generator)
    tokens = [",a.bcdef"[int(n)] for n in torch.randint(0, 8, (40,), generator=generator)]
    rules = {"mask": headloom.causal(), "softcap": 2.0, "scale": 0.5}
    (layer,) = headloom.from_queries_keys(
        queries, keys, tokens=tokens, keep=headloom.Top(3), **rules
    ).layers
    capped = 2 * (0.25 * queries.double() @ keys.double().mT).tanh()
    hidden = torch.ones(40, 40, dtype=torch.bool).triu(1)
    weights = capped.masked_fill(hidden, -torch.inf).softmax(-1)
    for measure in PATTERNS:
        expected = by_reference(measure, weights, tokens, True)
        found = scores(layer)[measure].score.nan_to_num(0)
        assert torch.allclose(found, expected, atol=2e-6), measure


@pytest.mark.parametrize(
    ("causal", "relative"), [(False, "rotary"), (True, "rotary"), (True, "alibi")]
)
def test_vertical_against_loops(random_layer: Make, causal: bool, relative: str) -> None:
    """Keys by the odd rows, 16 of them or a quarter of all; mass of the even ones."""
    layer, weights = random_layer(causal=causal, relative=relative, keep=40)
    expected = []
    for of_head in weights:
        strongest = [j for i in range(1, 40, 2) for j in of_head[i].topk(3).indices.tolist()
                     if of_head[i, j] > 1 / (i + 1 if causal else 40)]  # fmt: skip
        places = sorted(range(40), key=lambda j: -strongest.count(j))[:10]
        rows = [i for i in range(0, 40, 2) if not causal or any(j <= i for j in places)]
        expected.append(sum(float(of_head[i, places].sum()) for i in rows) / len(rows))
    for exact in (True, False):
        score = scores(layer, exact)["vertical"].score
        assert torch.allclose(score, torch.tensor(expected).double(), atol=2e-6)
    part, _ = random_layer(causal=causal, relative=relative, keep=20)
    score = scores(part)["vertical"].score
    assert torch.allclose(score, torch.tensor(expected).double(), atol=2e-6)


@pytest.mark.parametrize("relative", ["none", "alibi"])
@pytest.mark.parametrize("causal", [False, True])
def test_distance_entropy_breadth_and_partners(
    random_layer: Make, relative: str, causal: bool
) -> None:
    layer, weights = random_layer(causal=causal, relative=relative)
    positions = torch.arange(40)
    away = (weights * (positions[:, None] - positions).abs()).sum(-1).mean(-1)
    entropy = torch.special.entr(weights).sum(-1)
    counts = positions + 1.0 if causal else torch.full((40,), 40.0)
    share = (entropy.exp() / counts)[:, counts > 1].mean(-1)
    found = scores(layer)
    assert torch.allclose(found["distance"].score, away, atol=1e-4)
    edges = layer.graph.to_dense().double()
    kept = (edges * (positions[:, None] - positions).abs()).sum(-1).mean(-1)
    assert torch.allclose(scores(layer, False)["distance"].score, kept, atol=1e-4)
    for exact in (True, False):
        of = scores(layer, exact)
        assert torch.allclose(of["entropy"].score, entropy.mean(-1), atol=1e-5)
        assert torch.allclose(of["broad"].score, share, atol=1e-5)
    if causal:
        assert bool(found["partner"].score.isnan().all())
        return
    for exact, of in ((True, weights), (False, edges)):
        itself = of.diagonal(dim1=1, dim2=2)
        back = ((of * of.transpose(1, 2)).sum(-1) - itself.square()).mean(-1)
        assert torch.allclose(scores(layer, exact)["partner"].score, back, atol=1e-5)


def test_between_two_sequences(pair_trace: Trace) -> None:
    layer = pair_trace.layer("cross", 0)
    found = scores(layer)
    weights = layer.graph.to_dense()
    assert torch.allclose(found["first"].score.float(), weights[..., 0].mean(-1))
    assert not {"previous", "next", "same", "local", "partner", "distance"} & set(found)
    layer = layer_of_weights(torch.eye(3)[None, :2], ["a", "b"], key_tokens=["b", "a", "x"])
    assert scores(layer)["duplicate"].score.item() == pytest.approx(0)
    # "x" follows "a", query 0; "a" follows "b", query 1.
    assert scores(layer)["induction"].score.item() == pytest.approx(0.5)


def test_rows_that_see_nothing_and_layers_without_tokens() -> None:
    empty = scores(layer_of_weights(torch.zeros(2, 0, 0)))
    assert all(bool(empty[measure].score.isnan().all()) for measure in PATTERNS)
    one = scores(layer_of_weights(torch.ones(1, 1, 1)))
    assert one["same"].score.item() == 1
    assert one["previous"].score.isnan().item() and one["previous"].p.isnan().item()


def test_reference_values_of_minilm(minilm_trace: Trace) -> None:
    """Measured from eager float32 weights by another program, to the digits it gave.

    Each is the mean over the rows that have such a key: 18 for the token before and after, all 19
    for the first token and the separator, [SEP] alone.
    """
    found = [scores(layer) for layer in minilm_trace.layers]
    means = [of_layer["entropy"].score.mean().item() for of_layer in found]
    assert means == pytest.approx([2.2145, 1.3139, 1.3618, 1.7006, 1.3945, 2.0881], abs=5e-5)
    for measure, layer, head, score in [
        ("previous", 1, 3, 0.9998), ("next", 2, 9, 0.5961), ("first", 5, 6, 0.8788),
        ("separator", 4, 12, 0.1427),
    ]:  # fmt: skip
        all_scores = torch.cat([of_layer[measure].score for of_layer in found])
        place = int(all_scores.argmax())
        assert (place // 12 + 1, place % 12 + 1) == (layer, head)
        assert float(all_scores[place]) == pytest.approx(score, abs=5e-5)
    # Random weights of these sizes: almost log 19.
    generator = torch.Generator().manual_seed(0)
    queries, keys = (torch.randn(12, 19, 32, generator=generator) * 0.5 for _ in range(2))
    _, graph = headloom.attend(queries, keys, keys, scale=32**-0.5)
    assert float(graph.entropy.mean()) == pytest.approx(2.937, abs=0.03)
    assert math.log(19) == pytest.approx(2.944, abs=5e-4)


def test_under_a_mask_of_cells_only_rows_that_may_look_there_count() -> None:
    count = 12
    cells = torch.eye(count, dtype=torch.bool) | torch.eye(count, dtype=torch.bool).roll(3, 1)
    odd = torch.arange(1, count, 2)
    cells[odd, odd - 1] = True  # the previous token, of every second row
    queries = torch.zeros(1, count, count)
    queries[0, torch.arange(count), torch.where(torch.arange(count) % 2 == 1, -1, 0)
            + torch.arange(count)] = 30.0  # fmt: skip
    keys = torch.eye(count)[None]
    trace = headloom.from_queries_keys(queries, keys, mask=cells, keep=headloom.Top(32), scale=1.0)
    (head,) = trace.heads().to_dict("records")
    assert head["previous"] == pytest.approx(1.0, abs=1e-5)
    assert math.isnan(head["next"])  # no row may look there
    assert head["role"] == "previous"


@pytest.mark.parametrize("seed", range(4))
def test_keys_that_a_bias_hides_here_and_there_may_not_be_looked_at(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    queries, keys = torch.randn(2, 1, 2, 9, 16, generator=generator)
    cells = torch.rand(2, 9, 9, generator=generator) < 0.5
    bias = torch.zeros(2, 9, 9).masked_fill(~cells, -torch.inf)
    weights = (queries[0].double() @ keys[0].double().transpose(1, 2) / 4).exp() * cells
    weights /= weights.sum(-1, keepdim=True).clamp(min=1e-30)
    for kept in (3, 9):
        trace = headloom.from_queries_keys(queries, keys, bias=bias, keep=headloom.Top(kept))
        found = scores(trace.layers[0])
        for measure, offset in (("previous", -1), ("same", 0)):
            there = cells.diagonal(offset, 1, 2)
            true = (weights.diagonal(offset, 1, 2) * there).sum(-1) / there.sum(-1)
            even = (1 / cells.sum(-1).double())[:, max(0, -offset) :]
            chance = torch.where(there, even, 0).sum(-1) / there.sum(-1)
            assert torch.allclose(found[measure].score, true, atol=1e-6)
            assert torch.allclose(found[measure].chance, chance)
            assert (found[measure].rows == there.sum(-1)).all()


def test_weights_given_without_a_mask_may_look_where_some_head_does() -> None:
    """A padded text: no head looks at its last two keys, so no row could have looked there."""
    weights = torch.full((2, 6, 6), 0.1 / 3)
    weights[..., 4:] = 0
    for query in range(6):
        weights[0, query, min(max(query - 1, 0), 3)] = 0.9
    weights[1, :, :4] = 0.25
    weights[1, 2, :4] = torch.tensor([1.0, 0, 0, 0])  # too small for float16 elsewhere
    weights /= weights.sum(-1, keepdim=True)
    layer = headloom.from_weights(weights, kind="encoder").layers[0]
    previous = scores(layer)["previous"]
    assert previous.rows.tolist() == [4, 4]  # those of rows 1 to 4
    assert torch.allclose(previous.score, torch.tensor([0.9, 0.75 * 0.25]).double(), atol=1e-6)
    assert torch.allclose(previous.chance, torch.full((2,), 0.25).double())
    assert scores(layer)["next"].rows.tolist() == [3, 3]


@pytest.mark.parametrize(("measure", "key"), [("previous", -1), ("same", 0), ("first", None)])
def test_a_head_by_hand_that_looks_at_one_key_has_its_role(measure: str, key: int | None) -> None:
    """Rows with one key each tell of no mask; none looks ahead, so it is taken as causal."""
    place = torch.arange(12)
    weights = torch.eye(12)[(place + key).clamp(min=0) if key is not None else place * 0][None]
    (head,) = headloom.from_weights(weights).heads().to_dict("records")
    assert (head["role"], head["score"]) == (measure, 1.0)
    rows = torch.arange(2 if measure == "previous" else 1, 13, dtype=torch.float64)
    assert head["chance"] == pytest.approx(float((1 / rows).mean()))
