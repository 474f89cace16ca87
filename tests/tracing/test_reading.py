"""Models and inputs that cannot be read, or come in wrappers: traced, or one clear line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.tracing.conftest import SIZES, Family, assert_dense
from torch import nn

import headloom
from headloom.analysis.matrices.projections import matrices_of

transformers = pytest.importorskip("transformers")

Named = Callable[[str], Family]

IDS = torch.tensor([[5, 9, 4, 7]])


def bert() -> Any:
    torch.manual_seed(5)
    return transformers.BertModel(transformers.BertConfig(**SIZES)).eval()


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"input_ids": IDS.float()}, "fails on these inputs: .*got torch"),
        ({"input_ids": torch.tensor([[5, 60]])}, "BertModel fails on these inputs: IndexError"),
        (
            {"input_ids": IDS, "attention_mask": torch.ones(1, 5)},
            r"attention_mask has the shape \(1, 5\), input_ids \(1, 4\)",
        ),
    ],
)
def test_inputs_that_cannot_be_read_say_so_in_one_line(inputs: Any, message: str) -> None:
    with pytest.raises(headloom.InputError, match=message) as error:
        headloom.trace(bert(), inputs)
    assert "\n" not in str(error.value)


def in_place(model: Any) -> Any:
    model.compile()
    return model


# The compiler's own modules.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel, in_place])
def test_a_model_in_a_wrapper_is_traced_as_without(wrap: Any) -> None:
    expected = headloom.trace(bert(), IDS, keep=headloom.All())
    model = wrap(bert())
    compiled = getattr(model, "_compiled_call_impl", None)
    trace = headloom.trace(model, IDS, keep=headloom.All())
    assert getattr(model, "_compiled_call_impl", None) is compiled
    assert isinstance(trace, headloom.Trace) and isinstance(expected, headloom.Trace)
    for one, other in zip(trace.layers, expected.layers, strict=True):
        assert one.name == other.name
        assert torch.equal(one.graph.weights, other.graph.weights)
    if isinstance(model, nn.DataParallel):
        with pytest.raises(headloom.InputError, match="cannot be watched"), headloom.watch(model):
            pass
        return
    with headloom.watch(model, keep=headloom.All()) as watched, torch.no_grad():
        model(IDS)
    for one, other in zip(watched.trace.layers, expected.layers, strict=True):
        assert torch.equal(one.graph.weights, other.graph.weights)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_layer_that_is_compiled_is_traced_as_it_is_written(family_named: Named) -> None:
    """The compiler was given all that watches, for every layer and shape anew."""
    graphs = []

    def backend(module: torch.fx.GraphModule, _: list[torch.Tensor]) -> Any:
        graphs.append(module)
        return module.forward

    model: Any = family_named("Llama").build()
    expected = headloom.trace(model, IDS, keep=headloom.All())
    model.model.layers[0] = torch.compile(model.model.layers[0], backend=backend)
    trace = headloom.trace(model, IDS, keep=headloom.All(), generate=2)
    with headloom.watch(model, keep=headloom.All()) as watched, torch.no_grad():
        model(IDS)
    assert not graphs
    assert isinstance(trace, headloom.Trace) and isinstance(expected, headloom.Trace)
    for one, other in zip(watched.trace.layers, expected.layers, strict=True):
        torch.testing.assert_close(one.graph.weights, other.graph.weights, atol=2e-6, rtol=0)
    with torch.no_grad():
        model(IDS)
    assert graphs


@pytest.mark.filterwarnings("ignore::FutureWarning")  # between PEFT and Transformers
def test_a_model_with_adapters_of_peft_is_traced_with_them(family_named: Named) -> None:
    peft = pytest.importorskip("peft")
    own: Any = family_named("Llama").build()
    options = {"r": 4, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
    model = peft.get_peft_model(own, peft.LoraConfig(**options)).eval()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.3)
    trace = headloom.trace(model, IDS, generate=3, keep=headloom.All())
    with headloom.watch(model, keep=headloom.All()) as watched, torch.no_grad():
        written = model.generate(input_ids=IDS, max_new_tokens=4, do_sample=False, eos_token_id=[])
    with torch.no_grad():
        dense = own(written[:, :-1], output_attentions=True).attentions
    assert isinstance(trace, headloom.Trace)
    for generated in (trace, watched.trace):
        assert_dense(generated.layers, dense)


@pytest.mark.parametrize("run", [headloom.trace, headloom.watch])
@pytest.mark.parametrize("layers", [0, [1.5], "0", []])
def test_layers_are_numbers_or_paths(run: Any, layers: Any) -> None:
    model = bert()
    inputs = (model, IDS) if run is headloom.trace else (model,)
    with (
        pytest.raises(headloom.InputError, match=r"layers=.* None traces every|layers is 1\.5"),
        run(*inputs, layers=layers),
    ):
        pass


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_layers_of_transformers_that_are_compiled_one_by_one(family_named: Named) -> None:
    model, ids = family_named("Llama").build("sdpa"), torch.arange(6)[None] + 3
    paths = [layer.name for layer in headloom.trace(model, ids).layers]
    for number, layer in enumerate(model.model.layers):
        model.model.layers[number] = torch.compile(layer)
    assert any("_orig_mod" in path for path, _ in model.named_modules())
    trace = headloom.trace(model, ids)
    assert [layer.name for layer in trace.layers] == paths
    assert trace.verification is not None
    one = headloom.trace(model, ids, layers=["model.layers.1.*"])
    assert [layer.name for layer in one.layers] == paths[1:]
    assert [entry["name"] for entry in one.not_traced] == paths[:1]
    with headloom.watch(model, layers=["model.layers.0.self_attn"]) as watched:
        model(ids)
    assert [layer.name for layer in watched.trace.layers] == paths[:1]
    assert [layer.name for layer in matrices_of(model)] == paths
