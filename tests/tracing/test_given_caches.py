"""Texts that go on from a cache that lets go of keys, or is changed between two passes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.tracing.conftest import assert_dense, cached
from torch import Tensor

import headloom

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip


def model_and_eager(name: str, **options: Any) -> tuple[Any, Any]:
    """A language model, and one with the same numbers that returns its weights."""
    torch.manual_seed(0)
    models = [
        getattr(transformers, f"{name}ForCausalLM")
        ._from_config(
            getattr(transformers, f"{name}Config")(**SIZES, **options), attn_implementation=way
        )
        .eval()
        for way in ("sdpa", "eager")
    ]
    models[1].load_state_dict(models[0].state_dict())
    return models[0], models[1]


def ids(*shape: int) -> Tensor:
    return torch.randint(3, 97, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("received", [False, True])
@pytest.mark.parametrize("keep", [headloom.All(), headloom.Top(32), headloom.Top(2)])
@pytest.mark.parametrize(
    ("before", "passes"),
    [(6, [4, 4]), (3, [4, 4]), (6, [1] * 14), (2, [1] * 18), (6, [3, *[1] * 9]), (7, [5])],
)
def test_a_window_whose_cache_has_let_go_of_keys(
    before: int, passes: list[int], keep: headloom.Keep, received: bool, tmp_path
) -> None:
    """The cache holds the last keys alone, and each is called by where it stands in the text."""
    model, eager = model_and_eager("Mistral", sliding_window=5)
    text = ids(1, before + sum(passes))
    cache = transformers.DynamicCache(config=model.config)
    with headloom.watch(model, keep=keep, received=received) as watched, torch.no_grad():
        for part in text.split([before, *passes], 1):
            model(part, **cached(model, cache))
    expected = [weights[0] for weights in eager(text, output_attentions=True).attentions]
    watched.trace.save(tmp_path / "t.loom")
    for layer, weights in zip(headloom.open(tmp_path / "t.loom").layers, expected, strict=True):
        assert layer.shape == tuple(weights.shape)
        assert layer.key_tokens == [f"#{token}" for token in text[0].tolist()]
        kept = layer.graph.to_dense()
        known = kept > 0 if keep == headloom.Top(2) else torch.ones_like(kept, dtype=torch.bool)
        torch.testing.assert_close(kept[known], weights[known], rtol=0, atol=1e-5)
        torch.testing.assert_close(layer.matrix.to_dense(), weights, rtol=0, atol=1e-5)
        if received:
            torch.testing.assert_close(layer.graph.received, weights.sum(1), rtol=0, atol=1e-5)


def test_a_cache_that_was_filled_before_is_refused() -> None:
    model, _ = model_and_eager("Mistral", sliding_window=5)
    text = ids(1, 10)
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        model(text[:, :6], **cached(model, cache))
        with (
            pytest.warns(UserWarning, match="its cache was filled before the block began"),
            headloom.watch(model) as watched,
        ):
            model(text[:, 6:], **cached(model, cache))
    assert not watched.traces


def test_rows_that_were_chosen_of_a_cache_are_warned_of() -> None:
    model, _ = model_and_eager("Llama")
    with (
        pytest.warns(UserWarning, match="the cache does not hold the keys"),
        headloom.watch(model) as watched,
        torch.no_grad(),
    ):
        cache = transformers.DynamicCache(config=model.config)
        model(ids(3, 8), **cached(model, cache))
        cache.batch_select_indices(torch.tensor([2, 0]))
        model(ids(2, 2), **cached(model, cache))
    assert watched.traces == []


def test_towers_that_run_before_the_model_are_named_so() -> None:
    """What generation encodes first is in no trace of it, and the reason is said as it is."""
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
              "num_attention_heads": 4, "image_size": 32, "patch_size": 16}  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlavaForConditionalGeneration(
        transformers.LlavaConfig(
            vision_config=transformers.CLIPVisionConfig(**vision),
            text_config=transformers.LlamaConfig(**SIZES),
            image_token_index=90,
            image_seq_length=4,
        )
    ).eval()
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    text = ids(1, 9).clamp(max=89)
    text[:, 1:5] = 90
    inputs = {"input_ids": text, "pixel_values": torch.randn(1, 3, 32, 32)}
    with pytest.warns(UserWarning, match=r"^trace: 2 attention layers ran .* Without generate="):
        trace = headloom.trace(model, inputs, generate=2)
    assert {entry["reason"] for entry in trace.not_traced} == {"it ran outside the model's forward"}
    assert {entry["class"] for entry in trace.not_traced} == {"CLIPAttention"}
    assert len(headloom.trace(model, inputs).layers) == 4


def test_a_family_is_traced_as_it_computes_where_it_returns_other_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Falcon with ALiBi: weights that it returns are not those of its fused attention."""
    sizes = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    model, eager = [
        transformers.FalconForCausalLM._from_config(
            transformers.FalconConfig(**sizes, alibi=True), attn_implementation=way
        ).eval()
        for way in ("sdpa", "eager")
    ]
    fused, expected = torch.nn.functional.scaled_dot_product_attention, []

    def seen(queries: Tensor, keys: Tensor, values: Tensor, attn_mask: Tensor, **more: Any):
        expected.append((queries @ keys.mT / queries.shape[3] ** 0.5 + attn_mask).softmax(-1))
        return fused(queries, keys, values, attn_mask, **more)

    with monkeypatch.context() as patched, torch.no_grad():
        patched.setattr(torch.nn.functional, "scaled_dot_product_attention", seen)
        model(ids(1, 9))
    trace = headloom.trace(model, ids(1, 9), keep=headloom.All())
    assert_dense(trace.layers, expected)
    with pytest.warns(UserWarning, match="does not use the attention interface"):
        trace = headloom.trace(eager, ids(1, 9), keep=headloom.All())
    with torch.no_grad():
        returned = eager(ids(1, 9), output_attentions=True).attentions
    assert_dense(trace.layers, returned)
