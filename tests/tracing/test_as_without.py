"""What a program computes in a block of headloom.watch has the bits that it has without."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.tracing.conftest import Family, cached
from torch import Tensor, nn

import headloom
from headloom.models.configuration import Architecture
from headloom.models.language_model import LanguageModel

transformers = pytest.importorskip("transformers")

Named = Callable[[str], Family]
RUNS = 20
IDS = torch.arange(5, 17)[None]
#: The keys of a cache that stay.
KEPT = [0, 2, 5, 9, 10, 11]


def seeded(run: Callable[[], Any]) -> list[Any]:
    """Outputs of several runs, each with a seed of its own."""
    outputs = []
    for seed in range(RUNS):
        torch.manual_seed(seed)
        outputs.append(run())
    return outputs


def assert_same(model: nn.Module, run: Callable[[], Any], **options: Any) -> list[Any]:
    """Hold a program's tensors without a watch against those in its block; returns the traces."""
    with torch.no_grad():
        expected = seeded(run)
        with headloom.watch(model, **options) as watched:
            outputs = seeded(run)
    for own, other in zip(expected, outputs, strict=True):
        torch.testing.assert_close(other, own, rtol=0, atol=0, equal_nan=True)
    return list(watched.traces)


class Weights(nn.Module):
    """Attention of torch that returns its weights, before a call of the fused function."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, dropout=0.5, batch_first=True)
        self.noise = nn.Dropout(0.5)

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        hidden, weights = self.attention(hidden, hidden, hidden)
        heads = self.noise(hidden).unflatten(2, (2, 8)).transpose(1, 2)
        dropped = 0.5 if self.attention.training else 0.0
        fused = nn.functional.scaled_dot_product_attention
        return fused(heads, heads, heads, dropout_p=dropped, is_causal=True), weights


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("trained", ["self_attn", "layers.1.self_attn", "none"])
def test_dropout_of_attention_alone_stays(family_named: Named, implementation, trained) -> None:
    model: Any = family_named("Llama").build(implementation)
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    for path, module in model.named_modules():
        module.train(path.endswith(trained))
    traces = assert_same(model, lambda: model(IDS).logits, keep=headloom.All())
    # Weights are those of the softmax, which no dropout changes.
    first = model.eval() and headloom.trace(model, IDS, keep=headloom.All()).layers[0].graph.dense()
    assert len(traces) == RUNS
    assert all(torch.allclose(t.layers[0].graph.dense(), first, atol=2e-6) for t in traces)


def test_dropout_of_other_modules_stays() -> None:
    torch.manual_seed(0)
    model = Weights().eval()
    hidden = torch.randn(1, 6, 16)
    torch.backends.mha.set_fastpath_enabled(False)  # it rounds otherwise; modes keep modules off it
    try:
        assert_same(model, lambda: model(hidden))
        for module in (model.attention, model.noise):
            module.train()
        outputs = [model(hidden)[0] for _ in range(2)]
        assert not torch.equal(*outputs)
        assert len(assert_same(model, lambda: model(hidden))) == RUNS
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    architecture = Architecture(
        width=16, heads=4, feed_forward=16, decoder_layers=2, attention_dropout=0.5
    )
    own = LanguageModel(30, architecture).eval()
    for part in own.modules():
        if isinstance(part, headloom.MultiHeadAttention):
            part.train()
    assert_same(own, lambda: own(IDS))


def test_hooks_run_as_often_as_without(family_named: Named) -> None:
    model: Any = family_named("Llama").build()
    seen: list[Tensor] = []

    def steer(module: nn.Module, args: Any, output: Any) -> Any:
        seen.append(output[0].clone())
        return (output[0] + len(seen) % 3, *output[1:])

    def needs_a_cache(module: Any, args: Any, options: Any, output: Any) -> None:
        cache = options.get("cache") or options["past_key_values"]
        cache.layers[module.layer_idx].keys.mul_(1.0)

    for layer in model.model.layers:
        layer.self_attn.register_forward_hook(steer)
        layer.self_attn.register_forward_hook(needs_a_cache, with_kwargs=True)

    def run() -> list[Tensor]:
        seen.clear()
        ids = model.generate(IDS, max_new_tokens=4, do_sample=True, pad_token_id=0)
        return [ids, *seen]

    traces = assert_same(model, run)
    assert traces[0].verification["difference"] < 1e-5


def test_a_model_that_cannot_be_verified_runs(family_named: Named, monkeypatch) -> None:
    model: Any = family_named("Llama").build()
    forward = type(model.model.layers[0]).forward

    def needs_a_cache(layer: Any, *args: Any, **options: Any) -> Any:
        assert options.get("cache", options.get("past_key_values")) is not None
        return forward(layer, *args, **options)

    monkeypatch.setattr(type(model.model.layers[0]), "forward", needs_a_cache)
    options = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 0}
    (trace, *_) = assert_same(model, lambda: model.generate(IDS, **options))
    assert "without hooks and cache, failed" in trace.verification["unverified"]


def thinned(keys: Tensor, layer: int) -> Tensor:
    return keys[:, :, KEPT]


def thinned_by_layer(keys: Tensor, layer: int) -> Tensor:
    return keys if layer == 0 else keys[:, :, KEPT]


def thinned_by_head(keys: Tensor, layer: int) -> Tensor:
    return torch.stack([keys[:, 0, KEPT], keys[:, 1, 3:9]], 1)


def in_another_order(keys: Tensor, layer: int) -> Tensor:
    return keys.flip(2)


def merged(keys: Tensor, layer: int) -> Tensor:
    return keys.unflatten(2, (-1, 2)).mean(3)


def turned(keys: Tensor, layer: int) -> Tensor:
    return keys.roll(1, -1)


def rounded(keys: Tensor, layer: int) -> Tensor:
    return (keys * 4).round() / 4


def shortened(keys: Tensor, layer: int) -> Tensor:
    return keys[:, :, :7]


def only_the_last(keys: Tensor, layer: int) -> Tensor:
    return keys[:, :, 4:]


def of_another_row(keys: Tensor, layer: int) -> Tensor:
    return keys.index_select(0, torch.tensor([1, 0]))


def repeated(keys: Tensor, layer: int) -> Tensor:
    return keys[:, :, [0, *range(keys.shape[2])]]


def one_in_place_of_another(keys: Tensor, layer: int) -> Tensor:
    return keys[:, :, [0, 0, *range(2, keys.shape[2])]]


CHANGES = [thinned, thinned_by_layer, thinned_by_head, in_another_order, merged, turned, rounded,
           shortened, only_the_last, of_another_row, repeated, one_in_place_of_another]  # fmt: skip
#: Those in which keys stay what they were.
FOUND = [thinned, thinned_by_layer, thinned_by_head, in_another_order, shortened, only_the_last]


@pytest.mark.parametrize("change", CHANGES)
def test_keys_of_a_cache_that_was_changed_lie_where_they_were_or_are_named(
    family_named: Named, change: Callable[[Tensor, int], Tensor]
) -> None:
    model: Any = family_named("Llama").build("sdpa")
    prompts = torch.stack((IDS[0], IDS[0].flip(0)))[: 2 if change is of_another_row else 1]
    tokens = torch.tensor([[7], [8], [9], [10]])

    def run() -> list[Tensor]:
        cache, outputs = transformers.DynamicCache(config=model.config), []
        outputs.append(model(prompts, use_cache=True, **cached(model, cache)).logits)
        for number, layer in enumerate(cache.layers):
            layer.keys = change(layer.keys, number).clone()
            layer.values = change(layer.values, number).clone()
        for step, token in enumerate(tokens):
            place = torch.tensor([[IDS.shape[1] + step]]).expand(len(prompts), -1)
            ids = token[None].expand(len(prompts), -1)
            outputs.append(model(ids, position_ids=place, **cached(model, cache)).logits)
        return outputs

    if change not in FOUND:
        with pytest.warns(UserWarning, match="holds other keys than the passes before computed"):
            assert assert_same(model, run, keep=headloom.All()) == []
        return
    (trace, *_) = traces = assert_same(model, run, keep=headloom.All())
    assert len(traces) == RUNS
    assert trace.tokens == [f"#{int(i)}" for i in (*IDS[0], *tokens)]
    # The places, carried through the same change as the keys.
    places = torch.arange(12.0)[None, None, :, None].expand(1, 2, -1, 1)
    for number, layer in enumerate(trace.layers):
        dense = layer.graph.dense()
        if change is not thinned_by_layer or number:
            assert layer.no_matrix and "thinned" in layer.no_matrix
        for head in range(4):
            left = change(places, number)[0, head // 2, :, 0].long().tolist()
            for step in range(4):
                row = dense[head, 12 + step]
                assert row.nonzero().flatten().tolist() == sorted([*left, *range(12, 13 + step)])
                assert float(row.sum()) == pytest.approx(1, abs=1e-5)


def test_weights_on_a_thinned_cache_are_those_that_the_model_computed(family_named: Named) -> None:
    model: Any = family_named("Llama").build("eager")
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad(), headloom.watch(model, keep=headloom.All()) as watched:
        model(IDS, use_cache=True, **cached(model, cache))
        for layer in cache.layers:
            layer.keys, layer.values = layer.keys[:, :, KEPT], layer.values[:, :, KEPT]
        own = model(
            torch.tensor([[7]]), position_ids=torch.tensor([[12]]), output_attentions=True,
            **cached(model, cache),
        ).attentions  # fmt: skip
    for layer, weights in zip(watched.trace.layers, own, strict=True):
        expected = torch.zeros(4, 13)
        expected[:, [*KEPT, 12]] = weights[0, :, 0]
        assert torch.allclose(layer.graph.dense()[:, -1], expected, atol=2e-6)


@pytest.mark.parametrize("generates", [False, True])
def test_threads_get_what_they_get_without(family_named: Named, generates: bool) -> None:
    model: Any = family_named("Llama").build("sdpa")
    texts = [IDS.roll(shift, 1) for shift in range(4)]

    def output(ids: Tensor) -> Tensor:
        options = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 0}
        made: Tensor = model.generate(ids, **options) if generates else model(ids).logits
        return made

    with torch.no_grad():
        expected = [output(ids) for ids in texts]

    def runs() -> list[Tensor]:
        outputs: list[Any] = [None] * len(texts)

        def one(number: int) -> None:
            with torch.no_grad():
                outputs[number] = [output(texts[number]) for _ in range(RUNS // 4)]

        threads = [threading.Thread(target=one, args=(number,)) for number in range(len(texts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return outputs

    with pytest.warns(UserWarning), headloom.watch(model, keep=headloom.All()) as watched:
        outputs = runs()
    for of_thread, own in zip(outputs, expected, strict=True):
        assert len(of_thread) == RUNS // 4  # in four threads
        assert all(torch.equal(output, own) for output in of_thread)
    for trace in watched.traces:
        ids = torch.tensor([[int(token[1:]) for token in trace.tokens]])
        alone = headloom.trace(model, ids, keep=headloom.All())
        for one, other in zip(trace.layers, alone.layers, strict=True):
            assert torch.allclose(one.graph.dense(), other.graph.dense(), atol=2e-6)


def test_a_generation_that_began_beside_another_is_not_traced_from_its_middle(
    family_named: Named,
) -> None:
    model: Any = family_named("Llama").build("sdpa")
    first_ended, second_began = threading.Event(), threading.Event()

    class Second(transformers.LogitsProcessor):
        def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
            second_began.set()
            assert first_ended.wait(60)
            return scores

    class First(transformers.LogitsProcessor):
        def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
            if not second.is_alive():
                second.start()
            assert second_began.wait(60)
            return scores

    def generate(shift: int, processor: transformers.LogitsProcessor) -> None:
        model.generate(
            IDS.roll(shift, 1), max_new_tokens=3, do_sample=False, pad_token_id=0,
            logits_processor=[processor],
        )  # fmt: skip

    second = threading.Thread(target=generate, args=(1, Second()))
    with pytest.warns(UserWarning, match="two threads"), headloom.watch(model) as watched:
        generate(0, First())
        first_ended.set()
        second.join()
    assert watched.trace.tokens[: IDS.shape[1]] == [f"#{number}" for number in IDS[0].tolist()]


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_continuous_batches_end_as_without(family_named: Named, implementation: str) -> None:
    model: Any = family_named("Llama").build(implementation)
    if not hasattr(transformers, "ContinuousBatchingConfig"):
        pytest.skip("this version of Transformers has no generate_batch")
    # Else its cache takes most of the memory that is free.
    small = transformers.ContinuousBatchingConfig(num_blocks=8, max_batch_tokens=32)
    config = transformers.GenerationConfig(
        max_new_tokens=4, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    texts = [[1, 5, 6, 7], [8, 9, 10, 11, 12]]

    def run() -> dict[str, Any]:
        batch = model.generate_batch(
            inputs=texts, generation_config=config, progress_bar=False,
            continuous_batching_config=small,
        )  # fmt: skip
        return {name: (result.generated_tokens, result.error) for name, result in batch.items()}

    expected = run()
    assert all(len(tokens) == 4 for tokens, _ in expected.values())
    with (
        pytest.warns(UserWarning, match="PagedAttentionCache, does not say how many positions"),
        headloom.watch(model) as watched,
    ):
        model(IDS)
        assert run() == expected
    assert [len(trace.tokens) for trace in watched.traces] == [12]


@pytest.mark.parametrize("options", [{"num_beams": 1}, {"num_beams": 3}, {"do_sample": True}])
def test_callbacks_see_what_they_see_without(family_named: Named, options: Any) -> None:
    model: Any = family_named("Llama").build("sdpa")
    model.generation_config.eos_token_id = None
    seen: list[Tensor] = []

    class Favours(transformers.LogitsProcessor):
        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            seen.append(scores.clone())
            scores[:, len(seen) % 40] += 5
            return scores

    class Stops(transformers.StoppingCriteria):
        def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
            seen.append(input_ids.clone())
            return torch.full((len(input_ids),), input_ids.shape[1] > 16)

    def run() -> list[Tensor]:
        seen.clear()
        ids = model.generate(
            IDS, max_new_tokens=8, pad_token_id=0, **{"do_sample": False, **options},
            logits_processor=transformers.LogitsProcessorList([Favours()]),
            stopping_criteria=transformers.StoppingCriteriaList([Stops()]),
        )  # fmt: skip
        return [ids, *seen]

    assert assert_same(model, run)
