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
from headloom.tracing.arguments import prefix_of
from headloom.tracing.recording import session as recorder
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
    own = interface.score_mask

    def changed(*args: Any) -> Any:
        read = own(*args)
        return replace(read, mask=change(read.mask))

    monkeypatch.setattr(interface, "score_mask", changed)


@pytest.mark.parametrize("name", ["Llama", "GPT-2", "Mistral", "BART", "BERT"])
def test_a_mask_that_is_lost_is_an_error(
    family_named: Named, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = family_named(name)
    model, inputs = family.build(), family.inputs()
    assert all(trace.verification for trace in headloom.trace(model, inputs))
    sabotage(monkeypatch, lambda mask: None)
    with pytest.raises(headloom.VerificationError, match=r"differs? by"):
        headloom.trace(model, inputs)
    assert model.config._attn_implementation == "eager"
    assert not any(module._forward_hooks for module in model.modules())
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
    assert read == [4, 4, 6, 1, 1]
    read.clear()
    headloom.trace(model, {"input_ids": torch.arange(3, 9)[None]}, generate=2)
    assert read == [6, 6, 6, 1, 1]
    with pytest.raises(headloom.InputError, match="verify is -1; expected a whole number"):
        headloom.trace(model, {"input_ids": ids}, verify=-1)


def test_what_was_verified_stands_in_the_trace_and_on_disk(family_named: Named, tmp_path) -> None:
    family = family_named("BART")
    model, inputs = family.build(), family.inputs(padded=False)
    trace = headloom.trace(model, inputs, save=tmp_path / "t")
    assert trace.verification["whole"] is True
    assert trace.verification["tokens"] == 12
    assert 0 < trace.verification["difference"] < 1e-5
    assert "matches the model to" in repr(trace)
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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_types_are_verified_too(
    family_named: Named, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = family_named("Llama")
    for implementation in ("eager", "sdpa"):
        model, inputs = family.build(implementation).to(dtype), family.inputs(padded=False)
        assert headloom.trace(model, inputs).verification["whole"]
        if implementation == "eager":
            with monkeypatch.context() as patched:
                sabotage(patched, lambda mask: None)
                with pytest.raises(headloom.VerificationError):
                    headloom.trace(model, inputs)


def test_outputs_that_are_no_numbers_are_said(family_named: Named) -> None:
    model: Any = family_named("Llama").build()
    inputs = {"input_ids": torch.arange(3, 13)[None]}
    with torch.no_grad():
        model.model.norm.weight[0] = torch.nan
    with pytest.warns(UserWarning, match=r"logits of the model's output is not a number \(NaN\)"):
        trace = headloom.trace(model, inputs)
    cells = trace.verification["nan"]
    assert cells > 0 and f"but NaN in {cells:,} cells" in repr(trace)


#: Tokens that the model reads twice, and how many there are.
PREFIX, LONG = 16, 40


def attend_wrongly(monkeypatch: pytest.MonkeyPatch, wrong: Callable[..., Any]) -> None:
    right = recorder.attend
    monkeypatch.setattr(recorder, "attend", lambda *args, **kwargs: wrong(right, *args, **kwargs))


def without_mask(right: Callable[..., Any], queries: Tensor, *args: Any, **named: Any) -> Any:
    if queries.shape[2] > PREFIX:
        named["mask"] = None
    return right(queries, *args, **named)


def heads_exchanged(right: Callable[..., Any], *args: Any, **named: Any) -> Any:
    output, graph = right(*args, **named)
    return output, replace(graph, weights=graph.weights.flip(1))


def keys_moved(right: Callable[..., Any], *args: Any, **named: Any) -> Any:
    output, graph = right(*args, **named)
    return output, replace(graph, keys=torch.where(graph.keys > 0, graph.keys - 1, graph.keys))


@pytest.mark.parametrize("wrong", [without_mask, heads_exchanged, keys_moved])
def test_what_only_the_rows_show_is_an_error(
    family_named: Named, monkeypatch: pytest.MonkeyPatch, wrong: Callable[..., Any]
) -> None:
    """On fused attention, which returns no weights to compare with."""
    model, ids = family_named("GPT-2").build("sdpa"), torch.randint(3, 50, (1, LONG))
    headloom.trace(model, ids, verify=PREFIX)
    attend_wrongly(monkeypatch, wrong)
    with pytest.raises(headloom.VerificationError, match=r"of layer .* from the model's own"):
        headloom.trace(model, ids, verify=PREFIX)
    trace = headloom.trace(model, ids, verify=False)
    assert isinstance(trace, headloom.Trace)
    assert trace.deviation is not None
    assert trace.deviation > 1e-3


@pytest.mark.filterwarnings("ignore:trace")
@pytest.mark.parametrize("verify", [None, False])
def test_a_layer_whose_scores_are_all_nan_has_no_deviation(verify) -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.MultiheadAttention(8, 2, batch_first=True)
            self.second = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x, x, x, need_weights=False)[0] * torch.nan
            return self.second(x, x, x, need_weights=False)[0]

    first, second = headloom.trace(Broken().eval(), torch.randn(1, 4, 8), verify=verify).layers
    assert first.deviation is not None and first.deviation < 1e-5
    assert second.deviation is None
