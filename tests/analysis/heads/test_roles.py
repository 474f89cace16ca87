"""Roles: what a head is called, and when it is called nothing."""

from __future__ import annotations

import math

import pytest
import torch
from tests.analysis.dense_layer import layer_of_weights

import headloom
from headloom.analysis.heads.layer_weights import LayerWeights, looked_at, sink_keys
from headloom.analysis.heads.measures import head_patterns
from headloom.analysis.heads.roles import MEASURES, ROLES, head_roles, heads
from headloom.api.trace import Trace
from headloom.mechanism.multihead import MultiHeadAttention

TOKENS = ["[CLS]", *(["the", "cat", ",", "sat", "on"] * 4), "[SEP]"]
N = len(TOKENS)


def one_head_of_each() -> Trace:
    """A layer with a head for each role, nine tenths on its pattern and the rest spread."""
    spread = torch.full((N, N), 1 / N)
    patterns = head_patterns(layer_of_weights(spread[None], TOKENS))
    rows, places = torch.arange(N)[:, None], torch.arange(N)
    sets = {name: keys.contains(rows, places) for name, keys in patterns.items()} | {
        "partner": rows + places == N - 1,
        "vertical": torch.isin(places, torch.tensor([1, 7, 10])).expand(N, N),
    }
    inside = torch.stack([sets[name] for name in ROLES if name != "sink"])
    inside = torch.where(inside.any(-1, keepdim=True), inside, True).float()
    heads = inside / inside.sum(-1, keepdim=True)
    lonely = torch.eye(N)[torch.randperm(N, generator=torch.Generator().manual_seed(9))]
    stack = torch.cat((0.9 * heads + 0.1 * spread, spread[None], lonely[None]))
    return Trace({"tokens": TOKENS}, (layer_of_weights(stack, TOKENS),))


def test_each_head_gets_the_role_it_was_made_for() -> None:
    found = head_roles(one_head_of_each())
    named = [name for name in ROLES if name != "sink"]
    assert [one.role for one in found] == [*named, "broad", "mixed"]
    for one in found[:-2]:
        assert one.p < 0.01 and one.score > 0.8 > one.chance
        assert one.source == "exact"
    assert found[-1].score is None


def test_a_sink_is_a_token_that_other_layers_look_at() -> None:
    """Sinks at 0 and 9, of which each head of three layers takes its own share; one head copies."""
    n = 40
    tokens = [f"t{i}" for i in range(n)]
    stacks = torch.zeros(3, 3, n, n)
    shares = torch.tensor([[0.9, 0.0], [0.4, 0.5], [0.1, 0.8]])
    for i in range(n):
        stacks[:, :, i, 0] += shares[:, 0]
        stacks[:, :, i, 9 if i >= 9 else 0] += shares[:, 1]
        stacks[:, :, i, : i + 1] += 0.1 / (i + 1)
    stacks[2, 2] = torch.eye(n)
    layers = tuple(
        layer_of_weights(stack / stack.sum(-1, keepdim=True), tokens, mask="causal")
        for stack in stacks
    )
    assert sink_keys(layers) == [[0, 9]] * 3
    roles = head_roles(Trace({"tokens": tokens}, layers))
    assert [one.role for one in roles][:8] == ["first", "sink", "sink"] * 2 + ["first", "sink"]
    sink = roles[1]
    # Rows 9 to 39 may look at two sinks of i + 1 keys, rows 0 to 8 at one.
    chance = sum((1 + (i >= 9)) / (i + 1) for i in range(n)) / n
    assert sink.chance == pytest.approx(chance)
    held = sum(0.9 + 0.1 * (1 + (i >= 9)) / (i + 1) for i in range(n)) / n
    assert sink.score == pytest.approx(held, abs=1e-6)
    assert roles[8].role == "same"
    # Of one layer alone nothing is known of sinks.
    alone = head_roles(Trace({"tokens": tokens}, layers[:1]))
    assert math.isnan(alone[1].scores["sink"])


def test_near_keys_and_the_last_ones_are_no_sinks() -> None:
    n = 30
    before = torch.eye(n).roll(-1, 1)
    before[0] = torch.eye(n)[0]
    layer = layer_of_weights(before[None].repeat(4, 1, 1).tril(), mask="causal")
    assert sink_keys([layer, layer]) == [[], []]


