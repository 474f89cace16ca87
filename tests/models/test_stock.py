"""Models as architectures of Transformers: its own code gives the same logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headloom
from headloom.errors import InputError
from headloom.models.configuration import Architecture
from headloom.models.huggingface.conversion import stock_model
from headloom.models.language_model import LanguageModel
from headloom.models.predictor import Predictor
from headloom.models.transformer import Transformer

transformers = pytest.importorskip("transformers")

SIZES: dict[str, Any] = {
    "width": 16, "heads": 4, "feed_forward": 64, "encoder_layers": 2, "decoder_layers": 3,
    "max_length": 40,
}  # fmt: skip


def drawn(kind: type[Transformer] | type[LanguageModel], **choices: Any) -> Any:
    """A model with no weight at 0 or 1, so that each must be at its place."""
    torch.manual_seed(0)
    layers = "decoder" if kind is LanguageModel else None
    model = kind(50, padding=0, **Architecture(**SIZES | choices).arguments(layers)).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def theirs(model: Predictor) -> Any:
    """The model of Transformers, filled by the names alone."""
    stock = stock_model(model)
    kind = getattr(transformers, stock.architecture)
    other = kind(kind.config_class(**stock.settings, pad_token_id=0)).eval()
    missing, unexpected = other.load_state_dict(dict(stock.weights), strict=False)
    assert not unexpected
    assert {name.rpartition(".")[0] for name in missing} <= {"lm_head", "embed_out", ""}
    other.get_output_embeddings().weight = nn.Parameter(stock.output.detach().clone())
    return other


def ids(rows: int, length: int) -> Tensor:
    return torch.randint(4, 50, (rows, length), generator=torch.Generator().manual_seed(length))


@pytest.mark.parametrize(
    ("architecture", "choices"),
    [
        ("PegasusForConditionalGeneration", {"kv_heads": 2, "activation": "gelu"}),
        ("PegasusForConditionalGeneration", {"positions": "learned", "activation": "silu"}),
        (
            "PegasusForConditionalGeneration",
            {"positions": "none", "biases": False, "scaled_embeddings": False, "output_bias": True},
        ),
        ("MarianMTModel", {"norm": "post", "kv_heads": 1, "activation": "gelu-tanh"}),
        (
            "MarianMTModel",
            {"norm": "post", "biases": False, "scaled_embeddings": False, "output_bias": True},
        ),
    ],
)
def test_translators(architecture: str, choices: dict[str, Any]) -> None:
    model = drawn(Transformer, **choices)
    assert stock_model(model).architecture == architecture
    source, target = ids(3, 11), ids(3, 9)
    source[1, 6:] = 0
    mask = (source != 0).long()
    with torch.no_grad():
        logits = theirs(model)(
            input_ids=source, attention_mask=mask, decoder_input_ids=target
        ).logits
        assert torch.allclose(logits, model(source, target), atol=1e-5)


ROTARY = {"positions": "rotary"}
LLAMA = ROTARY | {"normalisation": "rms", "feed_forward_kind": "gated"}


@pytest.mark.parametrize(
    ("architecture", "choices"),
    [
        ("GPT2LMHeadModel", {"tied": False, "kv_heads": 2}),
        ("GPT2LMHeadModel", {"positions": "learned", "activation": "gelu", "biases": False}),
        (
            "GPT2LMHeadModel",
            {"positions": "none", "norm_epsilon": 0.3, "activation": "gelu-tanh",
             "scaled_embeddings": False},
        ),
        ("GPTNeoXForCausalLM", ROTARY | {"kv_heads": 2, "activation": "gelu", "tied": False}),
        (
            "GPTNeoXForCausalLM",
            ROTARY | {"norm_epsilon": 0.3, "rotary_base": 30.0, "biases": False,
                      "scaled_embeddings": False},
        ),
        ("LlamaForCausalLM", LLAMA),
        (
            "LlamaForCausalLM",
            LLAMA | {"kv_heads": 2, "norm_epsilon": 0.3, "rotary_base": 30.0, "tied": False},
        ),
        (
            "LlamaForCausalLM",
            LLAMA | {"kv_heads": 1, "depth": 6, "scaled_embeddings": False, "biases": False,
                     "activation": "silu"},
        ),
        ("LlamaForCausalLM", LLAMA | {"rotary_scaling": headloom.RotaryScaling("yarn", 4, 20)}),
    ],
)  # fmt: skip
def test_language_models(architecture: str, choices: dict[str, Any]) -> None:
    model = drawn(LanguageModel, **choices)
    assert stock_model(model).architecture == architecture
    with torch.no_grad():
        logits = theirs(model)(input_ids=ids(3, 30)).logits
        assert torch.allclose(logits, model(ids(3, 30)), atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "choices", "what"),
    [
        (Transformer, ROTARY, 'positions = "rotary"'),
        (Transformer, {"norm": "post", "positions": "learned"}, 'positions = "learned"'),
        (Transformer, {"positions": "buckets"}, 'positions = "buckets"'),
        (Transformer, {"tied": False}, "tied = false"),
        (Transformer, {"weights": "uniform"}, 'weights = "uniform"'),
        (Transformer, {"normalisation": "rms"}, 'normalisation = "rms"'),
        (Transformer, {"norm_epsilon": 0.1}, "norm_epsilon = 0.1"),
        (LanguageModel, {"normalisation": "rms"}, 'normalisation = "rms"'),
        (LanguageModel, {"output_bias": True}, "output_bias = true"),
        (LanguageModel, ROTARY | {"normalisation": "rms"}, 'feed_forward_kind = "plain"'),
        (LanguageModel, ROTARY | {"feed_forward_kind": "gated"}, 'normalisation = "layer"'),
        (LanguageModel, ROTARY | {"depth": 6}, "depth = 6"),
        (LanguageModel, {"positions": "alibi"}, 'positions = "alibi"'),
        (LanguageModel, {"norm": "post"}, 'norm = "post"'),
    ],
)
def test_what_has_no_counterpart_is_named(
    kind: type[Transformer] | type[LanguageModel], choices: dict[str, Any], what: str
) -> None:
    with pytest.raises(InputError, match="no architecture of Transformers has model") as error:
        stock_model(drawn(kind, **choices))
    assert what in str(error.value)
