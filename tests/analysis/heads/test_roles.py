"""Roles: what a head is called, and when it is called nothing."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import headloom
from headloom.analysis.dense_layer import layer_of_weights
from headloom.analysis.heads.roles import MEASURES, ROLES, head_roles, heads
from headloom.analysis.heads.sinks import certain_sinks, looked_at, sink_keys
from headloom.api.trace import Trace
from headloom.formats.trace import TraceLayer
from headloom.mechanism.multihead import MultiHeadAttention

TOKENS = ["[CLS]", *(["the", "cat", ",", "sat", "on"] * 4), "[SEP]"]
N = len(TOKENS)


def one_head_of_each() -> Trace:
    """A layer with a head for each role, nine tenths on its pattern and the rest spread."""
    names = [name for name in ROLES if name != "sink"]
    weights = {name: torch.zeros(N, N) for name in names}
    for i in range(N):
        weights["previous"][i, max(i - 1, 0)] = 1
        weights["next"][i, min(i + 1, N - 1)] = 1
        weights["same"][i, i] = 1
        weights["first"][i, 0] = 1
        weights["separator"][i, N - 1] = 1
        weights["punctuation"][i, [j for j in range(N) if TOKENS[j] == ","]] = 1
        for name, copies in (
            ("duplicate", [j for j in range(N) if TOKENS[j] == TOKENS[i] and j != i]),
            ("induction", [j for j in range(1, N) if TOKENS[j - 1] == TOKENS[i] and j != i + 1]),
        ):
            weights[name][i, copies or range(N)] = 1
        weights["local"][i, max(i - 4, 0) : i + 5] = 1
        weights["partner"][i, N - 1 - i] = 1
        weights["vertical"][i, [1, 7, 10]] = 1
    heads = [weights[name] / weights[name].sum(-1, keepdim=True) for name in names]
    spread = torch.full((N, N), 1 / N)
    lonely = torch.eye(N)[torch.randperm(N, generator=torch.Generator().manual_seed(9))]
    stack = torch.stack([0.9 * head + 0.1 * spread for head in heads] + [spread, lonely])
    return Trace({"tokens": TOKENS}, (layer_of_weights(stack, TOKENS),))


def test_each_head_gets_the_role_it_was_made_for() -> None:
    found = head_roles(one_head_of_each())
    named = [name for name in ROLES if name != "sink"]
    assert [one.role for one in found] == [*named, "broad", "mixed"]
    for one in found[:-2]:
        assert one.p is not None
        assert one.p < 0.01
        assert one.score is not None
        assert one.chance is not None
        assert one.score > 0.8 > one.chance
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
    with pytest.warns(UserWarning, match="is not a number"):
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


def test_bounds_lie_below_and_exact_ones_agree(minilm_trace: Trace, tmp_path: Path) -> None:
    minilm_trace.save(tmp_path / "t.loom")
    whole = heads(headloom.open(tmp_path / "t.loom"), exact=True)
    short = _kept(minilm_trace, 3)
    kept = heads(short, exact=False)
    again = heads(short)
    assert set(kept["source"]) == {"bound"}
    assert set(again["source"]) == set(whole["source"]) == {"exact"}
    for name in MEASURES:
        if name not in ("broad", "entropy"):
            assert bool((kept[name] <= whole[name] + 1e-5).all())
    columns = [name for name in MEASURES if name != "partner"]
    assert (again[columns] - whole[columns]).abs().max().max() < 2e-5


def _kept(trace: Trace, k: int) -> Trace:
    """The same with only the k strongest edges of each row."""
    from dataclasses import replace

    from headloom.formats.trace import LayerInMemory

    layers = []
    for layer in trace.layers:
        graph = layer.graph
        part = replace(
            graph,
            keys=graph.keys[..., :k],
            scores=graph.scores[..., :k],
            weights=graph.weights[..., :k],
            rest=1 - graph.weights[..., :k].sum(-1),
        )
        assert layer.queries is not None
        assert layer.keys is not None
        held = LayerInMemory(part, (layer.queries, layer.keys), layer.terms, layer.value_norms)
        layers.append(replace(layer, data=held))
    return replace(trace, layers=tuple(layers))


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


def test_windows_are_found_where_the_trace_does_not_name_them() -> None:
    """A layer whose mask is not known: its rows and edges tell which window it was."""
    from dataclasses import replace

    from headloom.analysis.heads.patterns import allowed_keys

    queries = torch.randn(2, 30, 4, generator=torch.Generator().manual_seed(2))
    for mask, first in (
        (headloom.window(3, 0), [max(0, i - 3) for i in range(30)]),
        (headloom.window(5, 5), [max(0, i - 5) for i in range(30)]),
    ):
        _, graph = headloom.attend(queries, queries, queries, mask=mask, keep=headloom.Top(2))
        layer = layer_of_weights(torch.eye(30).repeat(2, 1, 1))
        data = replace(layer.data, attention_graph=graph)  # type: ignore[type-var]
        unknown = replace(layer, data=data, mask=None)
        assert isinstance(unknown, TraceLayer)
        allowed = allowed_keys(unknown)
        assert allowed.known
        assert allowed.first.tolist() == first
        assert (allowed.end - allowed.first).tolist() == graph.count[0].tolist()
    dilated = torch.zeros(30, 30, dtype=torch.bool)
    dilated[:, ::2] = True
    _, graph = headloom.attend(queries, queries, queries, mask=dilated, keep=headloom.Top(2))
    data = replace(layer.data, attention_graph=graph)  # type: ignore[type-var]
    unknown = replace(layer, data=data, mask=None)
    assert not allowed_keys(unknown).known


def test_bad_thresholds() -> None:
    with pytest.raises(headloom.InputError, match="alpha=2"):
        head_roles(one_head_of_each(), alpha=2)


def test_sinks_do_not_depend_on_what_was_kept() -> None:
    """A key that every row looks at a little, and few rows most: their largest edge is another."""
    generator = torch.Generator().manual_seed(3)
    queries, keys = torch.randn(2, 3, 4, 60, 8, generator=generator) * 1.8
    queries, keys = (torch.nn.functional.pad(part, (0, 1)) for part in (queries, keys))
    queries[..., -1], keys[:, :, 5, -1] = 3.0, 2.5
    layers = {}
    for kept in (1, 60):
        traces = [
            headloom.from_queries_keys(*pair, mask=headloom.causal(), keep=headloom.Top(kept))
            for pair in zip(queries[:, None], keys[:, None], strict=True)
        ]
        layers[kept] = [trace.layers[0] for trace in traces]
    expected = certain_sinks(layers[60])
    assert expected[1] == [True] * 3 and all(5 in places for places in expected[0])
    assert certain_sinks(layers[1]) == certain_sinks(layers[1], exact=True) == expected
    unsure = certain_sinks(layers[1], exact=False)
    assert unsure[1] == [False] * 3 and not any(5 in places for places in unsure[0])
    for few, every in zip(layers[1], layers[60], strict=True):
        bounds, exact = looked_at(few, 4, exact=False), looked_at(every, 4)
        assert torch.equal(exact.lower, exact.upper)
        assert (bounds.lower <= exact.lower + 1e-6).all()
        assert (bounds.upper >= exact.lower - 1e-6).all()
        torch.testing.assert_close(looked_at(few, 4).lower, exact.lower, rtol=0, atol=1e-6)
