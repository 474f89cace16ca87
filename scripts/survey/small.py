"""Small configurations of any family, by the names of their fields.

Every configuration of Transformers can be made without arguments. Its numbers are made small by
their names, those of the configurations inside it too; where a family wants more than that, FIELDS
says what.
"""

from __future__ import annotations

import re
from typing import Any

WIDTH, HEADS, DEPTH, INNER, LAYERS = 32, 4, 8, 48, 2
VOCABULARY, POSITIONS, IMAGE, PATCH = 99, 64, 64, 8

#: Patterns of names of fields, each with its small number; the first that fits is taken.
_RULES: list[tuple[str, int]] = [
    (r"(.*_)?vocab(ulary)?_size(_\w+)?|n_words|num_embeddings", VOCABULARY),
    (
        r"num_(hidden_|mem_|decoder_|encoder_|transformer_|block_)?layers|n_layers?"
        r"|(\w+_)?(encoder|decoder)_layers|(\w+_)?depth|num_blocks|(\w+_)?num_hidden_layers"
        r"|num_(\w+_)?layers",
        LAYERS,
    ),
    (r"(\w+_)?(num_key_value_heads|num_kv_heads|kv_heads)|n_head_kv|num_key_value_groups", 2),
    (r"(\w+_)?(num_attention_heads|attention_heads|num_heads|n_heads?)|heads", HEADS),
    (
        r"(\w+_)?(head_dim|head_size|d_kv|kv_channels)|dim_head|qk_rope_head_dim|qk_nope_head_dim"
        r"|v_head_dim|rotary_dim|global_head_dim",
        DEPTH,
    ),
    (r"(\w+_)?lora_rank", 16),
    (
        r"(\w+_)?(intermediate_size|ffn_dim|d_ff|d_inner|n_inner|ffn_size|mlp_dim|inner_dim"
        r"|feedforward_dim|ffn_hidden_size|feed_forward_size|dim_feedforward|dim_ff)",
        INNER,
    ),
    (r"hidden_size_per_layer_input|vocab_size_per_layer_input", DEPTH),
    (
        r"(\w+_)?(hidden_size|d_model|embed_dim|hidden_dim|n_embd|emb_dim|embedding_size|dim"
        r"|embed_proj_dim|projection_dim|hidden_channels|output_dim|out_hidden_size|feature_size"
        r"|text_embed_dim|embedding_dim)|width|feat_proj_dim",
        WIDTH,
    ),
    (
        r"max_(\w+_)?positions?(_embeddings)?|n_positions|n_ctx|max_seq_len(gth)?|seq_length"
        r"|max_sequence_length|original_max_position_embeddings|max_target_length",
        POSITIONS,
    ),
    (r"(\w+_)?image_size|input_size|pretrain_image_size", IMAGE),
    (r"(\w+_)?patch_size", PATCH),
    (r"(num|n)_(local_|routed_)?experts|moe_num_experts|(\w+_)?num_experts", 4),
    (r"(num_experts_per_tok(en)?|top_k|moe_k|moe_topk|top_k_experts|expert_top_k|topk)", 2),
    (r"n_group|topk_group|n_shared_experts|num_shared_experts", 1),
    (r"num_mel_bins|feature_dim|n_mels", 16),
    (r"sliding_window|attention_chunk_size|local_attention|window_size|local_window_size", 4),
    (r"num_queries|num_query_tokens|num_latents|num_detection_tokens", 6),
    (r"first_k_dense_replace", 1),
]
_COMPILED = [(re.compile(pattern), number) for pattern, number in _RULES]

#: Token ids that must differ from each other, and be in the vocabulary.
_SPECIAL = re.compile(r"\w+_token_(id|index)|\w+_(start|end)_id")

