"""Names of weights in Transformers and headloom for each family, in both directions.

A layout maps names of their modules to ours; `{}` is the number of a block. The conversion is
exact: weights are renamed, concatenated, transposed or reordered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from headloom.mechanism.multihead import MultiHeadAttention
from headloom.models.huggingface.folder import Tensors


@dataclass(frozen=True)
class Layout:
    """Names of one family.

    names: of their modules, and of ours. "w_qkv" stands for the three maps of a layer.
    transposed: whether their matrices are (inputs, outputs).
    joined: order of w_qkv in their one map: all queries, all keys, all values; or by head.
    shares: whether they support shared keys and values and maps without biases; else keys and
        values are repeated for each head, and biases are zeros.
    """

    names: dict[str, str]
    transposed: bool = False
    joined: Literal["parts", "heads"] = "parts"
    shares: bool = False

    def _modules(self, model: nn.Module) -> Iterator[tuple[str, list[str]]]:
        """Yield their names with the names of our modules, block by block."""
        for theirs, ours in self.names.items():
            stack = model.get_submodule(ours.partition(".{}")[0]) if "{}" in ours else None
            for number in range(len(stack) if isinstance(stack, nn.ModuleList) else 1):
                layer, whole, _ = ours.format(number).partition("w_qkv")
                names = [f"{layer}w_{letter}" for letter in "qkv"] if whole else [layer]
                yield theirs.format(number), names

    def fill(self, model: nn.Module, tensors: Tensors, before: str = "") -> None:
        """Fill a model's weights from the tensors of a folder, whose names begin with `before`."""
        for theirs, names in self._modules(model):
            modules = [model.get_submodule(name) for name in names]
            linear = isinstance(modules[0], nn.Linear)
            for part in ("weight", "bias"):
                values = [getattr(module, part, None) for module in modules]
                parameters = [value for value in values if isinstance(value, Tensor)]
                if not parameters:
                    continue
                name, first = f"{before}{theirs}.{part}", parameters[0]
                sizes = (sum(map(len, parameters)), *first.shape[1:])
                transposed = self.transposed and linear and part == "weight"
                if part == "bias" and linear and not tensors.has(name):
                    value = first.new_zeros(sizes)
                else:
                    value = tensors.take(name, sizes[::-1] if transposed else sizes)
                parts = torch.split(
                    value.T if transposed else value, [len(tensor) for tensor in parameters]
                )
                for parameter, tensor in zip(parameters, parts, strict=True):
                    copied(parameter, tensor)

    def written(self, model: nn.Module, factor: float = 1.0) -> dict[str, Tensor]:
        """Return a model's weights by their names; factor: of the embeddings."""
        weights: dict[str, Tensor] = {}
        for theirs, names in self._modules(model):
            for part in ("weight", "bias"):
                values = [self._value(model, name, part) for name in names]
                tensors = [value for value in values if value is not None]
                if not tensors:
                    continue
                if len(tensors) == 1:
                    value = tensors[0]
                elif self.joined == "heads":
                    layer = model.get_submodule(names[0].rpartition(".")[0])
                    assert isinstance(layer, MultiHeadAttention)
                    by_head = [
                        tensor.reshape(layer.heads, -1, *tensor.shape[1:]) for tensor in tensors
                    ]
                    value = torch.cat(by_head, 1).flatten(0, 1)
                else:
                    value = torch.cat(tensors)
                linear = isinstance(model.get_submodule(names[0]), nn.Linear)
                transposed = self.transposed and linear and part == "weight"
                scaled = value * factor if names[0].endswith("embedding.tokens") else value
                weights[f"{theirs}.{part}"] = scaled.T if transposed else scaled
        return weights

    def _value(self, model: nn.Module, name: str, part: str) -> Tensor | None:
        module = model.get_submodule(name)
        value: Tensor | None = getattr(module, part, None)
        if self.shares or not isinstance(module, nn.Linear):
            return value
        if value is None:
            value = module.weight.new_zeros(module.out_features)
        layer = model.get_submodule(name.rpartition(".")[0])
        if name.endswith(("w_k", "w_v")) and isinstance(layer, MultiHeadAttention):
            by_head = value.reshape(layer.kv_heads, layer.depth, *value.shape[1:])
            value = by_head.repeat_interleave(layer.heads // layer.kv_heads, 0).flatten(0, 1)
        return value


def copied(parameter: Tensor, tensor: Tensor) -> None:
    """Copy a tensor into a parameter."""
    with torch.no_grad():
        parameter.copy_(tensor)


def _in(theirs: str, ours: str, names: dict[str, str]) -> dict[str, str]:
    return {f"{theirs}.{name}": f"{ours}.{our_name}" for name, our_name in names.items()}


def _attention(theirs: str, ours: str, output: str = "out_proj") -> dict[str, str]:
    maps = {"q_proj": "w_q", "k_proj": "w_k", "v_proj": "w_v", output: "w_o"}
    return _in(theirs, ours, maps)


GPT2 = Layout(
    {
        "wte": "embedding.tokens",
        **_in("h.{}", "decoder.{}", {
            "attn.c_attn": "self_attention.w_qkv",
            "attn.c_proj": "self_attention.w_o",
            "mlp.c_fc": "feed_forward.rise",
            "mlp.c_proj": "feed_forward.fall",
            "ln_1": "self_attention_norm",
            "ln_2": "feed_forward_norm",
        }),
        "ln_f": "decoder_norm",
    },
    transposed=True,
)  # fmt: skip

GPT_NEOX = Layout(
    {
        "gpt_neox.embed_in": "embedding.tokens",
        **_in("gpt_neox.layers.{}", "decoder.{}", {
            "attention.query_key_value": "self_attention.w_qkv",
            "attention.dense": "self_attention.w_o",
            "mlp.dense_h_to_4h": "feed_forward.rise",
            "mlp.dense_4h_to_h": "feed_forward.fall",
            "input_layernorm": "self_attention_norm",
            "post_attention_layernorm": "feed_forward_norm",
        }),
        "gpt_neox.final_layer_norm": "decoder_norm",
    },
    joined="heads",
)  # fmt: skip

LLAMA = Layout(
    {
        "model.embed_tokens": "embedding.tokens",
        **_in("model.layers.{}", "decoder.{}", {
            **_attention("self_attn", "self_attention", "o_proj"),
            "mlp.gate_proj": "feed_forward.gate",
            "mlp.up_proj": "feed_forward.rise",
            "mlp.down_proj": "feed_forward.fall",
            "input_layernorm": "self_attention_norm",
            "post_attention_layernorm": "feed_forward_norm",
        }),
        "model.norm": "decoder_norm",
    },
    shares=True,
)  # fmt: skip

_BART_LAYER = {
    **_attention("self_attn", "self_attention"),
    "self_attn_layer_norm": "self_attention_norm",
    "fc1": "feed_forward.rise",
    "fc2": "feed_forward.fall",
    "final_layer_norm": "feed_forward_norm",
}
_BART_CROSS = {
    **_attention("encoder_attn", "cross_attention"),
    "encoder_attn_layer_norm": "cross_attention_norm",
}

#: For Marian and Pegasus, which derive from BART.
BART = Layout({
    "model.shared": "source_embedding.tokens",
    **_in("model.encoder.layers.{}", "encoder.{}", _BART_LAYER),
    **_in("model.decoder.layers.{}", "decoder.{}", {**_BART_LAYER, **_BART_CROSS}),
})  # fmt: skip

BERT = Layout({
    "embeddings.word_embeddings": "embedding.tokens",
    "embeddings.position_embeddings": "embedding.positions",
    "embeddings.token_type_embeddings": "embedding.segments",
    "embeddings.LayerNorm": "embedding.norm",
    **_in("encoder.layer.{}", "encoder.{}", {
        "attention.self.query": "self_attention.w_q",
        "attention.self.key": "self_attention.w_k",
        "attention.self.value": "self_attention.w_v",
        "attention.output.dense": "self_attention.w_o",
        "attention.output.LayerNorm": "self_attention_norm",
        "intermediate.dense": "feed_forward.rise",
        "output.dense": "feed_forward.fall",
        "output.LayerNorm": "feed_forward_norm",
    }),
})  # fmt: skip
