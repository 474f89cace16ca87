"""Caches whose keys are evicted between steps, against eager attention in float64 that is thinned
in the same way, and whose columns are placed by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

import headloom

PROMPT = torch.randint(1, 60, (1, 12), generator=torch.Generator().manual_seed(1))
NEXT = (7, 8, 9)
#: Survivors of the prompt in each key/value head.
ONE_SET = ([0, 2, 5, 9, 10, 11], [0, 2, 5, 9, 10, 11])
A_SET_A_HEAD = ([0, 2, 5, 9, 10, 11], [1, 2, 3, 4, 8, 11])


def llama(attention: str, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=64, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM._from_config(config, attn_implementation=attention)
    return model.eval().to(dtype)


def keep(cache: Any, sets: tuple[list[int], ...]) -> None:
    for layer in cache.layers:
        places = torch.tensor(sets)[None, :, :, None].expand(-1, -1, -1, layer.keys.shape[3])
        layer.keys, layer.values = layer.keys.gather(2, places), layer.values.gather(2, places)


def steps(model: Any, thin: Callable[[int, Any], None]) -> list[tuple[Tensor, ...]]:
    """Read the prompt and three tokens at their true positions, thinning the cache before each."""
    cache = transformers.DynamicCache(config=model.config)
    eager = model.config._attn_implementation == "eager"
    weights = []
    with torch.no_grad():
        model(PROMPT, cache=cache, use_cache=True)
        for step, token in enumerate(NEXT):
            thin(step, cache)
            positions = torch.tensor([[PROMPT.shape[1] + step]])
            out = model(
                torch.tensor([[token]]), cache=cache, position_ids=positions, use_cache=True,
                output_attentions=eager,
            )  # fmt: skip
            weights.append(out.attentions)
    return weights


@pytest.mark.parametrize("sets", [ONE_SET, A_SET_A_HEAD])
@pytest.mark.parametrize("each_step", [False, True])
def test_edges_are_at_the_places_of_surviving_keys(
    sets: tuple[list[int], ...], each_step: bool
) -> None:
    def thin(step: int, cache: Any) -> None:
        if not step:
            keep(cache, sets)
        elif each_step:  # drop the oldest but one
            keep(cache, tuple([0, *range(2, cache.layers[0].keys.shape[2])] for _ in sets))

    model = llama("sdpa")
    with headloom.watch(model, keep="all") as watched:
        steps(model, thin)
    expected = steps(llama("eager", torch.float64), thin)
    alive = [list(places) for places in sets]
    for step, attentions in enumerate(expected):
        if step and each_step:
            alive = [[places[0], *places[2:]] for places in alive]
        for places in alive:
            places.append(12 + step)
        for layer, weights in zip(watched.trace.layers, attentions, strict=True):
            right = np.zeros((4, 15))
            for head in range(4):
                right[head, alive[head // 2]] = weights[0, head, 0]
            row = np.asarray(layer.graph.to_dense())[:, 12 + step]
            assert np.abs(row - right).max() < 1e-6
    layer = watched.trace.layers[1]
    assert layer.matrix is None and "evicted" in layer.data.terms.missing
    assert layer.mask is None


@pytest.mark.parametrize("kind", ["cropped", "rotated", "another's"])
def test_other_changes_of_a_cache_are_refused(kind: str) -> None:
    def change(step: int, cache: Any) -> None:
        for layer in cache.layers if step == 1 else ():
            if kind == "cropped":
                layer.keys, layer.values = layer.keys[:, :, :9], layer.values[:, :, :9]
            elif kind == "rotated":
                layer.keys = layer.keys.roll(1, 3)
            else:
                layer.keys = layer.keys[:, :, 2:] + 0.5
                layer.values = layer.values[:, :, 2:]

    model = llama("sdpa")
    with (
        pytest.warns(UserWarning, match="cache does not hold the keys that earlier passes"),
        headloom.watch(model) as watched,
    ):
        steps(model, change)
    assert watched.traces == []


def test_the_lost_mass_is_that_of_the_eviction_table() -> None:
    """In the first layer, queries are those of the full cache: log-sum-exps tell the lost mass."""
    model, text = llama("sdpa"), torch.cat((PROMPT, torch.tensor([NEXT])), 1)
    full = headloom.trace(model, text, keep="all")
    table = headloom.evict(full, policy="streaming", budget=6, prompt_tokens=12)
    survivors = tuple(table.kept[0][0, 0, head].nonzero()[:, 0].tolist() for head in range(2))
    with headloom.watch(model, keep="all") as watched:
        steps(model, lambda step, cache: None if step else keep(cache, survivors))
    before, after = full.layers[0].graph.lse[:, 12:], watched.trace.layers[0].graph.lse[:, 12:]
    lost = 1 - (after - before).exp()
    assert float((lost - table.lost[0][0, 0]).abs().max()) < 1e-6 < float(lost.min())
