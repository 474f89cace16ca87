"""Caches that are cropped: generation with candidates, and turns that are taken back."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.tracing.conftest import SIZES, cached
from tests.tracing.test_generation import HEADED, assert_equal, ids_of
from torch import nn

import headloom
from headloom.tracing.recording import call_file
from headloom.tracing.recording import passes as recording

transformers = pytest.importorskip("transformers")

#: A text that says itself twice, so that its candidates are there.
PROMPT = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 8, 5, 6, 7]])
LATENT = {
    **SIZES,
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 6,
    "first_k_dense_replace": 2,
}


def built(family_named, name: str, seed: int = 7) -> nn.Module:
    model = family_named(name).build().eval()
    if name in HEADED:
        torch.manual_seed(seed)
        model = getattr(transformers, HEADED[name])(model.config).eval()
    elif seed != 7:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.05)
    model.generation_config.eos_token_id = None
    model.generation_config.forced_eos_token_id = None
    return model


#: Of each kind of cache one way; the others are slow.
FAST = {("looked up", "Llama"), ("drafted", "Mistral"), ("looked up", "Gemma 2"),
        ("drafted", "gpt-oss"), ("drafted", "T5")}  # fmt: skip


@pytest.mark.parametrize(
    ("candidates", "name"),
    [
        pytest.param(candidates, name, marks=[] if (candidates, name) in FAST else pytest.mark.slow)
        for candidates in ("looked up", "drafted")
        for name in ("Llama", "Mistral", "Gemma 2", "gpt-oss", "T5", "BART")
    ],
)
def test_candidates_that_are_not_accepted_have_no_row(
    family_named, tmp_path, monkeypatch, name, candidates
) -> None:
    monkeypatch.setattr(recording, "TOGETHER", 3)
    monkeypatch.setattr(call_file, "LARGE", 1)
    model = built(family_named, name)
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    plain = headloom.trace(model, {"input_ids": PROMPT}, generate=options, keep=headloom.All())
    options["prompt_lookup_num_tokens"] = 3
    if candidates == "drafted":
        del options["prompt_lookup_num_tokens"]
        options["assistant_model"] = built(family_named, name, seed=8)
    grown = headloom.trace(
        model, {"input_ids": PROMPT}, generate=options, keep=headloom.All(), save=tmp_path / "t"
    )
    assert grown.positions == plain.positions
    assert_equal(grown, plain)


@pytest.mark.parametrize("new", [1, 2, 5])
def test_candidates_of_a_generation_that_ends_at_once(family_named, new) -> None:
    model = built(family_named, "Llama")
    options = {"max_new_tokens": new, "do_sample": False, "prompt_lookup_num_tokens": 4}
    end = int(model.generate(PROMPT, max_new_tokens=1, do_sample=False)[0, -1])
    for stops in ({}, {"eos_token_id": end}):
        with headloom.watch(model, keep=headloom.All()) as watched:
            whole = model.generate(PROMPT, **options, **stops)
        # All but the last token, which nothing has read.
        assert torch.equal(ids_of(watched.trace), whole[:, :-1])
        assert_equal(watched.trace, headloom.trace(model, whole[:, :-1], keep=headloom.All()))


def test_a_model_that_drafts_for_itself_is_refused(family_named) -> None:
    model = built(family_named, "Llama")
    for options in ({"assistant_early_exit": 1}, {"assistant_model": model}):
        with pytest.raises(headloom.InputError, match="to draft candidates for itself"):
            headloom.trace(model, {"input_ids": PROMPT}, generate={"max_new_tokens": 3, **options})


@pytest.mark.parametrize("queries_keys", [True, False])
def test_a_turn_that_is_taken_back(family_named, queries_keys) -> None:
    model = built(family_named, "Llama")
    cache = transformers.DynamicCache(config=model.config)
    with (
        headloom.watch(model, keep=headloom.All(), queries_keys=queries_keys) as watched,
        torch.no_grad(),
    ):
        model(PROMPT, **cached(model, cache))
        cache.crop(-4)
        for token in range(9, 31):
            model(torch.tensor([[token]]), **cached(model, cache))
        cache.crop(-5)
        model(torch.tensor([[3, 4]]), **cached(model, cache))
    ids = torch.tensor([[5, 6, 7, 8, 5, 6, 7, *range(9, 26), 3, 4]])
    assert torch.equal(ids_of(watched.trace), ids)
    whole = headloom.trace(model, ids, keep=headloom.All())
    for one, other in zip(watched.trace.layers, whole.layers, strict=True):
        assert torch.allclose(one.graph.dense(), other.graph.dense(), atol=2e-6)
        assert torch.allclose(one.value_norms, other.value_norms, atol=1e-5)
    assert "crop" not in vars(cache) and "reorder_cache" not in vars(cache)


def test_a_copy_of_a_cache_is_a_cache_of_its_own(family_named) -> None:
    """A prompt that is read once, and goes on in several ways."""
    model = built(family_named, "Llama")

    def turns() -> list[torch.Tensor]:
        prompt = transformers.DynamicCache(config=model.config)
        model(PROMPT, **cached(model, prompt))
        logits = []
        for token in (9, 10):
            cache = copy.deepcopy(prompt)
            cache.crop(-1)
            logits.append(model(torch.tensor([[7, token]]), **cached(model, cache)).logits)
        return [*logits, model(torch.tensor([[11]]), **cached(model, prompt)).logits]

    with torch.no_grad():
        own = turns()
        with headloom.watch(model, keep=headloom.All()) as watched:
            seen = turns()
    for one, other in zip(own, seen, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    # Each turn is a text of its own: its cache is not that of the text before it.
    assert [trace.layers[0].shape[1:] for trace in watched.traces] == [
        (11, 11), (2, 12), (2, 12), (1, 12),
    ]  # fmt: skip


def test_keys_made_of_what_is_in_the_cache_are_rounded_anew_in_every_pass() -> None:
    """DeepSeek's cache holds latent vectors, of which all keys are made again."""
    torch.manual_seed(7)
    config = transformers.DeepseekV3Config(**LATENT)
    model = transformers.DeepseekV3ForCausalLM._from_config(config, attn_implementation="eager")
    model.generation_config.eos_token_id = None
    prompt = torch.arange(20)[None] + 3
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    parts = headloom.trace(
        model.eval(), {"input_ids": prompt}, generate=options | {"prefill_chunk_size": 3},
        keep=headloom.All(),
    )  # fmt: skip
    assert_equal(parts, headloom.trace(model, ids_of(parts), keep=headloom.All()))


@pytest.mark.parametrize("name", ["T5", "BART"])
def test_several_answers_to_one_source(family_named, name) -> None:
    """The encoder reads it once, the decoder goes on in as many rows as answers."""
    model = built(family_named, name)
    options = {"max_new_tokens": 4, "do_sample": True, "num_return_sequences": 3, "top_k": 20}
    torch.manual_seed(1)
    traces = headloom.trace(model, {"input_ids": PROMPT}, generate=options, keep=headloom.All())
    torch.manual_seed(1)
    whole = model.generate(PROMPT, **options | {"max_new_tokens": 5})
    assert torch.equal(torch.cat([ids_of(trace) for trace in traces]), whole[:, :-1])
    assert len({tuple(trace.sequences["target"]) for trace in traces}) > 1
    for trace in traces:
        inputs = {"input_ids": PROMPT, "decoder_input_ids": ids_of(trace)}
        other = headloom.trace(model, inputs, keep=headloom.All())
        for one, own in zip(trace.layers, other.layers, strict=True):
            assert (one.name, one.kind, one.shape) == (own.name, own.kind, own.shape)
            assert torch.allclose(one.graph.dense(), own.graph.dense(), atol=2e-6)
