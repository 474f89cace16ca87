"""The default verification: a model with headloom, held against the model without."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.tracing.conftest import Family
from torch import Tensor, nn

import headloom
from headloom.mechanism.masks import causal
from headloom.models.configuration import Architecture
from headloom.models.language_model import LanguageModel
from headloom.tracing.inputs import prefix_of
from headloom.tracing.recording import recorder
from headloom.tracing.sources import transformers as interface

transformers = pytest.importorskip("transformers")

Named = Callable[[str], Family]


def read_by(model: nn.Module) -> list[int]:
    """A list that grows by the positions that the model reads in each call."""
    read: list[int] = []
    model.register_forward_pre_hook(
        lambda module, args, given: read.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    return read


def sabotage(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any]) -> None:
    own = interface._read

    def changed(mask: Tensor, queries: int, keys: int, eager: bool) -> Any:
        read = own(mask, queries, keys, eager)
        return replace(read, mask=change(read.mask))

    monkeypatch.setattr(interface, "_read", changed)


@pytest.mark.parametrize("name", ["Llama", "GPT-2", "Mistral", "BART", "BERT"])
def test_a_mask_that_is_lost_is_an_error(
    family_named: Named, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = family_named(name)
    model, inputs = family.build(), family.inputs()
    assert all(trace.verification for trace in headloom.trace(model, inputs))
    sabotage(monkeypatch, lambda mask: None)
    with pytest.raises(headloom.VerificationError, match=r"of layer \S+ differs"):
        headloom.trace(model, inputs)
    assert model.config._attn_implementation == "eager"
    assert not any(module._forward_hooks for module in model.modules())
    with pytest.warns(UserWarning, match=r"trace: layer \S+ looks (ahead|at padding), with"):
        assert headloom.trace(model, inputs, verify=False)[0].verification is None


def test_a_mask_that_is_shifted_by_one_key_is_an_error(
    family_named: Named, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = family_named("Llama")
    for implementation in ("eager", "sdpa"):
        model, inputs = family.build(implementation), family.inputs()
        for offset in (-1, 1):
            with monkeypatch.context() as patched:
                sabotage(patched, lambda mask, offset=offset: causal(offset))
                with pytest.raises(headloom.VerificationError, match=r"layers\.0\.self_attn"):
                    headloom.trace(model, inputs)


def test_the_first_layer_that_differs_is_named(
    family_named: Named, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = family_named("GPT-2")
    model, inputs = family.build("sdpa"), family.inputs(padded=False)
    own = recorder.CallRecorder.__call__

    def worse(self: Any, call: Any) -> Tensor:
        output = own(self, call)
        return output * 1.01 if call.path == "transformer.h.1.attn" else output

    monkeypatch.setattr(recorder.CallRecorder, "__call__", worse)
    with pytest.raises(headloom.VerificationError, match=r"layer transformer\.h\.1\.attn is not"):
        headloom.trace(model, inputs)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["Llama", "BERT"])
def test_a_fault_in_a_text_longer_than_the_prefix_names_its_first_layer(
    family_named: Named, name: str, implementation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a causal model and of one whose first rows depend on what follows."""
    model = family_named(name).build(implementation)
    ids = torch.randint(3, 50, (1, 40))
    own = recorder.CallRecorder.__call__
    read = read_by(model)
    path = next(
        layer.name for layer in headloom.trace(model, ids, verify=8).layers if layer.index == 1
    )
    assert read == ([8, 40] if name == "Llama" else [8, 40, 8])

    def worse(self: Any, call: Any) -> Tensor:
        output = own(self, call)
        return output * 1.01 if call.path == path else output

    monkeypatch.setattr(recorder.CallRecorder, "__call__", worse)
    # The sample of rows would notice it too, in the recorder: `worse` is what follows it.
    with pytest.raises(headloom.VerificationError, match=rf"layer {path} is not"):
        headloom.trace(model, ids, verify=8)


