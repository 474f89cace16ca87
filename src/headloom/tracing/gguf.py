"""Models from GGUF files, by Transformers' own reader: every weight as a plain number of float32.

GGUF is the format of llama.cpp: metadata, a table of tensors, and their numbers, mostly in blocks
of a few bits each. Transformers converts what it knows of a file, and passes over the rest in
silence. A model that would lack a tensor or a setting of its file computes something else, so it is
refused here.
"""

from __future__ import annotations

import math
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import nn

from headloom.errors import DataError, InputError, installing, optional_package
from headloom.formats.files import JsonMapping, in_brief, open_file
from headloom.tracing.memory import check_memory

__all__ = ["GgufFile", "load_gguf", "read_gguf"]

#: Settings of a file that change what the model computes, and what Transformers calls them.
_SETTINGS = {
    "rope.freq_base": ("rope_theta",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps"),
    "attention.layer_norm_epsilon": (
        "layer_norm_epsilon",
        "layer_norm_eps",
        "norm_epsilon",
        "norm_eps",
    ),
    "attention.causal": (),
    "attention.scale": (),
    "attention.sliding_window": ("sliding_window",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "rope.scaling.factor": ("factor",),
}

#: Values that change nothing: a factor of 1, queries that look back, the usual scale.
_NEUTRAL = {"rope.scaling.factor": 1, "attention.causal": True, "attention.scale": 0}

#: Their output layer stands in the file although it is the embedding again.
_TIED = ("falcon", "bloom")

#: Types of numbers that are not blocks of few bits.
_WHOLE = ("F64", "F32", "F16", "BF16")

#: Items of an array at most; the largest vocabularies have a quarter of a million.
_ITEMS = 2**22

_LOCK = threading.Lock()


@dataclass(frozen=True, eq=False)
class GgufFile:
    """A GGUF file whose header is sound.

    metadata: scalars and strings by their keys; of an array its length.
    reader: the package gguf's own, with the tensors in the order of the file.
    """

    path: Path
    metadata: dict[str, int | float | bool | str]
    reader: Any

    @property
    def architecture(self) -> str:
        """As llama.cpp names it: "llama", "qwen2"."""
        return str(self.metadata["general.architecture"])

    @property
    def numbers(self) -> int:
        """How many numbers all tensors hold."""
        return sum(int(tensor.n_elements) for tensor in self.reader.tensors)

    @property
    def types(self) -> dict[str, int]:
        """How many tensors are of each type, those of most numbers first."""
        numbers: Counter[str] = Counter()
        for tensor in self.reader.tensors:
            numbers[tensor.tensor_type.name] += tensor.n_elements
        counts = Counter(tensor.tensor_type.name for tensor in self.reader.tensors)
        return {kind: counts[kind] for kind, _ in numbers.most_common()}

    @property
    def quantization(self) -> str | None:
        """The bits and type of most of its numbers, "4-bit (Q4_1)"; None: whole numbers."""
        kind = next(iter(self.types))
        bits = re.search(r"\d+", kind)
        return None if kind in _WHOLE or bits is None else f"{bits[0]}-bit ({kind})"


def read_gguf(path: Path) -> GgufFile:
    """The header of a GGUF file, by the package gguf.

    Raises:
        DataError: not such a file, cut off, or damaged.
        InputError: the package gguf is missing.
    """
    with optional_package("a GGUF file", installing("gguf")):
        import gguf
    with open_file(path, "GGUF file") as file:
        head = file.read(8)
    if head[:4] != b"GGUF":
        raise DataError(f"{path}: not a GGUF file (it does not begin with GGUF).")
    version = int.from_bytes(head[4:], "little")
    if version not in (2, 3):
        raise DataError(
            f"{path}: a GGUF file of version {version}; expected version 2 or 3, little-endian. "
            "Convert it again."
        )

    class Reader(gguf.GGUFReader):
        """The package's own believes every length, and reads on beyond the end of a file."""

        def _get(self, offset: int, dtype: Any, count: int = 1, *order: Any, **named: Any) -> Any:
            if offset + int(count) * np.dtype(dtype).itemsize > len(self.data):
                raise ValueError(f"it ends at byte {len(self.data):,}, before what it says it has")
            # Not a slice of the file's array: one of these is many times as slow.
            return np.frombuffer(self.data, dtype, int(count), int(offset))

        def _get_field_parts(self, start: int, kind: int) -> Any:
            if kind == gguf.GGUFValueType.ARRAY and self._get(start + 4, "<u8")[0] > _ITEMS:
                raise ValueError(f"it counts more than {_ITEMS:,} items at byte {start:,}")
            return super()._get_field_parts(start, kind)

    try:
        reader = Reader(path)
        arrays = gguf.GGUFValueType.ARRAY
        metadata = {
            key: len(field.data) if field.types[0] == arrays else field.contents()
            for key, field in reader.fields.items()
        }
        for key, value in metadata.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{key[:60]} is {value}")
        if not isinstance(metadata.get("general.architecture"), str) or not reader.tensors:
            raise ValueError("it names no architecture (general.architecture), or has no tensors")
        end = reader.data_offset
        for tensor in sorted(reader.tensors, key=lambda tensor: tensor.data_offset):
            if tensor.data_offset < end:
                raise ValueError(f"the tensor {tensor.name[:60]} begins inside another one")
            end = tensor.data_offset + int(tensor.n_bytes)
    except Exception as error:
        raise DataError(
            f"{path}: this GGUF file is damaged: {in_brief(error)}. Get it again."
        ) from error
    return GgufFile(path, metadata, reader)


def load_gguf(
    path: Path, library: Any, *, predicting: bool, text: bool
) -> tuple[nn.Module, Any, Any]:
    """The model of a GGUF file, its tokenizer, and Transformers' report of weights that lack.

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
    file = read_gguf(path)
    with optional_package("a GGUF file", installing("gguf")):
        import accelerate  # noqa: F401 - Transformers asks for it
    check_memory(path, 4 * file.numbers)
    # In a folder of its own: what stands beside the file is not read.
    with TemporaryDirectory(prefix="headloom-gguf-") as folder, _read_once(file):
        link = Path(folder, "model.gguf")
        link.symlink_to(path.resolve())
        options = {"gguf_file": link.name, "local_files_only": True, "trust_remote_code": False}
        tokenizer = library.AutoTokenizer.from_pretrained(folder, **options) if text else None
        config = library.AutoConfig.from_pretrained(folder, **options)
        _check_settings(file, config, library)
        pair = config.is_encoder_decoder
        kind = "AutoModelForSeq2SeqLM" if pair else "AutoModelForCausalLM"
        loaded, report = getattr(library, kind).from_pretrained(
            folder, config=config, output_loading_info=True, ignore_mismatched_sizes=True,
            dtype=torch.float32, **options,
        )  # fmt: skip
    _describe(loaded, file)
    for name, saved, expected in sorted(report["mismatched_keys"]):
        raise _not_read(
            file, library, f"all of its sizes: {name} is {tuple(saved)}, the model's is "
            f"{tuple(expected)}",
        )  # fmt: skip
    if not report["missing_keys"]:
        _check_all_read(file, loaded, library)
    return loaded if predicting else loaded.base_model, tokenizer, report


def _check_settings(file: GgufFile, config: Any, library: Any) -> None:
    """Raise where a setting of the file is not in the configuration that was made of it."""
    rope = getattr(config, "rope_parameters", None) or {}
    # Some models have one set of positions for each type of layer.
    flat = {name: value for part in (rope, *rope.values()) if isinstance(part, dict)
            for name, value in part.items()}  # fmt: skip
    scaled = str(file.metadata.get(f"{file.architecture}.rope.scaling.type", "none"))
    unread = []
    for name, titles in _SETTINGS.items():
        value = file.metadata.get(f"{file.architecture}.{name}")
        if value is None or isinstance(value, str) or value == _NEUTRAL.get(name):
            continue
        if name == "attention.sliding_window" and value >= config.max_position_embeddings:
            continue
        read = [flat.get(title, getattr(config, title, None)) for title in titles]
        if not any(
            isinstance(other, int | float) and abs(other - value) <= 1e-6 * abs(value)
            for other in read
        ):
            unread.append(f"{name} = {value:g}")
    turned = file.metadata.get(f"{file.architecture}.rope.dimension_count")
    if turned is not None and turned not in _turned(config, flat):
        unread.append(f"rope.dimension_count = {turned}")
    if scaled not in ("none", "") and flat.get("rope_type", "default") == "default":
        unread.append(f"rope.scaling.type = {scaled[:40]}")
    if unread:
        raise _not_read(file, library, f"the setting {unread[0]}")


def _turned(config: Any, rope: JsonMapping) -> tuple[int | None, int]:
    """How many numbers of each query and key a configuration turns by their position."""
    depth = getattr(config, "head_dim", None)
    if depth is None:
        depth = config.hidden_size // config.num_attention_heads
    part = rope.get("partial_rotary_factor", getattr(config, "partial_rotary_factor", None))
    return getattr(config, "rotary_dim", None), int(depth * (1.0 if part is None else part))


def _check_all_read(file: GgufFile, model: nn.Module, library: Any) -> None:
    """Raise where the model has not taken every number of the file, or takes one that is none."""
    numbers = file.numbers
    for tensor in file.reader.tensors:
        if tensor.name == "output.weight" and file.architecture in _TIED:
            numbers -= int(tensor.n_elements)
    taken = sum(parameter.numel() for parameter in model.parameters())
    if taken != numbers:
        factors = [
            tensor.name for tensor in file.reader.tensors if tensor.name.startswith("rope_f")
        ]
        what = f"{factors[0]} is of its {numbers:,} numbers" if factors else f"{numbers:,} numbers"
        raise _not_read(file, library, f"all of it: {what}, the model has {taken:,}")
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise DataError(
                f"{file.path}: this GGUF file is damaged: {name} has weights that are not numbers. "
                "Get it again."
            )


def _not_read(file: GgufFile, library: Any, what: str) -> InputError:
    return InputError(
        f"{file.path}: Transformers {library.__version__} does not read {what}; the model would "
        "compute something else than its file says. Give it as a folder with safetensors."
    )


def _describe(model: Any, file: GgufFile) -> None:
    """Make the model a plain one in float32, whose configuration says where it is from."""
    config = model.config
    model.name_or_path = model.base_model.name_or_path = config.name_or_path = str(file.path)
    # Its weights are plain numbers now; what is left would say otherwise to whoever saves it.
    for holder, name in (
        (config, "quantization_config"), (model, "hf_quantizer"), (model, "is_quantized"),
        (model, "quantization_method"), (config, "_pre_quantization_dtype"),
    ):  # fmt: skip
        if name in vars(holder):
            delattr(holder, name)
    config.gguf = {
        "name": str(file.metadata.get("general.name", "")),
        "quantization": file.quantization,
        "types": file.types,
    }


@contextmanager
def _read_once(file: GgufFile) -> Iterator[None]:
    """Within, a header is not read again, tensors are named once, and nothing draws a bar.

    Transformers reads the whole header for the tokenizer, the configuration and the weights, and
    asks for the table of all names for every module of the model.
    """
    import gguf
    from transformers import modeling_gguf_pytorch_utils as conversion

    replaced: list[tuple[Any, str, Any]] = [
        (gguf, "GGUFReader", lambda path: file.reader),
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
