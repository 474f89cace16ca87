"""What a program computes in a block of headloom.watch has the bits that it has without."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.tracing.conftest import Family, ids_of
from torch import Tensor, nn

import headloom

transformers = pytest.importorskip("transformers")

Named = Callable[[str], Family]
RUNS = 20
IDS = torch.arange(5, 17)[None]


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
    first = (
        model.eval() and headloom.trace(model, IDS, keep=headloom.All()).layers[0].graph.to_dense()
    )
    assert len(traces) == RUNS
    assert all(torch.allclose(t.layers[0].graph.to_dense(), first, atol=2e-6) for t in traces)


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
    assert traces[0].deviation < 1e-5


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
        alone = headloom.trace(model, ids_of(trace), keep=headloom.All())
        for one, other in zip(trace.layers, alone.layers, strict=True):
            assert torch.allclose(one.graph.to_dense(), other.graph.to_dense(), atol=2e-6)


@pytest.mark.parametrize("name", ["Llama", "own"])
def test_a_trace_holds_nothing_of_other_threads(family_named: Named, name: str) -> None:
    model: Any = headloom.LanguageModel(vocabulary=32, width=16, heads=2, layers=2).eval()
    if name != "own":
        model = family_named(name).build("sdpa")
    ids, done = IDS[:1], threading.Event()
    expected = headloom.trace(model, ids)[1].graph
    traces: list[Any] = []

    def runs() -> None:
        with torch.no_grad():
            while not done.is_set():
                model(ids[:, :3])

    def records() -> None:
        traces.extend(headloom.trace(model, ids) for _ in range(10))

    runner = threading.Thread(target=runs)
    recorders = [threading.Thread(target=records) for _ in range(2)]
    for thread in (runner, *recorders):
        thread.start()
    for thread in recorders:
        thread.join()
    done.set()
    runner.join()
    assert len(traces) == 20
    for trace in traces:
        assert len(trace) == 2
        assert torch.equal(trace[1].graph.keys, expected.keys)
        assert torch.allclose(trace[1].graph.weights, expected.weights, atol=1e-6)
