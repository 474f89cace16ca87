"""Heads replaced while a model runs: what comes out, and that nothing stays behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headloom
from headloom.analysis.effects.interventions import Intervention, editing_heads, intervening
from headloom.mechanism.watching import layers_of
from headloom.tracing.recording.layer_call import LayerCall

TOKENS = torch.tensor([[3, 9, 9, 14, 27, 5, 2], [4, 4, 1, 30, 8, 11, 7]])
SECOND = "layers.1"


def without(model: nn.Module, path: str, head: int, kind: str, **more: Any) -> Tensor:
    with intervening(model, [Intervention(path, head, kind, **more)]):  # type: ignore[arg-type]
        found: Tensor = model(TOKENS)
    return found


def test_zero_is_a_head_without_output_matrix(language_model: nn.Module) -> None:
    found = without(language_model, SECOND, 2, "zero")
    layer = dict(layers_of(language_model))[SECOND]
    with torch.no_grad():
        layer.w_o.weight[:, 2 * layer.depth : 3 * layer.depth] = 0
        assert torch.allclose(found, language_model(TOKENS), atol=1e-6)


def test_uniform_is_a_head_without_queries(language_model: nn.Module) -> None:
    found = without(language_model, SECOND, 1, "uniform")
    layer = dict(layers_of(language_model))[SECOND]
    rows = slice(layer.depth, 2 * layer.depth)
    with torch.no_grad():
        layer.w_q.weight[rows] = 0
        layer.w_q.bias[rows] = 0
        assert torch.allclose(found, language_model(TOKENS), atol=1e-6)


def test_mean_and_patch(language_model: nn.Module) -> None:
    outputs: dict[str, Tensor] = {}

    def keep(call: LayerCall, output: Tensor) -> Tensor:
        outputs[call.path] = output
        return output

    with editing_heads(language_model, keep):
        before = language_model(TOKENS)
    of_head = outputs[SECOND][:, 3]
    mean = of_head.mean((0, 1))
    found = without(language_model, SECOND, 3, "mean", output=mean)
    as_patch = without(language_model, SECOND, 3, "patch", output=mean.expand_as(of_head))
    assert torch.allclose(found, as_patch, atol=1e-6)
    assert not torch.allclose(found, before, atol=1e-3)
    assert torch.equal(without(language_model, SECOND, 3, "patch", output=of_head), before)
    # Every head of every layer patched from another input: attention gives what it gave there.
    swapped = TOKENS.flip(0)
    with editing_heads(language_model, keep):
        language_model(swapped)
    everything = [
        Intervention(path, head, "patch", output[:, head])
        for path, output in outputs.items()
        for head in range(4)
    ]
    with intervening(language_model, everything):
        patched = language_model(TOKENS)
    expected = language_model(swapped) - language_model.embedding(swapped)  # type: ignore[operator]
    own = patched - language_model.embedding(TOKENS)  # type: ignore[operator]
    assert torch.allclose(own, expected, atol=1e-5)


def test_every_family_runs_the_same_and_its_heads_are_reached(family: Any) -> None:
    model, inputs = family.build(), family.inputs()
    if family.name == "CLIP":
        model = model.text_model
        inputs.pop("pixel_values")
    with torch.no_grad():
        before = model(**inputs)[0]
    paths: list[str] = []

    def keep(call: LayerCall, output: Tensor) -> Tensor:
        paths.append(call.path)
        return output

    with editing_heads(model, keep):
        same = model(**inputs)[0]
    real = inputs.get("attention_mask", torch.ones(before.shape[:2])).bool()
    if real.shape != before.shape[:2] or family.kind == "pair":
        real = torch.ones(before.shape[:2], dtype=torch.bool)
    assert torch.allclose(same[real], before[real], atol=1e-5)
    for kind in ("zero", "uniform"):
        with intervening(model, [Intervention(paths[-1], 0, kind)]):  # type: ignore[arg-type]
            changed = model(**inputs)[0]
        assert not torch.allclose(changed[real], before[real], atol=1e-4)


@pytest.mark.parametrize("which", ["own", "transformers"])
def test_the_model_is_as_it_was_also_after_an_exception(
    which: str, language_model: nn.Module, family_named: Callable[[str], Any]
) -> None:
    family = family_named("Llama")
    model = language_model if which == "own" else family.build("sdpa")
    given = {"tokens": TOKENS} if which == "own" else family.inputs(padded=False)
    path = SECOND if which == "own" else "model.layers.1.self_attn"
    model.train()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    implementation = which == "own" or model.config._attn_implementation
    for head, error in ((0, RuntimeError), (9, headloom.InputError)):
        with (
            pytest.raises(error),
            intervening(model, [Intervention(path, head)]),
        ):
            assert not model.training
            model(**given)
            raise RuntimeError
        assert model.training
        assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
        assert implementation == (which == "own" or model.config._attn_implementation)
        assert all(layer.editor is None for _, layer in layers_of(model))


def test_what_cannot_be_done_says_so(language_model: nn.Module) -> None:
    for interventions, said in (
        ([Intervention("nowhere", 0)], "ran no attention layer 'nowhere'"),
        ([Intervention(SECOND, 4)], "no head 4 in layers.1, which has 0 to 3"),
        ([Intervention(SECOND, 0, "mean")], "without an output"),
        ([Intervention(SECOND, 0, "patch", torch.zeros(2, 3, 4))], "the same number of tokens"),
    ):
        with (
            pytest.raises(headloom.InputError, match=said),
            intervening(language_model, interventions),
        ):
            language_model(TOKENS)
    with (
        pytest.raises(headloom.InputError, match="cannot be reached"),
        intervening(nn.ReLU(), []),
    ):
        pass
    transformers = pytest.importorskip("transformers")
    bloom = transformers.BloomModel(transformers.BloomConfig(hidden_size=8, n_head=2, n_layer=1))
    with pytest.raises(headloom.InputError, match="cannot be reached"), intervening(bloom, []):
        pass
