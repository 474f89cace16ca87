"""Small random models of the families of Transformers that are traced, and inputs for them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from headloom.api.trace import Trace
from headloom.formats.trace import TraceLayer
from headloom.tracing.arguments import CACHES

VOCABULARY = 60


@pytest.fixture
def without_fast_paths() -> Iterator[None]:
    """Torch's layers call functions that can be seen, in a watched model and alone."""
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(True)


#: Sizes that most configurations share.
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**SIZES, "num_key_value_heads": 2, "head_dim": 8}
PAIR = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
IMAGE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 24,
    "patch_size": 8,
}


@dataclass(frozen=True)
class Family:
    """A family: its kind of layers, the name of its model's class, and its configuration.

    reads: "text", "pair", "image", "both" (text and image) or "sound".
    """

    name: str
    kind: str
    model: str
    config: str
    options: dict[str, Any]
    reads: str = "text"
    note: str = ""

    def build(self, implementation: str = "eager") -> nn.Module:
        transformers = pytest.importorskip("transformers")
        torch.manual_seed(7)
        config = getattr(transformers, self.config)(**self.options)
        model: nn.Module = getattr(transformers, self.model)._from_config(
            config, attn_implementation=implementation
        )
        with torch.no_grad():
            for parameter in model.parameters():
                # Larger than initial weights, so that attention is far from uniform; sinks and
                # biases are not zero.
                parameter.add_(torch.randn_like(parameter) * 0.15)
        return model.eval()

    def inputs(self, padded: bool = True) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(11)
        batch = 2 if padded else 1
        ids = torch.randint(3, VOCABULARY, (batch, 12), generator=generator)
        mask = torch.ones_like(ids)
        if padded:
            left = self.kind == "decoder"
            hidden = slice(0, 3) if left else slice(9, 12)
            mask[1, hidden] = 0
            ids[1, hidden] = 0
        target = torch.randint(3, VOCABULARY, (batch, 7), generator=generator)
        pixels = torch.randn(batch, 3, 24, 24, generator=generator)
        if self.reads == "image":
            return {"pixel_values": pixels}
        if self.reads == "both":
            return {"input_ids": ids, "attention_mask": mask, "pixel_values": pixels}
        if self.reads == "sound":
            sound = torch.randn(batch, 8, 40, generator=generator)
            return {"input_features": sound, "decoder_input_ids": target}
        if self.reads == "pair":
            return {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": target}
        return {"input_ids": ids, "attention_mask": mask}


FAMILIES = [
    Family("BERT", "encoder", "BertModel", "BertConfig", SIZES),
    Family("RoBERTa", "encoder", "RobertaModel", "RobertaConfig", {**SIZES, "pad_token_id": 0}),
    Family(
        "ModernBERT",
        "encoder",
        "ModernBertModel",
        "ModernBertConfig",
        {
            **SIZES,
            "local_attention": 6,
            "layer_types": ["full_attention", "sliding_attention"],
            "cls_token_id": 1,
            "sep_token_id": 2,
        },
        note="sliding window",
    ),
    Family(
        "DistilBERT",
        "encoder",
        "DistilBertModel",
        "DistilBertConfig",
        {
            "vocab_size": VOCABULARY,
            "dim": 32,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 48,
            "max_position_embeddings": 64,
        },
    ),
    Family("ViT", "encoder", "ViTModel", "ViTConfig", IMAGE, reads="image", note="patches"),
    Family(
        "CLIP",
        "encoder",
        "CLIPModel",
        "CLIPConfig",
        {
            "text_config": {**SIZES, "projection_dim": 16},
            "vision_config": IMAGE,
            "projection_dim": 16,
        },
        reads="both",
        note="text and image apart",
    ),
    Family(
        "GPT-2",
        "decoder",
        "GPT2LMHeadModel",
        "GPT2Config",
        {
            "vocab_size": VOCABULARY,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 64,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    Family("Llama", "decoder", "LlamaForCausalLM", "LlamaConfig", GROUPED, note="grouped heads"),
    Family("Qwen2", "decoder", "Qwen2ForCausalLM", "Qwen2Config", GROUPED, note="grouped heads"),
    Family("Qwen3", "decoder", "Qwen3ForCausalLM", "Qwen3Config", GROUPED, note="grouped heads"),
    Family(
        "Mistral",
        "decoder",
        "MistralForCausalLM",
        "MistralConfig",
        {**GROUPED, "sliding_window": 5},
        note="sliding window",
    ),
    Family(
        "Gemma 2",
        "decoder",
        "Gemma2ForCausalLM",
        "Gemma2Config",
        {**GROUPED, "sliding_window": 5, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 8},
        note="soft cap, sliding window",
    ),
    Family("GPT-NeoX", "decoder", "GPTNeoXForCausalLM", "GPTNeoXConfig", SIZES),
    Family(
        "gpt-oss",
        "decoder",
        "GptOssForCausalLM",
        "GptOssConfig",
        {
            **GROUPED,
            "sliding_window": 5,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
        note="sinks, sliding window",
    ),
    Family("BART", "pair", "BartModel", "BartConfig", PAIR, reads="pair"),
    Family("Marian", "pair", "MarianModel", "MarianConfig", PAIR, reads="pair"),
    Family(
        "T5",
        "pair",
        "T5Model",
        "T5Config",
        {
            "vocab_size": VOCABULARY,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 48,
            "num_layers": 2,
            "num_heads": 4,
            "pad_token_id": 0,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
        reads="pair",
        note="position bias",
    ),
    Family(
        "Whisper",
        "pair",
        "WhisperModel",
        "WhisperConfig",
        {**PAIR, "num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 64},
        reads="sound",
        note="frames of sound",
    ),
]


@pytest.fixture(params=FAMILIES, ids=lambda family: family.name)
def family(request: pytest.FixtureRequest) -> Family:
    """Each family in turn."""
    pytest.importorskip("transformers")
    found: Family = request.param
    return found


@pytest.fixture
def family_named() -> Callable[[str], Family]:
    """A function from the name of a family to it."""
    pytest.importorskip("transformers")
    return {family.name: family for family in FAMILIES}.__getitem__


@pytest.fixture
def families() -> list[Family]:
    """Every family, for the table in the documentation."""
    return FAMILIES


def cached(module: nn.Module, cache: Any) -> dict[str, Any]:
    """The argument that hands a module its cache, by the name that its version knows."""
    takes = inspect.signature(module.forward).parameters
    return {next(name for name in CACHES if name in takes): cache}


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
            largest = max(largest, float((layer.graph.to_dense() - weights).abs().max()))
            used += 1
    assert used == len(traces) * sum(map(len, expected.values()))
    return largest


def ids_of(trace: Trace) -> torch.Tensor:
    """The ids of a trace's tokens, which have no other names: (1, tokens)."""
    return torch.tensor([[int(token[1:]) for token in trace.tokens]])


def assert_dense(
    layers: Sequence[TraceLayer], expected: Iterable[torch.Tensor], sample: int = 0, *,
    matrix: bool = False, error: float = 2e-6,
) -> None:  # fmt: skip
    """Hold layers against what eager attention returned, (samples, heads, queries, keys) each.

    matrix: whether what is computed from queries and keys is held against it too.
    """
    for layer, weights in zip(layers, expected, strict=True):
        torch.testing.assert_close(layer.graph.to_dense(), weights[sample], atol=error, rtol=0)
        if matrix:
            torch.testing.assert_close(layer.matrix.to_dense(), weights[sample], atol=error, rtol=0)


def as_list(found: Trace | list[Trace]) -> list[Trace]:
    return found if isinstance(found, list) else [found]
