"""Models from GGUF files, by Transformers' own reader: every weight as a plain number of float32.

GGUF is the format of llama.cpp: metadata, a table of tensors, and their numbers, mostly in blocks
of a few bits each. Transformers converts what it knows of a file, and passes over the rest in
silence. A model that would lack a tensor or a setting of its file computes something else, so it is
refused here.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from headloom.errors import DataError, InputError, installing, optional_package
from headloom.formats.files import in_brief, open_file
from headloom.tracing.locating import check_memory

if TYPE_CHECKING:
    from gguf import GGUFReader
    from transformers import PretrainedConfig

__all__ = ["load_gguf", "read_gguf"]

#: Settings of a file that change what the model computes, and what Transformers calls them.
_SETTINGS: dict[str, tuple[str, ...]] = {
    "rope.freq_base": ("rope_theta",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps"),
    "attention.layer_norm_epsilon": (
        "layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps",
    ),
    "attention.causal": (),
    "attention.scale": (),
    "attention.sliding_window": ("sliding_window",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "rope.scaling.factor": ("factor",),
}  # fmt: skip
#: Values that change nothing: a factor of 1, queries that look back, the usual scale.
_NEUTRAL = {"rope.scaling.factor": 1, "attention.causal": True, "attention.scale": 0}
#: Their output layer stands in the file although it is the embedding again.
_TIED = ("falcon", "bloom")

_LOCK = threading.Lock()


def read_gguf(path: Path) -> tuple[GGUFReader, dict[str, int | float | str]]:
    """Return the header of a GGUF file, by the package gguf, and its settings.

    Raises:
        DataError: not such a file, cut off, or damaged.
        InputError: the package gguf is missing.
    """
    with optional_package("a GGUF file", installing("gguf")):
        import gguf
    with open_file(path, "GGUF file") as file:
        if file.read(4) != b"GGUF":
            raise DataError(f"{path}: not a GGUF file (it does not begin with GGUF).")

    class Reader(gguf.GGUFReader):
        """The package's own reads on beyond the end of a file."""

        def _get(self, offset: int, dtype: Any, count: int = 1, *order: Any, **named: Any) -> Any:
            if offset + int(count) * np.dtype(dtype).itemsize > len(self.data):
                raise ValueError(f"it ends at byte {len(self.data):,}, before what it says it has")
            # Not a slice of the file's array: one of these is many times as slow.
            return np.frombuffer(self.data, dtype, int(count), int(offset))

    try:
        reader = Reader(path)
        settings = {
            key: field.contents()
            for key, field in reader.fields.items()
            if field.types[0] != gguf.GGUFValueType.ARRAY
        }
        if not isinstance(settings.get("general.architecture"), str) or not reader.tensors:
            raise ValueError("it names no architecture (general.architecture), or has no tensors")
    except Exception as error:
        raise DataError(
            f"{path}: this GGUF file is damaged: {in_brief(error)}. Get it again."
        ) from error
    return reader, settings


def load_gguf(
    path: Path, library: Any, *, predicting: bool, text: bool
) -> tuple[nn.Module, Any, Any]:
    """Return the model of a GGUF file, its tokenizer, and Transformers' report of missing weights.

    Args:
        path: of the file.
        library: Transformers.
        predicting: with the part that predicts tokens.
        text: with its tokenizer.

    Raises:
        DataError: damaged, or weights that are not numbers.
        InputError: a package is missing, or Transformers does not read all of this file. What it
            raises itself, as of an architecture that it does not know, is raised.
    """
    reader, settings = read_gguf(path)
    with optional_package("a GGUF file", installing("gguf")):
        import accelerate  # noqa: F401 - Transformers asks for it
    numbers = sum(int(tensor.n_elements) for tensor in reader.tensors)
    check_memory(path, 4 * numbers)
    # In a folder of its own: what stands beside the file is not read.
    with TemporaryDirectory(prefix="headloom-gguf-") as folder, _read_once(reader):
        link = Path(folder, "model.gguf")
        link.symlink_to(path.resolve())
        options = {"gguf_file": link.name, "local_files_only": True, "trust_remote_code": False}
        tokenizer = library.AutoTokenizer.from_pretrained(folder, **options) if text else None
        config = library.AutoConfig.from_pretrained(folder, **options)
        unread = _unread(settings, config)
        kind = "AutoModelForSeq2SeqLM" if config.is_encoder_decoder else "AutoModelForCausalLM"
        loaded, report = getattr(library, kind).from_pretrained(
            folder, config=config, output_loading_info=True, ignore_mismatched_sizes=True,
            dtype=torch.float32, **options,
        )  # fmt: skip
    for name, saved, expected in sorted(report["mismatched_keys"]):
        unread = f"all of its sizes: {name} is {tuple(saved)}, the model's is {tuple(expected)}"
    taken = sum(parameter.numel() for parameter in loaded.parameters())
    if settings["general.architecture"] in _TIED:
        numbers -= sum(int(t.n_elements) for t in reader.tensors if t.name == "output.weight")
    if not unread and not report["missing_keys"] and taken != numbers:
        unread = f"all of it: {numbers:,} numbers, the model has {taken:,}"
    if unread:
        raise InputError(
            f"{path}: Transformers {library.__version__} does not read {unread}; the model would "
            "compute something else than its file says. Give it as a folder with safetensors."
        )
    for name, parameter in loaded.named_parameters():
        if not report["missing_keys"] and not bool(torch.isfinite(parameter).all()):
            raise DataError(
                f"{path}: this GGUF file is damaged: {name} has weights that are not numbers. "
                "Get it again."
            )
    _describe(loaded, path, reader, settings)
    return loaded if predicting else loaded.base_model, tokenizer, report


