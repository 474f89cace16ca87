"""Models of Transformers: what is caught equals what eager attention gives, and no trace is left.

The oracle is ``output_attentions=True`` with eager attention, which forms every weight matrix.
"""

from __future__ import annotations

import copy

import pytest
import torch
from tests.tracing.conftest import as_list, dense_weights, largest_difference

import headloom

transformers = pytest.importorskip("transformers")


def test_every_weight_equals_eager_attention(family) -> None:
    model, inputs = family.build(), family.inputs()
    traces = as_list(headloom.trace(model, inputs, keep=headloom.All()))
    assert len(traces) == 2
    assert largest_difference(traces, inputs, dense_weights(model, inputs)) <= 4e-6
    for trace in traces:
        assert trace.deviation is not None
        assert trace.deviation < 5e-6
        for layer in trace.layers:
            assert layer.name in dict(model.named_modules())
            assert len(layer.query_tokens) == layer.shape[1]


def test_the_matrix_of_every_layer_is_what_was_traced(family, tmp_path) -> None:
    model = family.build()
    for padded in (True, False):
        traces = as_list(headloom.trace(model, family.inputs(padded), keep=headloom.All()))
        if not padded:
            # From the disk too, with everything that scores are made of.
            traces[0].save(tmp_path / "t")
            traces.append(headloom.open(tmp_path / "t"))
        for trace in traces:
            for layer in trace.layers:
                assert layer.no_matrix is None
                dense = layer.graph.to_dense()
                assert layer.matrix.shape == dense.shape
                assert torch.allclose(layer.matrix.to_dense(), dense, atol=2e-6)
                assert torch.allclose(layer.matrix[1, 2:5, 1:4], dense[1, 2:5, 1:4], atol=2e-6)
                again = layer.matrix.top(3)
                assert torch.allclose(again.weights, layer.graph.weights[..., :3], atol=2e-6)
                columns = layer.matrix.received()
                assert torch.allclose(columns, dense.sum(1), atol=1e-5)
                assert torch.allclose(
                    layer.matrix.sum_of_squares(), dense.square().sum(-1), atol=1e-5
                )
                assert torch.allclose(layer.matrix.entropy(), layer.graph.entropy, atol=1e-5)
                assert layer.mask in ("all", "causal", "window")


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_outputs_are_unchanged_and_the_model_is_left_as_it_was(family, implementation) -> None:
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
    headloom.trace(model, inputs)
    assert [module.training for module in model.modules()] == training
    model.eval()
    with torch.no_grad():
        model(**inputs)
    hook.remove()
    # Before them came the two short runs of the verification.
    traced, own = outputs[-2:]
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


def test_saved_layer_by_layer_and_read_again(family_named, tmp_path) -> None:
    family = family_named("BART")
    model, inputs = family.build(), family.inputs(padded=False)
    held = as_list(headloom.trace(model, inputs))[0]
    saved = headloom.trace(model, inputs, save=tmp_path / "bart", dtype=torch.float16)
    opened = headloom.open(tmp_path / "bart")
    assert opened.sequences == held.sequences == saved.sequences
    for one, two in zip(held.layers, opened.layers, strict=True):
        for name in ("name", "kind", "index", "mask"):
            assert getattr(one, name) == getattr(two, name)
        assert one.deviation == pytest.approx(two.deviation)
        assert torch.equal(one.graph.weights, two.graph.weights)
        assert two.queries.dtype == torch.float16


def test_nothing_is_left_where_a_run_breaks_while_it_is_saved(family_named, tmp_path) -> None:
    family = family_named("GPT-2")
    model = family.build()
    model.transformer.h[1].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        headloom.trace(model, family.inputs(padded=False), save=tmp_path / "half")
    assert list(tmp_path.iterdir()) == []


# The known traps of the interface, one test each.


def test_half_precision(family_named) -> None:
    family = family_named("Llama")
    model = family.build().bfloat16()
    inputs = family.inputs(padded=False)
    trace = headloom.trace(model, inputs, keep=headloom.All())
    assert trace.layers[0].queries.dtype == torch.bfloat16
    assert trace.layers[0].graph.weights.dtype == torch.float32
    # The model's own output has eight bits; so has the difference.
    assert trace.deviation < 0.05


def test_layers_can_be_chosen(family_named) -> None:
    family = family_named("BART")
    model, inputs = family.build(), family.inputs(padded=False)
    every = headloom.trace(model, inputs)
    cross = headloom.trace(model, inputs, layers=["*encoder_attn"])
    names = [layer.name for layer in every.layers if layer.kind == "cross"]
    assert [layer.name for layer in cross.layers] == names
    first = headloom.trace(model, inputs, layers=[0, 5])
    assert [layer.name for layer in first.layers] == [every.layers[i].name for i in (0, 5)]
    with pytest.raises(headloom.InputError, match=r"no layer 77; the model has layers 0 to 5"):
        headloom.trace(model, inputs, layers=[77])


def test_wrong_inputs_say_what_was_expected(family_named) -> None:
    bert, roberta, bart = (family_named(name).build() for name in ("BERT", "RoBERTa", "BART"))
    ones = torch.ones(1, 65, dtype=torch.long)
    for model, inputs, line in (
        (bert, ones, "65 tokens in input_ids; BertModel reads 64 at most"),
        (roberta, ones[:, :64], "RobertaModel reads 63 at most"),
        (bart, {"input_ids": ones[:, :4]}, "Give decoder_input_ids too"),
        (bert, ones[:, :0], "at least one token"),
        (bert, "a text", "there is no tokenizer"),
        (bert, {"input_ids": [1, 2]}, r'the inputs hold no tensor; expected input_ids.*"pt"'),
        (bert, [ones[0], ones[0]], r"the inputs are list; .* For several texts, give"),
    ):
        with pytest.raises(headloom.InputError, match=line):
            headloom.trace(model, inputs)
    with pytest.raises(headloom.InputError, match="cannot be saved as one trace"):
        headloom.trace(bert, family_named("BERT").inputs(), save="nowhere")