def test_first_rows_are_compared_with_weights_and_change_nothing(
    family_named: Named, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = family_named("Llama").build("eager")
    ids = torch.randint(3, 50, (1, 40))
    plain, verified = headloom.trace(model, ids, verify=False), headloom.trace(model, ids, verify=8)
    assert 0 < verified.verification["weights"] < 2e-6
    assert 0 < verified.verification["difference"] < 1e-5
    assert verified.verification["layers"] == len(verified.layers)
    for one, other in zip(plain.layers, verified.layers, strict=True):
        assert torch.equal(one.graph.weights, other.graph.weights)
    # Row 3 is in the prefix, and none of those of the sample.
    right = recorder.attend

    def moved(*args: Any, **named: Any) -> Any:
        output, graph = right(*args, **named)
        weights = graph.weights.clone()
        weights[:, :, 3] = weights[:, :, 3].flip(-1)
        return output, replace(graph, weights=weights)

    monkeypatch.setattr(recorder, "attend", moved)
    with pytest.raises(headloom.VerificationError, match=r"the weights of layer .* \(8 tokens\)"):
        headloom.trace(model, ids, verify=8)


def test_it_reads_a_prefix_once_and_the_inputs_once(family_named: Named) -> None:
    model = family_named("Llama").build()
    ids = torch.arange(3, 53)[None].repeat(1, 1)
    read = read_by(model)
    for verify, expected in (
        (8, [8, 50]),
        # The run over the whole inputs is verified and traced at once.
        (None, [50, 50]),
        ("all", [50, 50]),
        (False, [50]),
    ):
        read.clear()
        trace = headloom.trace(model, {"input_ids": ids}, verify=verify)
        assert read == expected
        if verify == 8:
            assert trace.verification["tokens"] == 8
            assert not trace.verification["whole"]
    read = read_by(model.base_model)
    headloom.trace(model, {"input_ids": torch.arange(3, 9)[None]}, generate=2, verify=4)
    assert read == [4, 6, 1, 1]
    read.clear()
    headloom.trace(model, {"input_ids": torch.arange(3, 9)[None]}, generate=2)
    assert read == [6, 6, 6, 1, 1]
    with pytest.raises(headloom.InputError, match="expected a number of tokens, 1 or more"):
        headloom.trace(model, {"input_ids": ids}, verify=-1)


def test_a_long_text_costs_64_tokens_more() -> None:
    """By tokens read, not by time."""
    config = transformers.GPT2Config(
        vocab_size=60, n_embd=16, n_layer=1, n_head=2, n_positions=1024
    )
    model = transformers.GPT2Model(config).eval()
    read = read_by(model)
    trace = headloom.trace(model, {"input_ids": torch.randint(0, 60, (1, 1000))})
    assert read == [64, 1000]
    assert "(64 tokens)" in repr(trace)


def test_what_was_verified_stands_in_the_trace_and_on_disk(family_named: Named, tmp_path) -> None:
    family = family_named("BART")
    model, inputs = family.build(), family.inputs(padded=False)
    trace = headloom.trace(model, inputs, save=tmp_path / "t")
    assert trace.verification["layers"] == 6
    assert trace.verification["whole"] is True
    assert trace.verification["tokens"] == 12
    assert 0 < trace.verification["difference"] < 1e-5
    assert 0 < trace.verification["weights"] < 2e-6
    assert "as without headloom to" in repr(trace)
    assert headloom.open(tmp_path / "t").verification == trace.verification


def test_a_prefix_of_texts_padded_on_the_left_holds_real_tokens() -> None:
    ids = torch.arange(200).view(2, 100)
    mask = torch.ones_like(ids)
    mask[1, :70] = 0
    inputs = {"input_ids": ids, "attention_mask": mask, "use_cache": False}
    cut, tokens = prefix_of(inputs, 16)
    assert tokens == 16
    assert cut["input_ids"].tolist() == ids[:, 62:78].tolist()
    assert cut["attention_mask"][1].tolist() == [0] * 8 + [1] * 8
    mask[1, :99] = 0
    assert prefix_of(inputs, 16)[0]["attention_mask"][1].tolist() == [0] * 15 + [1]


def test_what_goes_along_with_a_text_is_cut_with_it_and_an_image_keeps_it_whole() -> None:
    ids = torch.zeros(2, 50, dtype=torch.int64)
    inputs = {
        "input_ids": ids,
        "bbox": torch.zeros(2, 50, 4),
        "position_ids": torch.zeros(3, 2, 50),
        "attention_mask": torch.zeros(2, 1, 50, 50),
        "decoder_input_ids": torch.zeros(2, 30, dtype=torch.int64),
        "decoder_attention_mask": torch.ones(2, 30),
    }
    cut, tokens = prefix_of(inputs, 20)
    assert tokens == 20
    assert {name: tuple(value.shape) for name, value in cut.items()} == {
        "input_ids": (2, 20),
        "bbox": (2, 20, 4),
        "position_ids": (3, 2, 20),
        "attention_mask": (2, 1, 20, 20),
        "decoder_input_ids": (2, 20),
        "decoder_attention_mask": (2, 20),
    }
    seen = {"input_ids": ids, "pixel_values": torch.zeros(2, 3, 8, 8)}
    assert prefix_of(seen, 20)[0]["input_ids"].shape == (2, 50)


def test_random_numbers_and_what_modules_hold_are_as_before(family_named: Named) -> None:
    """A model that draws in evaluation is verified with the same draws, and its own come after."""
    model = family_named("Llama").build()
    drawn: list[Tensor] = []

    def noise(module: nn.Module, given: Any, output: Tensor) -> Tensor:
        drawn.append(torch.rand(()) + random.random() + float(np.random.rand()))
        module.calls = getattr(module, "calls", 0) + 1
        return output + drawn[-1]

    model.model.embed_tokens.register_forward_hook(noise)
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 8]])}
    torch.manual_seed(3), random.seed(3), np.random.seed(3)
    headloom.trace(model, inputs)
    assert len(drawn) == 2
    assert drawn[0] == drawn[1]
    assert model.model.embed_tokens.calls == 1


