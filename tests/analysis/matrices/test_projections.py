"""The matrices of a model's layers make its queries, values and outputs."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from tests.tracing.conftest import FAMILIES, GROUPED
from tests.tracing.without_torchvision import timm
from torch import nn

import headloom
from headloom.analysis.matrices.projections import LayerMatrices, matrices_of
from headloom.mechanism.multihead import MultiHeadAttention

transformers = pytest.importorskip("transformers")

OPTIONS = {family.name: family.options for family in FAMILIES}
NAMED = {
    "BERT": "Bert", "RoBERTa": "Roberta", "ModernBERT": "ModernBert", "DistilBERT": "DistilBert",
    "GPT-2": "GPT2", "GPT-NeoX": "GPTNeoX", "Llama": "Llama", "Qwen2": "Qwen2",
    "Mistral": "Mistral", "Gemma 2": "Gemma2", "BART": "Bart", "Marian": "Marian", "T5": "T5",
}  # fmt: skip
MODELS = {name: OPTIONS[family] for family, name in NAMED.items()} | {
    "GPTBigCode": {**OPTIONS["GPT-2"], "multi_query": True},
    "GPTBigCode, head by head": {**OPTIONS["GPT-2"], "multi_query": False},
    "Phi3": GROUPED,
}


@pytest.mark.parametrize("family", MODELS)
def test_they_make_the_queries_values_and_outputs_of_the_model(family) -> None:
    torch.manual_seed(3)
    name = family.partition(",")[0]
    config = getattr(transformers, f"{name}Config")(**MODELS[family])
    model = getattr(transformers, f"{name}Model")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=0.3)
            elif name.endswith("bias"):
                parameter.zero_()
    ids = torch.randint(3, 40, (1, 9))
    inputs = {"input_ids": ids}
    if family in ("Bart", "Marian", "T5"):
        inputs["decoder_input_ids"] = torch.randint(3, 40, (1, 5))
    read: dict[str, tuple] = {}
    layers = {layer.name: layer for layer in matrices_of(model)}

    def seen(module, args, kwargs, output, path) -> None:
        read[path] = args, kwargs, output

    hooks = [
        module.register_forward_hook(partial(seen, path=path), with_kwargs=True)
        for path, module in model.named_modules()
        if path in layers
    ]
    trace = headloom.trace(model, inputs, keep=headloom.All())
    for hook in hooks:
        hook.remove()
    assert [layer.name for layer in trace.layers] == list(layers)
    for layer in trace.layers:
        found = layers[layer.name]
        assert found.kind == layer.kind
        args, kwargs, output = read[layer.name]
        states = next(
            state
            for state in (*args, kwargs.get("hidden_states"))
            if isinstance(state, torch.Tensor) and state.ndim == 3
        )[0]
        # Rotations leave lengths as they are.
        queries = states @ found.W_Q
        assert torch.allclose(queries.norm(dim=-1), layer.queries.norm(dim=-1), atol=1e-4)
        if layer.kind == "cross":
            continue
        assert torch.allclose((states @ found.W_K).norm(dim=-1), layer.keys.norm(dim=-1), atol=1e-4)
        values = states @ found.W_V
        assert torch.allclose(values.norm(dim=-1), layer.value_norms, atol=1e-4)
        whole = found.repeated()
        mixed = layer.graph.to_dense() @ (states @ whole.W_V) @ whole.W_O
        own = output[0] if isinstance(output, tuple) else output
        if own.shape[-1] == mixed.shape[-1] and family not in ("Bert", "Roberta"):
            assert torch.allclose(mixed.sum(0), own[0], atol=1e-4)
    if family in ("Bert", "Roberta"):
        dense = model.encoder.layer[0].attention.output.dense.weight
        assert torch.equal(next(iter(layers.values())).W_O.flatten(0, 1), dense.T)


@pytest.mark.parametrize("kv_heads", [1, 2, 4, 8])
def test_falcon_has_the_queries_of_a_group_beside_its_key_and_value(kv_heads: int) -> None:
    sizes = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 8}
    new = {"new_decoder_architecture": kv_heads > 1, "num_kv_heads": kv_heads}
    model = transformers.FalconModel(transformers.FalconConfig(**sizes, **new)).eval()
    states, attention = torch.randn(1, 5, 32), model.h[0].self_attention
    (layer,) = matrices_of(model)
    whole = layer.repeated()
    own = attention._split_heads(attention.query_key_value(states))
    for matrix, theirs in zip((whole.W_Q, whole.W_K, whole.W_V), own, strict=True):
        # One key for all heads is repeated where it is used.
        theirs = theirs[0].transpose(0, 1).expand(8, 5, 4)
        assert torch.allclose(states[0] @ matrix, theirs, atol=1e-5)
    assert layer.W_K.shape == (kv_heads, 32, 4)


def test_headlooms_own_layers() -> None:
    torch.manual_seed(1)
    layer = MultiHeadAttention(12, 4, kv_heads=2, depth=5, bias=False)
    found = matrices_of(nn.Sequential(layer))[0].repeated()
    states = torch.randn(6, 12)
    weights = (states @ found.W_Q) @ (states @ found.W_K).transpose(1, 2) / 5**0.5
    output = (weights.softmax(-1) @ (states @ found.W_V) @ found.W_O).sum(0)
    assert torch.allclose(output, layer(states[None])[0], atol=1e-5)


def test_a_model_without_attention() -> None:
    with pytest.raises(headloom.InputError, match="Linear has no attention layer"):
        matrices_of(nn.Linear(2, 2))


def _output(layer: LayerMatrices, x: torch.Tensor, biases: dict[str, torch.Tensor]) -> torch.Tensor:
    """The output of an attention layer by its formula, from its matrices and its biases."""
    heads, _, depth = layer.W_Q.shape
    made = [
        x @ matrix + biases[name].unflatten(0, (heads, 1, -1))
        for name, matrix in (("q", layer.W_Q), ("k", layer.W_K), ("v", layer.W_V))
    ]
    weights = (made[0] @ made[1].mT / depth**0.5).softmax(-1)
    assert layer.W_O is not None
    return (weights @ made[2] @ layer.W_O).sum(0) + biases["o"]


@pytest.mark.parametrize("source_width", [None, 6])
def test_attention_of_torch(source_width) -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(12, 3, kdim=source_width, vdim=source_width)
    nn.init.normal_(module.in_proj_bias)
    nn.init.normal_(module.out_proj.bias)
    (layer,) = matrices_of(module)
    assert layer.W_K.shape == (3, source_width or 12, 4)
    if source_width is None:
        x = torch.randn(5, 12)
        biases = dict(zip("qkv", module.in_proj_bias.chunk(3), strict=True))
        expected = module(x[:, None], x[:, None], x[:, None])[0][:, 0]
        found = _output(layer, x, {**biases, "o": module.out_proj.bias})
        assert torch.allclose(found, expected, atol=1e-6)


def test_attention_of_timm() -> None:
    attention = timm().layers.Attention(12, num_heads=3, qkv_bias=True)
    (layer,) = matrices_of(nn.Sequential(attention))
    x = torch.randn(1, 5, 12)
    biases = dict(zip("qkv", attention.qkv.bias.chunk(3), strict=True))
    found = _output(layer, x[0], {**biases, "o": attention.proj.bias})
    assert torch.allclose(found, attention.eval()(x)[0], atol=1e-6)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # between PEFT and Transformers
def test_adapters_are_added_to_what_they_adapt() -> None:
    """LoRA by its formula, W + scale B A; switched off, and merged, it is what the model does."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**GROUPED))
    before = copy.deepcopy(matrices_of(model)[0])
    options = {"r": 2, "lora_alpha": 6, "target_modules": ["q_proj"], "init_lora_weights": False}
    adapted = peft.get_peft_model(model, peft.LoraConfig(**options))
    module = adapted.base_model.model.model.layers[0].self_attn.q_proj
    A, B = (getattr(module, f"lora_{name}")["default"].weight.detach() for name in "AB")
    change = (3 * B @ A).T.unflatten(1, (4, 8)).transpose(0, 1)
    after = matrices_of(adapted)[0]
    assert float(change.abs().max()) > 0.01
    assert torch.allclose(after.W_Q, before.W_Q + change, atol=1e-6)
    assert torch.equal(after.W_K, before.W_K)
    with adapted.disable_adapter():
        assert torch.equal(matrices_of(adapted)[0].W_Q, before.W_Q)
    adapted.merge_adapter()
    assert torch.allclose(matrices_of(adapted)[0].W_Q, before.W_Q + change, atol=1e-6)