def _unread(settings: dict[str, int | float | str], config: PretrainedConfig) -> str | None:
    """The setting of the file that is not in the configuration made of it; None: all are."""
    architecture = settings["general.architecture"]
    rope = getattr(config, "rope_parameters", None) or {}
    # Some models have one set of positions for each type of layer.
    flat = {name: value for part in (rope, *rope.values()) if isinstance(part, dict)
            for name, value in part.items()}  # fmt: skip
    for name, titles in _SETTINGS.items():
        value = settings.get(f"{architecture}.{name}")
        if not isinstance(value, int | float) or value == _NEUTRAL.get(name):
            continue
        if name == "attention.sliding_window" and value >= config.max_position_embeddings:
            continue
        read = [flat.get(title, getattr(config, title, None)) for title in titles]
        if not any(
            isinstance(other, int | float) and abs(other - value) <= 1e-6 * abs(value)
            for other in read
        ):
            return f"the setting {name} = {value:g}"
    turned = settings.get(f"{architecture}.rope.dimension_count")
    depth = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    part = flat.get("partial_rotary_factor", getattr(config, "partial_rotary_factor", None)) or 1.0
    if turned not in (None, getattr(config, "rotary_dim", None), int(depth * part)):
        return f"the setting rope.dimension_count = {turned}"
    scaled = str(settings.get(f"{architecture}.rope.scaling.type", "none"))
    if scaled not in ("none", "") and flat.get("rope_type", "default") == "default":
        return f"the setting rope.scaling.type = {scaled[:40]}"
    return None


def _describe(model: Any, path: Path, reader: GGUFReader, settings: dict[str, Any]) -> None:
    """Make the model a plain one in float32, whose configuration says where it is from."""
    config = model.config
    model.name_or_path = model.base_model.name_or_path = config.name_or_path = str(path)
    # Its weights are plain numbers now; what is left would say otherwise to whoever saves it.
    for holder, name in (
        (config, "quantization_config"), (model, "hf_quantizer"), (model, "is_quantized"),
        (model, "quantization_method"), (config, "_pre_quantization_dtype"),
    ):  # fmt: skip
        if name in vars(holder):
            delattr(holder, name)
    types = Counter(tensor.tensor_type.name for tensor in reader.tensors)
    numbers: Counter[str] = Counter()
    for tensor in reader.tensors:
        numbers[tensor.tensor_type.name] += int(tensor.n_elements)
    kinds = [kind for kind, _ in numbers.most_common()]
    # Of the type of most numbers; None: whole numbers, no blocks of few bits.
    bits = None if kinds[0] in ("F64", "F32", "F16", "BF16") else re.search(r"\d+", kinds[0])
    config.gguf = {
        "name": str(settings.get("general.name", "")),
        "quantization": None if bits is None else f"{bits[0]}-bit ({kinds[0]})",
        "types": {kind: types[kind] for kind in kinds},
    }


@contextmanager
def _read_once(reader: GGUFReader) -> Iterator[None]:
    """Within, a header is not read again, tensors are named once, and nothing draws a bar.

    Transformers reads the whole header for the tokenizer, the configuration and the weights, and
    asks for the table of all names for every module of the model.
    """
    import gguf
    from transformers import modeling_gguf_pytorch_utils as conversion

    replaced: list[tuple[Any, str, Any]] = [
        (gguf, "GGUFReader", lambda path: reader),
        (gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map)),
        (conversion, "tqdm", lambda tensors, **options: tensors),
    ]
    with _LOCK:
        before = [(holder, name, getattr(holder, name)) for holder, name, _ in replaced]
        try:
            for holder, name, value in replaced:
                setattr(holder, name, value)
            yield
        finally:
            for holder, name, value in before:
                setattr(holder, name, value)
