"""Eviction on traces, against loops over sets and dense float64 weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.analysis.eviction import by_hand

import headloom
from headloom.analysis.eviction.evict import Eviction, evict
from headloom.analysis.eviction.policies import POLICIES, Prompt, snapkv
from headloom.errors import InputError
from headloom.formats.trace import TraceData

HEADS, KV_HEADS, DEPTH, LENGTH, PROMPT, BUDGET = 6, 2, 8, 60, 44, 13
SNAP = 5, 3

CASES: dict[str, dict[str, Any]] = {
    "causal": {},
    "sharp": {"times": 4.0},
    "window": {"left": 20},
    "sinks": {"sinks": torch.tensor([0.5, 2.0, -1.0, 3.0, 0.0, 1.0])},
}


def arrays(times: float = 1.0, layers: int = 2, seed: int = 3) -> tuple[torch.Tensor, ...]:
    made = torch.Generator().manual_seed(seed)
    queries = times * torch.randn(layers, HEADS, LENGTH, DEPTH, generator=made)
    keys = torch.randn(layers, KV_HEADS, LENGTH, DEPTH, generator=made)
    return queries, keys


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest) -> tuple[TraceData, list[by_hand.Array]]:
    """A trace of two layers, and its weights by hand."""
    options = dict(CASES[request.param])
    queries, keys = arrays(options.pop("times", 1.0))
    left, sinks = options.get("left"), options.get("sinks")
    trace = headloom.from_queries_keys(
        queries, keys, mask=headloom.causal() if left is None else headloom.window(left, 0),
        sinks=sinks,
        keep=headloom.Top(2), kind="decoder",
    )  # fmt: skip
    assert isinstance(trace, TraceData)
    weights = [
        by_hand.dense(
            q.double().numpy(), k.double().numpy(), left,
            None if sinks is None else sinks.double().numpy(),
        )
        for q, k in zip(queries, keys, strict=True)
    ]  # fmt: skip
    return trace, weights


def snap_small(prompt: Prompt, budget: int) -> torch.Tensor:
    return snapkv(prompt, budget, window=SNAP[0], kernel=SNAP[1])


def sets_of(result: Eviction, policy: str, layer: int, budget: int = 0) -> list[set[int]]:
    held = result.kept[layer][result.policies.index(policy), budget]
    return [set(each.nonzero()[:, 0].tolist()) for each in held]


def lost_by(result: Eviction, policy: str, layer: int, budget: int = 0) -> torch.Tensor:
    return result.lost[layer][result.policies.index(policy), budget]


def test_each_policy_keeps_what_its_paper_says_and_loses_the_rest(
    case: tuple[TraceData, list[by_hand.Array]],
) -> None:
    trace, weights = case
    rules = ["h2o", "observed", "streaming", "tova", snap_small]
    found = evict(trace, budget=[BUDGET, 2, PROMPT], policy=rules, prompt_tokens=PROMPT)
    expected = {
        "h2o": by_hand.h2o, "observed": by_hand.observed, "streaming": by_hand.streaming,
        "tova": by_hand.tova,
        "snap_small": lambda *a: by_hand.snapkv(*a, *SNAP),
    }  # fmt: skip
    for layer, dense in enumerate(weights):
        for name, rule in expected.items():
            sets = rule(dense, KV_HEADS, PROMPT, BUDGET)
            assert [len(each) for each in sets] == [BUDGET] * KV_HEADS
            assert sets_of(found, name, layer) == sets, name
            lost = by_hand.lost_after(dense, sets, PROMPT)
            assert lost.max() > 0.1
            np.testing.assert_allclose(lost_by(found, name, layer).numpy(), lost, atol=5e-6)
        # The whole prompt: nothing is lost; and keys of later tokens stay in any case.
        assert not any(lost_by(found, name, layer, 2).any() for name in (*expected, "oracle"))
        assert found.kept[layer].shape == (6, 3, KV_HEADS, PROMPT)


@pytest.mark.parametrize("prompt", [9, 11], ids=["many steps", "few steps"])
def test_no_set_beats_the_oracle_and_no_policy_the_bound_of_a_step(prompt: int) -> None:
    queries, keys = arrays(layers=1, seed=8)
    queries, keys = queries[:, :, :14], keys[:, :, :14]
    trace = headloom.from_queries_keys(queries, keys, mask=headloom.causal(), kind="decoder")
    dense = by_hand.dense(queries[0].double().numpy(), keys[0].double().numpy())
    found = evict(trace, budget=[3], prompt_tokens=prompt)
    groups = by_hand.groups(dense[:, prompt:, :prompt], KV_HEADS)
    own = lost_by(found, "oracle", 0).double().unflatten(0, (KV_HEADS, -1)).sum((1, 2))
    assert own.tolist() == pytest.approx([by_hand.best_by_trying(g, 3) for g in groups], abs=1e-6)
    bound = lost_by(found, "oracle-step", 0).double().unflatten(0, (KV_HEADS, -1)).sum(1)
    for k, group in enumerate(groups):
        for row in range(14 - prompt):
            one = by_hand.best_by_trying(group[:, row : row + 1], 3)
            assert float(bound[k, row]) == pytest.approx(one, abs=1e-6)
    table = found.to_pandas().set_index("policy")
    assert (table.loc["oracle", "lost"] <= table["lost"].drop("oracle-step") + 1e-9).all()
    assert table["above"].min() >= -1e-9 and table.loc["oracle-step", "above"] == 0


def test_a_function_is_a_policy_and_sees_the_prompt_alone() -> None:
    queries, keys = arrays(layers=1)
    trace = headloom.from_queries_keys(queries, keys, mask=headloom.causal(), kind="decoder")
    dense = by_hand.dense(queries[0].double().numpy(), keys[0].double().numpy())
    seen = []

    def by_norm(prompt: Prompt, budget: int) -> torch.Tensor:
        seen.append((prompt.queries.shape, prompt.keys.shape, prompt.name, budget))
        np.testing.assert_allclose(
            prompt.received.numpy(), dense[:, :PROMPT, :PROMPT].sum(1), rtol=1e-5
        )
        np.testing.assert_allclose(
            prompt.last(3).numpy(), dense[:, PROMPT - 3 : PROMPT, :PROMPT], rtol=1e-5, atol=1e-9
        )
        return -prompt.keys.norm(dim=-1)

    found = evict(trace, budget=[0.25], policy=[by_norm], prompt_tokens=PROMPT)
    assert seen == [((HEADS, PROMPT, DEPTH), (KV_HEADS, PROMPT, DEPTH), "layers.0", 11)]
    assert found.policies == (*POLICIES, "by_norm", "oracle", "oracle-step") and found.budgets == (
        11,
    )
    norms = np.linalg.norm(keys[0, :, :PROMPT].numpy(), axis=-1)
    assert sets_of(found, "by_norm", 0) == [by_hand.best(-each, 11) for each in norms]


def test_the_table_is_the_mean_of_its_parts() -> None:
    queries, keys = arrays()
    trace = headloom.from_queries_keys(queries, keys, mask=headloom.causal(), kind="decoder")
    found = evict(trace, budget=[0.1, 0.5], policy=["h2o", "tova"], prompt_tokens=PROMPT)
    whole = found.to_pandas()
    assert list(whole["policy"][:4]) == ["h2o", "tova", "oracle", "oracle-step"]
    assert len(whole) == 8 and list(whole["budget"][::4]) == [4, 22]
    assert whole["lost"][0] == pytest.approx(float(found.lost_by_heads[0, 0].mean()))
    for by, parts in (("layer", 2), ("head", 2 * HEADS), ("step", LENGTH - PROMPT)):
        table = found.to_pandas(by)
        assert len(table) == 8 * parts
        means = table.groupby(["policy", "budget"])["lost"].mean()
        for _, row in whole.iterrows():
            assert means[row["policy"], row["budget"]] == pytest.approx(row["lost"], abs=1e-9)
    heads = found.to_pandas("head")
    worst = heads[(heads["policy"] == "h2o") & (heads["budget"] == 4)].sort_values("lost").iloc[-1]
    assert (whole["worst_layer"][0], whole["worst_head"][0]) == (worst["layer"], worst["head"])
    with pytest.raises(InputError, match="by='keys'; expected one of"):
        found.to_pandas("keys")


def test_the_prompt_of_a_generation_ends_where_it_was_generated() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    trace = headloom.trace(model, {"input_ids": torch.arange(1, 21)[None]}, generate=6)
    assert isinstance(trace, TraceData)
    found = evict(trace, budget=[5], policy=["tova"])
    assert (found.prompt, found.steps) == (20, trace.layers[0].shape[1] - 20)


def refused(**options: Any) -> str:
    queries, keys = arrays(layers=1)
    made = {name: options.pop(name) for name in ("queries_keys",) if name in options}
    mask = options.pop("mask", headloom.causal())
    trace = headloom.from_queries_keys(
        queries, keys, mask=mask, kind=options.pop("kind", "decoder"), **made
    )
    with pytest.raises(InputError) as error:
        evict(trace, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_bad_input_is_one_line_that_says_what_to_do() -> None:
    assert "Trace again with queries and keys" in refused(queries_keys=False)
    assert "Trace a language model" in refused(mask=None, kind="encoder")
    for budget in (0, 1.5, 61, True, math.nan, "x", "200%", "nan%"):
        assert "expected a share of the prompt" in refused(budget=[budget], prompt_tokens=PROMPT), (
            budget
        )
    assert "the prompt, of 60 tokens, is 60; expected a whole number, from 1 to 59" in refused(
        prompt_tokens=60
    )
    assert "no policy 'h2'; there are h2o" in refused(policy=["h2"])
    for function, line in (
        (lambda p, b: torch.zeros(1, 2), "policy <lambda> returned scores (1, 2)"),
        (lambda p, b: torch.full((KV_HEADS, p.length), torch.nan), "or NaN"),
    ):
        assert line in refused(policy=[function])


def test_short_prompts_have_a_table_too() -> None:
    """A prompt of one token, of which SnapKV has no window; and a budget of one key."""
    queries, keys = arrays(layers=1)
    trace = headloom.from_queries_keys(
        queries[:, :, :3], keys[:, :, :3], mask=headloom.causal(), kind="decoder"
    )
    for prompt in (1, 2):
        found = evict(trace, budget=[1], prompt_tokens=prompt)
        assert set(found.policies) == {*POLICIES, "oracle", "oracle-step"}
        assert all(bool(held.sum(-1).eq(1).all()) for held in found.kept.values())