class Two(torch.nn.Module):
    """Two layers of attention, of which the second reads what the first one gives."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(9, 12)
        self.layers = torch.nn.ModuleList(MultiHeadAttention(12, 3) for _ in range(2))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        state: torch.Tensor = self.embedding(tokens)
        for layer in self.layers:
            state = state + layer(state)
        return state


@pytest.mark.parametrize("exact", [None, True, False])
def test_heads_without_numbers_are_called_so(exact: bool | None) -> None:
    torch.manual_seed(3)
    model, tokens = Two(), torch.arange(36) % 9
    clean = head_roles(headloom.trace(model, tokens, keep=headloom.Top(4)), exact=exact)
    with torch.no_grad():
        model.layers[1].w_q.weight[4:8] = torch.nan
    with pytest.warns(UserWarning, match="NaN"):
        broken = headloom.trace(model, tokens, keep=headloom.Top(4))
    found = head_roles(broken, exact=exact)
    for place, (before, after) in enumerate(zip(clean, found, strict=True)):
        if place == 4:
            assert after.role == "no number"
            assert after.score is None
            assert all(math.isnan(score) for score in after.scores.values())
        else:
            assert after.role == before.role != "no number"
            assert after.scores["previous"] == before.scores["previous"]


def test_random_heads_have_no_role() -> None:
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(48, N, N, generator=generator) * torch.linspace(0, 6, 48)[:, None, None]
    for mask in ("all", "causal"):
        hidden = torch.ones(N, N, dtype=torch.bool).tril() if mask == "causal" else True
        weights = scores.masked_fill(~torch.as_tensor(hidden), -torch.inf).softmax(-1)
        layer = layer_of_weights(weights, TOKENS, mask=mask)  # type: ignore[arg-type]
        roles = {one.role for one in head_roles(Trace({"tokens": TOKENS}, (layer,)))}
        assert roles <= {"broad", "mixed"}


def test_the_table(minilm_trace: Trace) -> None:
    table = minilm_trace.heads()
    assert len(table) == 72
    assert list(table.columns)[:3] == ["layer", "head", "role"]
    assert set(MEASURES) <= set(table.columns)
    role = table.set_index(["layer", "head"])["role"]
    # From 0: the reference heads, by what they are for.
    assert role[0, 2] == "previous"
    assert role[1, 8] == "next"
    assert role[4, 5] == "first"
    # The head with the most on [SEP] has more on the full stop.
    assert role[3, 11] == "punctuation"
    assert role[0, 0] == "broad"
    counts = table["role"].value_counts()
    assert (counts["previous"], counts["next"], counts["first"]) == (1, 1, 59)


def test_of_kept_edges_scores_are_theirs_and_else_those_of_all_weights(
    minilm_trace: Trace, minilm_top: Trace
) -> None:
    whole, again, kept = heads(minilm_trace), heads(minilm_top), heads(minilm_top, exact=False)
    assert set(kept["source"]) == {"kept"} and set(again["source"]) == {"exact"}
    columns = [name for name in MEASURES if name != "vertical"]
    assert (again[columns] - whole[columns]).abs().max().max() < 2e-5
    for name in MEASURES:
        if name not in ("broad", "entropy"):
            assert bool((kept[name] <= whole[name] + 1e-5).fillna(True).all())
    rest = torch.cat([layer.graph.rest.mean(-1) for layer in minilm_top.layers])
    assert kept["rest"].tolist() == pytest.approx(rest.tolist(), abs=1e-6)
    assert not again["rest"].any()


def test_sinks_are_the_same_whatever_was_kept() -> None:
    """A key that every row looks at a little, and few rows most: their largest edge is another."""
    generator = torch.Generator().manual_seed(3)
    queries, keys = torch.randn(2, 3, 4, 60, 8, generator=generator) * 1.8
    queries, keys = (torch.nn.functional.pad(part, (0, 1)) for part in (queries, keys))
    queries[..., -1], keys[:, :, 5, -1] = 3.0, 2.5
    few, every = (
        headloom.from_queries_keys(
            queries, keys, mask=headloom.causal(), keep=headloom.Top(k)
        ).layers
        for k in (1, 60)
    )
    expected = sink_keys(every)
    assert all(5 in places for places in expected) and sink_keys(few) == expected
    assert not any(5 in places for places in sink_keys(few, exact=False))
    # By hand: what each key gets from rows more than 4 tokens away, beside an even row.
    i = torch.arange(60)
    far = ((i[:, None] - i).abs() > 4) & (i <= i[:, None])
    dense = every[0].graph.to_dense().double()
    rows = far.sum(0).clamp(min=1)
    chance = (far / (i[:, None] + 1.0)).sum(0) / rows
    by_hand = ((dense * far).sum(1) / rows - chance) / (1 - chance)
    found = looked_at(LayerWeights(few[0]))
    there = far.sum(0) >= 3
    assert torch.allclose(found[:, there], by_hand[:, there], atol=1e-5)
    assert bool((found[:, ~there] == -math.inf).all())


def test_several_texts_are_put_together() -> None:
    one = one_head_of_each()
    twice = head_roles([one, one])
    for single, double in zip(head_roles(one), twice, strict=True):
        assert double.role == single.role
        assert double.scores["first"] == pytest.approx(single.scores["first"])
        if single.p is not None and double.p is not None:
            assert double.p <= single.p
            assert double.z == pytest.approx(single.z * 2**0.5)  # type: ignore[operator]
    other = layer_of_weights(torch.eye(3)[None])
    with pytest.raises(headloom.InputError, match="one model"):
        head_roles([one, Trace({"tokens": ["a"] * 3}, (other,))])
