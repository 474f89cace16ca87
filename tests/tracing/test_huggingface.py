"""Models of Transformers: what is caught equals what eager attention gives, and no trace is left.

The oracle is ``output_attentions=True`` with eager attention, which forms every weight matrix.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import weft
from weft.formats.trace import Trace

transformers = pytest.importorskip("transformers")


def dense_weights(model: nn.Module, inputs: dict) -> dict[str, list[torch.Tensor]]:
    """The weights of every layer, by the names of sequences: the oracle."""
    with torch.no_grad():
        given = model(**inputs, output_attentions=True)
    found = {}
    if hasattr(given, "text_model_output"):
        found["tokens"] = given.text_model_output.attentions
        found["patches"] = given.vision_model_output.attentions
    elif hasattr(given, "cross_attentions") and hasattr(given, "encoder_attentions"):
        found = {
            "encoder": given.encoder_attentions,
            "decoder": given.decoder_attentions,
            "cross": given.cross_attentions,
        }
    else:
        found["all"] = given.attentions
    return {name: list(layers) for name, layers in found.items()}


def spans(inputs: dict, sample: int) -> dict[str, slice]:
    """The real positions of an input, by the names of sequences."""
    mask = inputs.get("attention_mask")
    if mask is None:
        return {}
    (real,) = mask[sample].nonzero(as_tuple=True)
    span = slice(int(real[0]), int(real[-1]) + 1)
    return {"tokens": span, "source": span}


def largest_difference(traces: list[Trace], inputs: dict, expected: dict) -> float:
    """Between caught weights and the oracle's; all of the latter are used."""
    largest, used = 0.0, 0
    for sample, trace in enumerate(traces):
        places: dict[str, int] = {}
        real = spans(inputs, sample)
        for layer in trace.layers:
            group = next(
                name for name in (layer.kind, layer.queries_from, "all") if name in expected
            )
            place = places.get(group, 0)
            places[group] = place + 1
            whole = expected[group][place][sample]
            rows = real.get(layer.queries_from, slice(None))
            columns = real.get(layer.keys_from, slice(None))
            weights = whole[:, rows, columns]
            assert layer.graph.shape == weights.shape
            largest = max(largest, float((layer.graph.dense() - weights).abs().max()))
            used += 1
    assert used == len(traces) * sum(map(len, expected.values()))
    return largest


def as_list(found: Trace | list[Trace]) -> list[Trace]:
    return found if isinstance(found, list) else [found]


def test_every_weight_equals_eager_attention(family):
    model, inputs = family.build(), family.inputs()
    traces = as_list(weft.trace(model, inputs, keep=weft.All()))
    assert len(traces) == 2
    assert largest_difference(traces, inputs, dense_weights(model, inputs)) <= 2e-6
    for trace in traces:
        assert trace.deviation is not None
        assert trace.deviation < 5e-6
        for layer in trace.layers:
            assert layer.name in dict(model.named_modules())
            assert len(layer.query_tokens) == layer.shape[1]


def test_top_k_is_the_top_k_of_eager_attention(family):
    model, inputs = family.build(), family.inputs(padded=False)
    expected = dense_weights(model, inputs)
    (trace,) = as_list(weft.trace(model, inputs, keep=weft.Top(3)))
    places: dict[str, int] = {}
    for layer in trace.layers:
        group = next(name for name in (layer.kind, layer.queries_from, "all") if name in expected)
        place = places.get(group, 0)
        places[group] = place + 1
        top = expected[group][place][0].topk(min(3, layer.shape[2]), -1).values
        assert torch.allclose(layer.graph.weights, top, atol=2e-6)
        there = layer.graph.keys.clamp(min=0).long()
        again = expected[group][place][0].gather(-1, there)
        again = torch.where(layer.graph.keys >= 0, again, 0)
        assert torch.allclose(layer.graph.weights, again, atol=2e-6)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_outputs_are_unchanged_and_the_model_is_left_as_it_was(family, implementation):
    if implementation == "sdpa" and family.name in ("Gemma 2", "gpt-oss"):
        pytest.skip("the family has no sdpa")
    model, inputs = family.build(implementation), family.inputs(padded=False)
    model.train()
    first = next(module for module in model.modules() if module is not model)
    first.training = False
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    config = copy.deepcopy(model.config.to_dict())
    training = [module.training for module in model.modules()]
    attention = set(transformers.modeling_utils.AttentionInterface._global_mapping)
    masks = set(transformers.masking_utils.AttentionMaskInterface._global_mapping)
    outputs = []
    hook = model.register_forward_hook(lambda module, given, output: outputs.append(output))
    weft.trace(model, inputs)
    assert [module.training for module in model.modules()] == training
    model.eval()
    with torch.no_grad():
        model(**inputs)
    hook.remove()
    traced, own = outputs
    compared = 0
    for name, tensor in own.items():
        if isinstance(tensor, torch.Tensor):
            assert torch.allclose(traced[name], tensor, atol=1e-5), name
            compared += 1
    assert compared
    assert model.config.to_dict() == config
    assert model.config._attn_implementation == implementation
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert set(transformers.modeling_utils.AttentionInterface._global_mapping) == attention
    assert set(transformers.masking_utils.AttentionMaskInterface._global_mapping) == masks
    assert not any(module._forward_hooks for module in model.modules())


def test_the_model_is_left_as_it_was_after_an_exception(family_named):
    family = family_named("Llama")
    model = family.build("sdpa")
    attention = set(transformers.modeling_utils.AttentionInterface._global_mapping)

    def fail(*_):
        raise RuntimeError("stop here")

    hook = model.model.layers[1].register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="stop here"):
        weft.trace(model, family.inputs())
    hook.remove()
    assert model.config._attn_implementation == "sdpa"
    assert set(transformers.modeling_utils.AttentionInterface._global_mapping) == attention
    assert not any(
        name.startswith("weft")
        for name in transformers.masking_utils.AttentionMaskInterface._global_mapping
    )


def test_saved_layer_by_layer_and_read_again(family_named, tmp_path):
    family = family_named("BART")
    model, inputs = family.build(), family.inputs(padded=False)
    held = as_list(weft.trace(model, inputs))[0]
    saved = weft.trace(model, inputs, save=tmp_path / "bart", dtype=torch.float16)
    opened = weft.open(tmp_path / "bart")
    assert opened.sequences == held.sequences == saved.sequences
    for one, two in zip(held.layers, opened.layers, strict=True):
        assert (one.name, one.kind, one.index, one.mask) == (
            two.name,
            two.kind,
            two.index,
            two.mask,
        )
        assert one.deviation == pytest.approx(two.deviation)
        assert torch.equal(one.graph.weights, two.graph.weights)
        assert two.queries.dtype == torch.float16


def test_nothing_is_left_where_a_run_breaks_while_it_is_saved(family_named, tmp_path):
    family = family_named("GPT-2")
    model = family.build()
    model.transformer.h[1].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        weft.trace(model, family.inputs(padded=False), save=tmp_path / "half")
    assert list(tmp_path.iterdir()) == []
