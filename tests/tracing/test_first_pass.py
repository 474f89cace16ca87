"""A generation whose first pass is held against the model without headloom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tracing.conftest import Family
from torch import Tensor, nn

import headloom
from headloom.tracing.recording import recorder
from headloom.tracing.sources import transformers as interface

pytest.importorskip("transformers")

Named = Callable[[str], Family]


def lengths_read(model: nn.Module) -> list[int]:
    """A list that grows by the positions that the model's base reads in each call."""
    read: list[int] = []
    base: Any = model.base_model
    base.register_forward_pre_hook(
        lambda module, args, given: read.append((*args, given.get("input_ids"))[0].shape[1]),
        with_kwargs=True,
    )
    return read


def prompt(length: int) -> dict[str, Tensor]:
    ids = torch.randint(3, 60, (1, length), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids}


@pytest.mark.parametrize("name", ["Llama", "GPT-2", "Mistral", "gpt-oss"])
def test_its_rows_tell_and_the_beginning_is_read_once_more(family_named: Named, name: str) -> None:
    model = family_named(name).build().eval()
    model.generation_config.eos_token_id = None
    read = lengths_read(model)
    traced = headloom.trace(model, prompt(12), generate=3, verify=8)
    assert read == [8, 12, 1, 1, 1]
    verification = traced.verification
    assert verification["tokens"] == 8 and not verification["whole"]
    assert verification["layers"] == len(traced.layers)
    # Sums of 12 rows and of 8 may be taken in other orders.
    assert 0 <= verification["difference"] < 1e-5
    plain = headloom.trace(model, prompt(12), generate=3, verify=False)
    assert plain.tokens == traced.tokens
    for one, other in zip(plain.layers, traced.layers, strict=True):
        assert torch.equal(one.graph.weights, other.graph.weights)
    assert traced.deviation < 5e-6


def test_a_mask_that_is_lost_is_an_error_and_leaves_nothing(
    family_named: Named, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = family_named("Llama").build().eval()
    own = interface._read
    monkeypatch.setattr(interface, "_read", lambda *given: replace(own(*given), mask=None))
    # The sample of rows would tell too: it must not be what raises here.
    monkeypatch.setattr(recorder, "deviation", lambda *given, **named: 0.0)
    with pytest.raises(headloom.VerificationError, match=r"layer \S+ (is not what|differ)"):
        headloom.trace(model, prompt(12), generate=3, verify=8, save=tmp_path / "t")
    assert list(tmp_path.iterdir()) == []
    assert model.config._attn_implementation == "eager"
    assert not any(module._forward_hooks for module in model.modules())


def test_weights_that_are_not_the_models_are_an_error(
    family_named: Named, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = family_named("Llama").build().eval()
    right = recorder.attend

    def moved(*args: Any, **named: Any) -> Any:
        output, graph = right(*args, **named)
        return output, replace(graph, weights=graph.weights.flip(-1))

    monkeypatch.setattr(recorder, "attend", moved)
    monkeypatch.setattr(recorder, "deviation", lambda *given, **named: 0.0)
    with pytest.raises(headloom.VerificationError, match=r"the weights of layer \S+ differ"):
        headloom.trace(model, prompt(12), generate=3, verify=8)


def test_where_the_rows_cannot_tell_the_beginning_is_read_as_it_is_traced(
    family_named: Named,
) -> None:
    """Generation counts the positions of a padded text from its first token, a pass from 0."""
    model = family_named("GPT-2").build().eval()
    inputs = prompt(12)
    inputs["attention_mask"] = torch.tensor([[0] * 4 + [1] * 8])
    read = lengths_read(model)
    traced = headloom.trace(model, inputs, generate=2, verify=8)
    # Of the 8 tokens of the prefix half are padding, so that some more are read.
    assert read[0] == read[2] and read[1] == 12 and read[3:] == [1, 1]
    assert traced.verification["layers"] == len(traced.layers)


def test_a_first_pass_that_fails_leaves_no_hook(
    family_named: Named, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = family_named("Llama").build().eval()

    def fails(*given: Any, **named: Any) -> Any:
        raise RuntimeError("no memory is left")

    monkeypatch.setattr(recorder, "attend", fails)
    with pytest.raises(headloom.InputError, match="no memory is left"):
        headloom.trace(model, prompt(12), generate=3, verify=8)
    assert not any(module._forward_hooks for module in model.modules())
