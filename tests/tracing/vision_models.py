"""Small random vision-language models, each with its family's own processor."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
from transformers.models.llava_next.image_processing_pil_llava_next import (
    LlavaNextImageProcessorPil,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

Picture = np.ndarray[Any, Any]
#: Width of the language model, and of a patch in pixels.
WIDTH, PATCH = 48, 4
_TEXT = {
    "vocab_size": 400, "hidden_size": WIDTH, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """A model and how its inputs are made of a text, in which MARK stands for each picture."""

    model: nn.Module
    inputs: Callable[[list[Picture], str], dict[str, Any]]
    words: Any
    #: Paths of the modules that carry information from patch to patch of the vision tower.
    mixing: tuple[str, ...]
    token: int

    def seen(self, inputs: dict[str, Any]) -> Tensor:
        """What the language model reads, (tokens, width): the embeddings at every position."""
        read: list[Tensor] = []

        def keep(module: nn.Module, args: Any, keywords: dict[str, Any]) -> None:
            read.append(keywords["inputs_embeds"][0].detach())

        language = self.model.get_submodule("model").get_submodule(
            "text_model" if hasattr(self.model.get_submodule("model"), "text_model")
            else "language_model"
        )  # fmt: skip
        hook = language.register_forward_pre_hook(keep, with_kwargs=True)
        with torch.no_grad():
            self.model(**inputs)
        hook.remove()
        return read[0]

    def isolate(self) -> None:
        """Let no patch of the tower know of another, so that a change stays where it is made."""
        found = 0
        for name, module in self.model.named_modules():
            if name.endswith(self.mixing) and isinstance(module, nn.Linear):
                nn.init.zeros_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
                found += 1
        assert found


MARK = "<image>"


def tokenizer(*special: str) -> Any:
    """A token a byte, and some of their own."""
    letters = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    base = Tokenizer(models.BPE(vocab=letters, merges=[]))
    base.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    base.decoder = decoders.ByteLevel()
    names = ["<pad>", "<s>", "</s>", *special]
    base.add_special_tokens(names)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=base, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


def _built(kind: str, config: Any) -> nn.Module:
    torch.manual_seed(3)
    model: nn.Module = getattr(transformers, kind)(config).eval()
    for name, weight in model.named_parameters():
        # Small random weights hide what a patch says behind its position.
        if weight.ndim > 1:
            nn.init.normal_(weight, std=weight[0].numel() ** -0.5)
        if "position" in name:
            nn.init.normal_(weight, std=0.02)
    return model


def _called(processor: Any) -> Callable[[list[Picture], str], dict[str, Any]]:
    def read(pictures: list[Picture], text: str) -> dict[str, Any]:
        with warnings.catch_warnings():
            # Of NumPy, of what Transformers does.
            warnings.simplefilter("ignore", DeprecationWarning)
            made = dict(processor(images=pictures, text=text, return_tensors="pt"))
        # Of PaliGemma's, for training.
        made.pop("labels", None)
        return made

    return read


def written(kind: str, seen: Any, pictures: int, text: str, **known: Any) -> str:
    """A text with the tokens of its images, as the processor of a family writes them.

    Of those whose processor needs that of videos too, and so torchvision: it is not made, but asked
    for what it writes.
    """
    processor = object.__new__(getattr(transformers, f"{kind}Processor"))
    for name, value in known.items():
        setattr(processor, name, value)
    parts = [processor.replace_image_token(seen, number) for number in range(pictures)]
    for part in parts:
        text = text.replace(MARK, part.replace(MARK, "\0"), 1)
    return text.replace("\0", MARK)


def qwen(kind: str) -> Family:
    """Qwen2VL, Qwen2_5_VL or Qwen3VL."""
    words = tokenizer("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    ids = {name: words.convert_tokens_to_ids(name) for name in words.get_added_vocab()}
    vision: dict[str, Any] = {"depth": 2, "num_heads": 4, "patch_size": PATCH, "in_channels": 3}
    section = {"rope_type": "default", "mrope_section": [2, 2, 2], "rope_theta": 1e4}
    if kind == "Qwen2VL":
        vision |= {"embed_dim": 32, "hidden_size": WIDTH, "mlp_ratio": 2}
    else:
        vision |= {"hidden_size": 32, "out_hidden_size": WIDTH, "intermediate_size": 64}
    if kind == "Qwen2_5_VL":
        # Windows of 4 x 4 patches, of which the tower changes the order.
        vision |= {"window_size": 16, "fullatt_block_indexes": [1]}
    if kind == "Qwen3VL":
        vision |= {"num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
    config = getattr(transformers, f"{kind}Config")(
        text_config={**_TEXT, "rope_parameters": section, "head_dim": 12}, vision_config=vision,
        image_token_id=ids["<|image_pad|>"], video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"], vision_end_token_id=ids["<|vision_end|>"],
    )  # fmt: skip
    images = Qwen2VLImageProcessorPil(patch_size=PATCH, size={"shortest_edge": 256,
                                                              "longest_edge": 2304})  # fmt: skip

    def made(pictures: list[Picture], text: str) -> dict[str, Any]:
        seen = dict(images(pictures, return_tensors="pt"))
        # What stands beside it is of the family's chat template.
        text = text.replace(MARK, f"<|vision_start|>{MARK}<|vision_end|>")
        text = written(kind, seen, len(pictures), text, image_processor=images,
                       image_token="<|image_pad|>")  # fmt: skip
        read = words(text, return_tensors="pt")
        kinds = (read["input_ids"] == ids["<|image_pad|>"]).int()
        return {
            "input_ids": read["input_ids"], "attention_mask": read["attention_mask"],
            "mm_token_type_ids": kinds, **seen,
        }  # fmt: skip

    model = _built(f"{kind}ForConditionalGeneration", config)
    return Family(model, made, words, ("attn.proj",), ids["<|image_pad|>"])


def _clip(pixels: int) -> dict[str, Any]:
    return {
        "model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": pixels,
        "patch_size": PATCH, "projection_dim": 32,
    }  # fmt: skip


def _siglip(pixels: int) -> dict[str, Any]:
    return {
        "model_type": "siglip_vision_model", "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": pixels,
        "patch_size": PATCH,
    }  # fmt: skip


def _llama() -> dict[str, Any]:
    return {"model_type": "llama", **_TEXT}


def llava(fit: str) -> Family:
    """LLaVA whose processor crops, pads or stretches."""
    words = tokenizer(MARK)
    token = words.convert_tokens_to_ids(MARK)
    size = {"shortest_edge": 24}
    images: Any
    if fit == "pad":
        images = LlavaImageProcessorPil(size=size, crop_size={"height": 24, "width": 24},
                                        do_pad=True)  # fmt: skip
    elif fit == "crop":
        images = CLIPImageProcessorPil(size=size, crop_size={"height": 24, "width": 24})
    else:
        images = SiglipImageProcessorPil(size={"height": 24, "width": 24})
    processor = transformers.LlavaProcessor(
        images, words, patch_size=PATCH, vision_feature_select_strategy="default",
        image_token=MARK, num_additional_image_tokens=1,
    )  # fmt: skip
    config = transformers.LlavaConfig(
        vision_config=_clip(24), text_config=_llama(), image_token_id=token,
        vision_feature_select_strategy="default", vision_feature_layer=-1,
    )  # fmt: skip
    model = _built("LlavaForConditionalGeneration", config)
    return Family(model, _called(processor), processor, ("out_proj",), token)


def paligemma() -> Family:
    """PaliGemma, whose text looks ahead."""
    words = tokenizer(MARK)
    images = SiglipImageProcessorPil(size={"height": 24, "width": 24})
    images.image_seq_length = 36
    processor = transformers.PaliGemmaProcessor(images, words)
    token = processor.image_token_id
    config = transformers.PaliGemmaConfig(
        vision_config=_siglip(24) | {"projection_dim": WIDTH, "vision_use_head": False},
        text_config={"model_type": "gemma", **_TEXT, "vocab_size": 1600, "head_dim": 12},
        image_token_id=token, projection_dim=WIDTH, hidden_size=WIDTH,
    )  # fmt: skip
    model = _built("PaliGemmaForConditionalGeneration", config)
    return Family(model, _called(processor), processor, ("out_proj",), token)


def idefics3() -> Family:
    """Idefics3: tiles of 16 x 16 pixels, 2 x 2 tokens each."""
    places = [f"<row_{r}_col_{c}>" for r in range(1, 7) for c in range(1, 7)]
    words = tokenizer("<fake_token_around_image>", MARK, "<end_of_utterance>", "<global-img>",
                      *places)  # fmt: skip
    token = words.convert_tokens_to_ids(MARK)
    images = Idefics3ImageProcessorPil(
        size={"longest_edge": 48}, max_image_size={"longest_edge": 16}
    )
    config = transformers.Idefics3Config(
        vision_config=_siglip(16) | {"model_type": "idefics3_vision"}, text_config=_llama(),
        image_token_id=token, scale_factor=2, pad_token_id=0,
    )  # fmt: skip
    model = _built("Idefics3ForConditionalGeneration", config)
    processor = transformers.Idefics3Processor(images, words, image_seq_len=4)
    return Family(model, _called(processor), processor, ("out_proj",), token)


_POINTS = [[16, 32], [32, 16], [32, 32], [16, 48], [48, 16]]


def llava_next() -> Family:
    """LLaVA-NeXT: tiles of 16 x 16 pixels."""
    words = tokenizer(MARK)
    token = words.convert_tokens_to_ids(MARK)
    images = LlavaNextImageProcessorPil(
        size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16},
        image_grid_pinpoints=_POINTS,
    )  # fmt: skip
    processor = transformers.LlavaNextProcessor(
        images, words, patch_size=PATCH, vision_feature_select_strategy="default",
        image_token=MARK, num_additional_image_tokens=1,
    )  # fmt: skip
    config = transformers.LlavaNextConfig(
        vision_config=_clip(16), text_config=_llama(), image_token_id=token,
        vision_feature_select_strategy="default", vision_feature_layer=-1,
        image_grid_pinpoints=_POINTS,
    )  # fmt: skip
    model = _built("LlavaNextForConditionalGeneration", config)
    return Family(model, _called(processor), processor, ("out_proj",), token)


FAMILIES: dict[str, Callable[[], Family]] = {
    "qwen2_vl": lambda: qwen("Qwen2VL"),
    "qwen2_5_vl": lambda: qwen("Qwen2_5_VL"),
    "qwen3_vl": lambda: qwen("Qwen3VL"),
    "llava crop": lambda: llava("crop"),
    "llava pad": lambda: llava("pad"),
    "llava stretch": lambda: llava("stretch"),
    "paligemma": paligemma,
    "idefics3": idefics3,
    "llava_next": llava_next,
}
