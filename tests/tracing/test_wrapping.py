"""One recording of a model at a time: a second one says so, in this thread or another."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.tracing.conftest import Family
from torch import nn

import headloom
from headloom.models.configuration import Architecture
from headloom.models.language_model import LanguageModel

IDS = torch.arange(3, 13)[None]
OTHER = IDS.flip(1)
Named = Callable[[str], Family]


@pytest.fixture(params=["Transformers", "headloom"])
def model(request: pytest.FixtureRequest, family_named: Named) -> Any:
    """A small decoder of either kind."""
    if request.param == "headloom":
        architecture = Architecture(width=16, heads=4, feed_forward=16, decoder_layers=2)
        return LanguageModel(30, architecture).eval()
    return family_named("Llama").build()


def test_a_watch_or_a_trace_within_a_watch_says_so(model: Any) -> None:
    with torch.no_grad(), headloom.watch(model) as watched:
        with (
            pytest.raises(headloom.InputError, match="traced or watched already"),
            headloom.watch(model),
        ):
            pass
        with pytest.raises(headloom.InputError, match="traced or watched already"):
            headloom.trace(model, IDS)
        part = next(module for module in model.modules() if isinstance(module, nn.ModuleList))[0]
        with pytest.raises(headloom.InputError):
            headloom.trace(part, IDS)
        model(IDS)
    assert len(watched.trace.layers) == 2
    assert isinstance(headloom.trace(model, IDS), headloom.Trace)


def test_a_copy_made_while_a_model_is_watched_can_be_traced(model: Any) -> None:
    with headloom.watch(model):
        pass
    again = copy.deepcopy(model)
    assert isinstance(headloom.trace(again, IDS), headloom.Trace)


def test_a_trace_in_another_thread_says_so(model: Any) -> None:
    errors: list[Exception] = []

    def other() -> None:
        try:
            headloom.trace(model, IDS)
        except Exception as error:
            errors.append(error)

    with torch.no_grad(), headloom.watch(model) as watched:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        model(IDS)
    (error,) = errors
    assert isinstance(error, headloom.InputError)
    assert "in another thread" in str(error)
    assert len(watched.trace.layers) == 2


def test_of_two_threads_that_call_a_watched_model_one_is_traced(family_named: Named) -> None:
    model: Any = family_named("Llama").build()
    outputs: list[Any] = []

    def pause(*_: object) -> None:
        hook.remove()
        thread = threading.Thread(target=lambda: outputs.append(model(OTHER).logits))
        thread.start()
        thread.join()

    with torch.no_grad():
        expected = [model(ids).logits for ids in (OTHER, IDS)]
        hook = model.model.layers[1].register_forward_pre_hook(pause)
        with (
            pytest.warns(UserWarning, match="two threads called it at once"),
            headloom.watch(model, keep=headloom.All()) as watched,
        ):
            outputs.append(model(IDS).logits)
        for one, other in zip(outputs, expected, strict=True):
            assert torch.equal(one, other)
        alone = headloom.trace(model, IDS, keep=headloom.All())
    for one, other in zip(watched.trace.layers, alone.layers, strict=True):
        assert torch.allclose(one.graph.dense(), other.graph.dense(), atol=2e-6)


def test_models_that_share_a_configuration_do_not_share_a_watch(family_named: Named) -> None:
    transformers = pytest.importorskip("transformers")
    one: Any = family_named("Llama").build()
    other = transformers.LlamaForCausalLM(one.config).eval()
    assert other.config is one.config
    with headloom.watch(one), pytest.raises(headloom.InputError, match="End that first"):
        headloom.trace(other, IDS)


def test_the_base_of_a_model_is_watched_and_a_layer_alone_is_named(family_named: Named) -> None:
    model: Any = family_named("Llama").build()
    with torch.no_grad(), headloom.watch(model) as watched:
        model.model(input_ids=IDS)
        model(IDS)
    first, second = watched.traces
    assert first.tokens == second.tokens
    assert first.verification["layers"] == 2
    for one, other in zip(first.layers, second.layers, strict=True):
        assert one.name == other.name
        assert torch.allclose(one.graph.dense(), other.graph.dense(), atol=2e-6)
    hidden = torch.randn(1, 4, 32)
    positions = model.model.rotary_emb(hidden, torch.arange(4)[None])
    with (
        pytest.warns(UserWarning, match=r"1 attention layer ran outside .*layers\.0\.self_attn"),
        headloom.watch(model) as watched,
    ):
        expected = model(IDS).logits
        model.model.layers[0](hidden, position_embeddings=positions)
    assert len(watched.traces) == 1
    with torch.no_grad():
        assert torch.allclose(model(IDS).logits, expected, atol=1e-5)


def test_a_part_of_a_model_of_headloom_that_runs_alone_is_named(translator: Any) -> None:
    layer = translator.encoder
    with (
        pytest.warns(UserWarning, match="1 attention layer ran outside of Translator.forward"),
        headloom.watch(translator.eval()) as watched,
    ):
        layer(torch.randn(1, 4, 16))
    assert watched.traces == []