#: What single families want beside their names' rules: fields by the type of a configuration.
FIELDS: dict[str, dict[str, Any]] = {
    "bamba": {
        "attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8,
    },
    "deepseek_v2": {"num_experts_per_tok": 2},
    "gemma3n_text": {
        "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2, "activation_sparsity_pattern": [0.0] * 4,
        "intermediate_size": [48] * 4, "laurel_rank": 8,
    },
    "granitemoehybrid": {
        "layer_types": ["linear_attention", "full_attention"], "num_hidden_layers": 2,
        "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8,
    },
    "jamba": {
        "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 4,
        "use_mamba_kernels": False,
    },
    "moonshine": {"encoder_num_key_value_heads": 4, "decoder_num_key_value_heads": 4},
    "moonshine_streaming": {"num_key_value_heads": 4},
    "nemotron_h": {
        "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
        "num_hidden_layers": 4, "mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 8,
        "n_groups": 2,
    },
    "sam2_hiera_det_model": {
        "hidden_size": 16, "num_attention_heads": 1, "blocks_per_stage": [1, 1, 2, 1],
        "embed_dim_per_stage": [16, 32, 64, 128], "num_attention_heads_per_stage": [1, 2, 4, 8],
        "window_size_per_stage": [4, 2, 4, 2], "global_attention_blocks": [3],
        "window_positional_embedding_background_size": [7, 7], "image_size": [64, 64],
        "patch_size": [7, 7],
    },
    "sam2_vision_model": {
        "backbone_channel_list": [128, 64, 32, 16],
        "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
    },
    "zamba2": {
        "num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "hybrid_layer_ids": [1, 3], "mamba_d_state": 8, "n_mamba_heads": 8, "mamba_headdim": 8,
        "num_key_value_heads": 4, "num_query_groups": 4, "attention_head_dim": 16,
        "attention_hidden_size": 64, "adapter_rank": 8, "use_mamba_kernels": False,
    },
    "swin": {"embed_dim": 16, "num_heads": [2, 2, 4, 4], "patch_size": 2, "window_size": 4},
    "donut-swin": {"embed_dim": 16, "num_heads": [2, 2, 4, 4], "patch_size": 2, "window_size": 4},
    "vjepa2": {
        "crop_size": 16, "frames_per_clip": 4, "patch_size": 8, "pred_num_mask_tokens": 2,
        "pred_hidden_size": 32, "pred_num_hidden_layers": 1, "pred_num_attention_heads": 4,
    },
}  # fmt: skip


def small_number(name: str, value: int) -> int:
    """Return the small number of a field; never a larger one than it has."""
    for pattern, number in _COMPILED:
        if pattern.fullmatch(name):
            return min(value, number) if value > 0 else value
    return value


def _token_id(name: str, value: int, taken: dict[str, int]) -> int:
    fixed = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    if name in fixed:
        return fixed[name]
    if value < 80:
        return value
    return taken.setdefault(name, 80 + len(taken) % 18)


def small_fields(config: Any, keep_widths: bool = False) -> dict[str, Any]:
    """Return the arguments that make a small configuration of the kind of another.

    keep_widths: only layers, vocabularies and positions are made small; for families in whose
    widths many numbers must fit each other.
    """
    taken: dict[str, int] = {}
    fields: dict[str, Any] = {}
    inner = set(getattr(config, "sub_configs", {}) or {})
    for name, value in config.to_dict().items():
        if name in (
            "model_type",
            "transformers_version",
            "architectures",
            "dtype",
            "_name_or_path",
        ):
            continue
        own = getattr(config, name, None)
        if name in inner and hasattr(own, "to_dict"):
            fields[name] = {**small_fields(own, keep_widths), "model_type": own.model_type}
            continue
        new = _small(name, value, keep_widths, taken)
        if new is not value:
            fields[name] = new
    _layer_lists(config, fields)
    if getattr(config, "kv_lora_rank", None) is not None and "num_key_value_heads" in fields:
        # Keys that are made of one small vector have as many heads as queries.
        fields["num_key_value_heads"] = fields.get("num_attention_heads", HEADS)
    return {**fields, **FIELDS.get(config.model_type, {})}


def _small(name: str, value: Any, keep_widths: bool, taken: dict[str, int]) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        if _SPECIAL.fullmatch(name):
            return _token_id(name, value, taken)
        new = small_number(name, value)
        if keep_widths and new not in (LAYERS, VOCABULARY, POSITIONS) and value <= 1024:
            return value
        return new
    if name in ("depths", "num_blocks", "encoder_depths", "decoder_depths") and value:
        return [1] * len(value)
    if isinstance(value, (list, tuple)) and value and all(type(v) is int for v in value):
        if _SPECIAL.fullmatch(name):
            return [_token_id(f"{name}{i}", v, taken) for i, v in enumerate(value)]
        if len(value) == 2 and re.search(r"image_size|patch_size|window_size", name):
            return [small_number(name, v) for v in value]
        if name == "mrope_section":
            return [2, 1, 1]
    if name in ("rope_parameters", "rope_scaling") and isinstance(value, dict):
        changed = dict(value)
        if "mrope_section" in changed:
            changed["mrope_section"] = [2, 1, 1]
        return changed
    return value


def _layer_lists(config: Any, fields: dict[str, Any]) -> None:
    """Shorten lists with an entry for each layer to one of each kind, and set that many layers."""
    there = config.to_dict()
    layers = there.get("num_hidden_layers")
    if not isinstance(layers, int) or layers < 1:
        return
    lists = {
        name: value
        for name, value in there.items()
        if isinstance(value, list) and len(value) == layers and layers > 2
    }
    kinds = there.get("layer_types") or there.get("layers_block_type")
    count = LAYERS
    places = list(range(count))
    if isinstance(kinds, list) and len(kinds) == layers:
        places = [kinds.index(kind) for kind in dict.fromkeys(kinds)]
        places += [place for place in range(layers) if place not in places][
            : max(0, 2 - len(places))
        ]
        count = len(places)
    fields["num_hidden_layers"] = min(count, layers)
    for name, value in lists.items():
        fields[name] = [value[place] for place in sorted(places)[:count]]