def test_a_model_that_reads_some_lengths_only_is_verified_whole(family_named: Named) -> None:
    model = family_named("GPT-2").build()
    read = read_by(model)

    def picky(module: nn.Module, args: Any, given: Any) -> None:
        if given["input_ids"].shape[1] != 12:
            raise ValueError("texts of 12 tokens only")

    model.register_forward_pre_hook(picky, with_kwargs=True)
    trace = headloom.trace(model, {"input_ids": torch.arange(12)[None]}, verify=6)
    assert read == [6, 12, 12]
    assert trace.verification["whole"] is True


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_types_are_verified_too(
    family_named: Named, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = family_named("Llama")
    for implementation in ("eager", "sdpa"):
        model, inputs = family.build(implementation).to(dtype), family.inputs(padded=False)
        assert headloom.trace(model, inputs).verification["layers"] == 2
        if implementation == "eager":
            with monkeypatch.context() as patched:
                sabotage(patched, lambda mask: None)
                with pytest.raises(headloom.VerificationError):
                    headloom.trace(model, inputs)


def test_watch_verifies_the_first_text_once_and_changes_nothing(
    family_named: Named, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = family_named("Llama")
    model, ids = family.build(), family.inputs(padded=False)["input_ids"]
    options = {"max_new_tokens": 4, "do_sample": True, "eos_token_id": None}
    torch.manual_seed(5)
    expected = model.generate(ids, **options)
    read: list[int] = []
    model.register_forward_pre_hook(
        lambda module, args, given: read.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    torch.manual_seed(5)
    with headloom.watch(model) as watched, torch.no_grad():
        found = model.generate(ids, **options)
        model(input_ids=ids[:, :5])
    assert torch.equal(found, expected)
    assert sorted(read) == [1, 1, 1, 5, 12]  # a hook runs as often as without headloom
    first, second = watched.traces
    assert first.verification["layers"] == 2
    assert first.verification["tokens"] == 12
    assert "on another text" in repr(second)
    assert model.config._attn_implementation == "eager"
    sabotage(monkeypatch, lambda mask: None)
    with (
        pytest.warns(UserWarning, match="Please report the model"),
        headloom.watch(model) as watched,
    ):
        model.generate(ids, **options)
    assert watched.traces == []
    assert model.config._attn_implementation == "eager"
    assert not any(module._forward_hooks for module in model.modules())
    with (
        pytest.warns(UserWarning, match="looks ahead"), torch.no_grad(),
        headloom.watch(model, verify=False) as watched,
    ):  # fmt: skip
        model(input_ids=ids)
    assert watched.trace.verification is None


def test_watch_verifies_an_encoder_and_its_decoder(family_named: Named) -> None:
    model = transformers.BartForConditionalGeneration(family_named("BART").build().config).eval()
    inputs = family_named("BART").inputs(padded=False)
    del inputs["decoder_input_ids"]
    with headloom.watch(model) as watched, torch.no_grad():
        model.generate(**inputs, max_new_tokens=4, do_sample=False, num_beams=1)
    assert watched.trace.verification["layers"] == 6


def test_models_of_headloom_are_verified_when_they_are_watched(translator) -> None:
    ids = torch.tensor([[3, 4, 5, 6]])
    architecture = Architecture(width=16, heads=4, feed_forward=16, decoder_layers=2)
    language_model = LanguageModel(30, architecture).eval()
    translator.eval()
    with headloom.watch(language_model) as watched, torch.no_grad():
        language_model.step(ids, language_model.start())
        language_model(ids)
    assert watched.traces[0].verification["layers"] == len(watched.traces[0].layers)
    assert "on another text" in watched.traces[1].verification["unverified"]
    with headloom.watch(translator) as watched, torch.no_grad():
        translator(ids, ids[:, :2])
    assert watched.trace.verification["layers"] == len(watched.trace.layers)


def test_outputs_that_are_no_numbers_are_said_and_a_difference_on_one_side_is_an_error(
    family_named: Named, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = family_named("Llama").build()
    inputs = {"input_ids": torch.arange(3, 13)[None]}
    with torch.no_grad():
        model.model.norm.weight[0] = torch.nan
    with pytest.warns(UserWarning, match=r"logits of the model's output is not a number \(NaN\)"):
        trace = headloom.trace(model, inputs)
    cells = trace.verification["nan"]
    assert cells > 0 and f"but NaN in {cells:,} cells" in repr(trace)
    model = family_named("Llama").build()
    own = recorder.CallRecorder.__call__

    def broken(self: Any, call: Any) -> Tensor:
        output = own(self, call).clone()
        output[:, 0, 5, 0] = torch.nan
        return output

    monkeypatch.setattr(recorder.CallRecorder, "__call__", broken)
    with pytest.raises(
        headloom.VerificationError, match=r"NaN\) in \d+ of \d+ cells with headloom"
    ):
        headloom.trace(model, inputs)


def test_weights_that_are_no_numbers_differ(
    family_named: Named, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = family_named("GPT-2").build("sdpa")
    right = recorder.attend

    def wrong(*args: Any, **named: Any) -> Any:
        output, graph = right(*args, **named)
        weights = graph.weights.clone()
        weights[:, :, 0] = torch.nan
        return output, replace(graph, weights=weights)

    monkeypatch.setattr(recorder, "attend", wrong)
    with pytest.raises(headloom.VerificationError, match=r"weights of layer .* by inf"):
        headloom.trace(model, torch.arange(3, 13)[None])
