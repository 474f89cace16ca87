"""Twelve tiny models and their inputs, for make.py and test_golden.py.

Every number is a formula of its place, so that no version of torch or Transformers changes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

__all__ = ["MODELS", "filled", "ids"]

_ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip
_TEXT = {**_SIZES, **_ENDS, "vocab_size": 60, "max_position_embeddings": 64}
_GROUPED = {**_TEXT, "num_key_value_heads": 2, "head_dim": 8}
_ROTARY = {"rope_type": "default", "rope_theta": 10_000.0}


def waves(*shape: int) -> Tensor:
    """Numbers of float64 in -1 to 1 that look like noise: the sine of 0.37 place^2."""
    place = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    return (0.37 * place.square()).sin().reshape(shape)


def ids(length: int, step: int = 7) -> Tensor:
    """A text, (1, length)."""
    return (torch.arange(length) * step + 3)[None] % 47 + 3


def filled(model: nn.Module) -> nn.Module:
    """The model in float64, with parameters by a formula: norms near 1, biases near 0."""
    with torch.no_grad():
        for number, (name, parameter) in enumerate(model.double().named_parameters()):
            wave = waves(parameter.numel() + number)[number:].reshape(parameter.shape)
            if parameter.ndim > 1:
                parameter.copy_(wave * 1.3 * parameter[0].numel() ** -0.5)
            else:
                parameter.copy_(wave * 0.3 + name.endswith("weight"))
            if name.endswith(".q.weight"):  # T5 does not divide scores by the root of the depth
                parameter.mul_(8**-0.5)
    return model.eval()


def _padded() -> dict[str, Tensor]:
    """Two texts, the second of them three tokens shorter."""
    texts = torch.cat((ids(10), ids(10, 11)))
    mask = torch.ones_like(texts)
    texts[1, 7:] = mask[1, 7:] = 0
    return {"input_ids": texts, "attention_mask": mask}


class Attending(nn.Module):
    """A module of torch alone: grouped causal self-attention, then attention to a memory."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.asks = nn.Linear(16, 32), nn.Linear(32, 32)
        self.keys, self.values = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, states: Tensor, memory: Tensor) -> Tensor:
        def heads(x: Tensor) -> Tensor:
            return x.unflatten(-1, (-1, 8)).transpose(1, 2)

        q, k, v = (heads(x) for x in (self.queries(states), self.keys(states), self.values(states)))
        own = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        q = heads(self.asks(own.transpose(1, 2).flatten(2)))
        return scaled_dot_product_attention(q, heads(memory), heads(memory), scale=1.0)


def _translator() -> nn.Module:
    from headloom.models.transformer import Transformer

    return Transformer(
        60, width=16, heads=4, kv_heads=2, feed_forward=24, encoder_layers=2, decoder_layers=2,
        positions="rotary", padding=0,
    )  # fmt: skip


def _gat() -> nn.Module:
    import headloom

    return headloom.GATConv(12, 8, heads=4)


def _of(kind: str, **config: Any) -> Callable[..., nn.Module]:
    def build(**options: Any) -> nn.Module:
        made = getattr(transformers, f"{kind}Config")(**config)
        return getattr(transformers, f"{kind}Model")._from_config(made, **options)

    return build


#: How each model is built, and its inputs by name.
MODELS: dict[str, tuple[Callable[..., nn.Module], dict[str, Tensor]]] = {
    "gpt2": (
        _of("GPT2", **_ENDS, vocab_size=60, n_embd=32, n_layer=2, n_head=4, n_positions=64),
        {"input_ids": ids(12)},
    ),
    "llama": (_of("Llama", **_GROUPED), {"input_ids": ids(12)}),
    "gemma": (
        _of("Gemma2", **_GROUPED, sliding_window=5, attn_logit_softcapping=2.0,
            query_pre_attn_scalar=8),
        {"input_ids": ids(12)},
    ),
    "gpt-oss": (
        _of("GptOss", **_GROUPED, sliding_window=5, num_local_experts=2, num_experts_per_tok=1,
            experts_implementation="eager", rope_parameters=_ROTARY),
        {"input_ids": ids(12)},
    ),
    "bert": (_of("Bert", **_TEXT), _padded()),
    "t5": (
        _of("T5", vocab_size=60, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4),
        {**_padded(), "decoder_input_ids": ids(6, 5).repeat(2, 1)},
    ),
    "whisper": (
        _of("Whisper", **_ENDS, vocab_size=60, d_model=32, encoder_layers=2, decoder_layers=2,
            encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48,
            decoder_ffn_dim=48, num_mel_bins=8, max_source_positions=20, max_target_positions=64,
            decoder_start_token_id=1),
        {"input_features": waves(1, 8, 40), "decoder_input_ids": ids(6)},
    ),
    "vit": (
        _of("ViT", **_SIZES, image_size=24, patch_size=8),
        {"pixel_values": waves(1, 3, 24, 24)},
    ),
    "qwen2-vl": (
        _of("Qwen2VL", image_token_id=50, video_token_id=51, vision_start_token_id=52,
            vision_end_token_id=53,
            text_config={**_GROUPED, "rope_parameters": {**_ROTARY, "mrope_section": [2, 1, 1]}},
            vision_config={"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4,
                           "patch_size": 4, "mlp_ratio": 2}),
        {
            "input_ids": torch.tensor([[7, 52, 50, 50, 50, 50, 53, 11, 23]]),
            "mm_token_type_ids": torch.tensor([[0, 0, 1, 1, 1, 1, 0, 0, 0]]),
            "pixel_values": waves(16, 96), "image_grid_thw": torch.tensor([[1, 4, 4]]),
        },
    ),
    "translator": (_translator, {"source": ids(9), "target": ids(7, 5)}),
    "sdpa": (Attending, {"states": waves(1, 11, 16), "memory": waves(1, 6, 32)[:, 1:]}),
    "gat": (
        _gat,
        {"x": waves(9, 12), "edge_index": torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 0, 4, 8, 2],
                                                        [1, 2, 3, 4, 5, 6, 7, 8, 4, 0, 2, 7]])},
    ),
}  # fmt: skip
