"""Made inputs for any model: tokens, pixels and sounds, by the names of its forward's arguments."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

BATCH, LENGTH, TARGET = 2, 12, 7

#: What single families read beside what the names of their arguments say: a function from the
#: model and the inputs to those to be changed. None leaves an argument out.
EXTRA: dict[str, Any] = {}


def _value(config: Any, *names: str) -> Any:
    """Return the first of some fields that a configuration, or one inside it, has."""
    parts = [config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", {}))]
    for name in names:
        for part in parts:
            found = getattr(part, name, None)
            if found is not None:
                return found
    return None


def _pair(value: Any, default: int) -> tuple[int, int]:
    if value is None:
        value = default
    if isinstance(value, dict):
        value = (value.get("height", default), value.get("width", default))
    return (value, value) if isinstance(value, int) else (value[-2], value[-1])


def made_inputs(model: nn.Module, padded: bool = True) -> dict[str, Tensor]:
    """Return a batch of two for a model; where it takes tokens and a mask, of different lengths.

    A decoder's shorter text is padded on the left, another model's on the right.
    """
    generator = torch.Generator().manual_seed(11)
    config: Any = model.config
    takes = inspect.signature(model.forward).parameters
    words = _value(config, "vocab_size", "src_vocab_size", "n_words") or 30
    words = words if isinstance(words, int) else 30
    inputs: dict[str, Tensor] = {}

    def ids(length: int) -> Tensor:
        return torch.randint(3, min(words, 80), (BATCH, length), generator=generator)

    main = getattr(model, "main_input_name", "input_ids")
    if "input_ids" in takes and main in takes:
        inputs["input_ids"] = ids(LENGTH)
        if padded and "attention_mask" in takes:
            mask = torch.ones_like(inputs["input_ids"])
            left = not config.is_encoder_decoder and _decodes(model)
            hidden = slice(0, 3) if left else slice(LENGTH - 3, LENGTH)
            mask[1, hidden] = 0
            pad = _value(config, "pad_token_id")
            inputs["input_ids"][1, hidden] = pad if isinstance(pad, int) and pad >= 0 else 0
            inputs["attention_mask"] = mask
    if "decoder_input_ids" in takes and config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids(TARGET)
    if "bbox" in takes:
        corners = torch.randint(0, 20, (BATCH, LENGTH, 4), generator=generator)
        inputs["bbox"] = corners.sort(-1).values
    reads = main if main in takes else ""
    if not inputs and not reads:
        others = ("pixel_values", "input_features", "input_values", "pixel_values_videos")
        reads = next((name for name in others if name in takes), "")
    needed = [n for n, p in takes.items() if p.default is p.empty and n not in inputs]
    if _reads_both(model) and "pixel_values" in takes:
        needed.append("pixel_values")
    for name in dict.fromkeys((reads, *needed)):
        made = None if name in inputs else _made(name, model, generator)
        if made is not None:
            inputs[name] = made
    changes = EXTRA.get(config.model_type)
    if changes is not None:
        inputs.update(changes(model, inputs))
    return {name: value for name, value in inputs.items() if value is not None}


def _decodes(model: nn.Module) -> bool:
    """Whether a model of one text looks back only, by what its library calls it."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    config: Any = model.config
    masked = ("bert", "electra", "xmod", "rembert", "roformer", "megatron")
    kind = config.model_type
    return kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not any(m in kind for m in masked)


def _reads_both(model: nn.Module) -> bool:
    """Whether a model must have an image beside a text: two towers, as CLIP."""
    names = {name for name, _ in model.named_children()}
    return bool(names & {"vision_model", "image_model"}) and bool(names & {"text_model"})


def _made(name: str, model: nn.Module, generator: torch.Generator) -> Tensor | None:
    config: Any = model.config
    channels = _value(config, "num_channels", "in_channels", "in_chans", "image_channels") or 3
    high, wide = _pair(_value(config, "image_size", "input_size", "crop_size"), 64)
    if name == "pixel_values":
        shape = [BATCH, channels, high, wide]
        frames = _value(config, "num_frames", "frames_per_clip")
        if frames is not None and not isinstance(config.model_type, type(None)):
            shape = [BATCH, frames, channels, high, wide]
        return torch.randn(shape, generator=generator)
    if name == "pixel_values_videos":
        frames = _value(config, "frames_per_clip", "num_frames") or 4
        return torch.randn(BATCH, frames, channels, high, wide, generator=generator)
    if name == "input_features":
        bins = _value(
            config, "num_mel_bins", "feature_projection_input_dim", "input_feat_per_channel"
        )
        length = 40
        positions = _value(config, "max_source_positions")
        if positions is not None and hasattr(config, "num_mel_bins"):
            length = 2 * positions
        first = [BATCH, bins or 16, length]
        return torch.randn(first, generator=generator)
    if name == "input_values":
        return torch.randn(BATCH, 1600, generator=generator)
    if name in ("input_ids", "decoder_input_ids"):
        return torch.randint(3, 30, (BATCH, TARGET), generator=generator)
    if name == "inputs_embeds":
        width = _value(config, "hidden_size", "d_model") or 32
        return torch.randn(BATCH, LENGTH, width, generator=generator)
    if name in ("encoder_hidden_states", "hidden_states", "query_embeds"):
        width = _value(config, "encoder_hidden_size", "hidden_size", "d_model") or 32
        return torch.randn(BATCH, LENGTH, width, generator=generator)
    return None
