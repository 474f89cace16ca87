"""Watching attention calls, and leaving no trace of having watched."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import headloom
from headloom.mechanism.attention_layer import HeadOutputs
from headloom.mechanism.multihead import MultiHeadAttention
from headloom.mechanism.watching import Recorder, editing, layers_of, watching


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = MultiHeadAttention(8, 2)
        self.block = nn.ModuleDict({"cross": MultiHeadAttention(8, 2, relative="rotary")})

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.block["cross"](self.first(inputs), inputs)
        return output


@pytest.fixture
def model() -> Two:
    torch.manual_seed(0)
    return Two()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_layers_that_are_compiled_one_by_one_have_the_paths_of_those_that_are_not(
    model: Two,
) -> None:
    model.first = torch.compile(model.first)
    assert any("_orig_mod" in path for path, _ in model.named_modules())
    assert [name for name, _ in layers_of(model)] == ["first", "block.cross"]


def test_each_call_is_recorded_in_order(model: Two) -> None:
    inputs = torch.randn(3, 5, 8)
    expected = model(inputs)
    recorder = Recorder(model, headloom.Top(4))
    with watching(model, recorder):
        output = model(inputs)
        model(inputs[:, :2])
    torch.testing.assert_close(output, expected)
    names = [name for name, _, _ in recorder.calls]
    assert names == ["first", "block.cross", "first", "block.cross"]
    _, layer, seen = recorder.calls[0]
    assert layer is model.first
    assert isinstance(seen.caught, headloom.AttentionGraph)
    assert seen.caught.shape == (3, 2, 5, 5)
    assert seen.caught.k == 4
    assert seen.queries.shape == seen.keys.shape == (3, 2, 5, 4)
    assert seen.scale == 0.5
    assert not seen.queries.requires_grad
    assert not seen.caught.weights.requires_grad
    assert recorder.calls[2][2].caught.shape == (3, 2, 2, 2)


def test_the_weights_follow_from_what_was_seen(model: Two) -> None:
    """queries and keys are as they were scored, turned by rotary positions."""
    recorder = Recorder(model, headloom.All())
    with watching(model, recorder):
        model(torch.randn(2, 5, 8))
    for _, _, seen in recorder.calls:
        assert isinstance(seen.caught, torch.Tensor)
        weights = (seen.queries @ seen.keys.mT * seen.scale).softmax(-1)
        torch.testing.assert_close(seen.caught, weights)


def test_everything_is_put_back_after_an_exception(model: Two) -> None:
    before = Recorder(model, headloom.Top(1))
    model.first.observer = before
    recorder = Recorder(model, headloom.Top(2))
    with pytest.raises(RuntimeError, match="stop"), watching(model, recorder):
        assert model.first.observer is recorder
        assert model.block["cross"].observer is recorder
        raise RuntimeError("stop")
    assert model.first.observer is before
    assert model.block["cross"].observer is None


def test_an_editor_changes_what_a_layer_goes_on_with_and_leaves(model: Two) -> None:
    inputs = torch.randn(3, 5, 8)
    expected = model(inputs)
    seen = []

    def twice(layer: MultiHeadAttention, heads: HeadOutputs) -> torch.Tensor:
        seen.append(layer)
        assert heads.output.shape == heads.values.shape == (3, 2, 5, 4)
        return 2 * heads.output

    with editing(model.block, twice):
        doubled = model(inputs)
    assert seen == [model.block["cross"]]
    # The layer's output is linear in what its heads give.
    bias = model.block["cross"].w_o.bias
    torch.testing.assert_close(doubled - bias, 2 * (expected - bias))
    torch.testing.assert_close(model(inputs), expected)
    with pytest.raises(ZeroDivisionError), editing(model, twice):
        raise ZeroDivisionError
    assert all(layer.editor is None for _, layer in layers_of(model))
