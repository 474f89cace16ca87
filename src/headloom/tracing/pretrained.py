"""Models of Hugging Face from a folder, a GGUF file or by name, without pickle or remote code.

GGUF is the format of llama.cpp: metadata, a table of tensors, and their data, mostly in blocks of a
few bits each. Transformers converts the parts that it knows and silently ignores the rest. A model
without a tensor or a setting of its file would compute something else, so it is refused here.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from headloom.errors import DataError, HeadloomError, InputError, installing, optional_package
from headloom.formats.files import JsonMapping, JsonObject, in_brief, is_there, open_file
from headloom.tracing.arguments import Tokenizer
from headloom.tracing.locating import (
    PACKAGED,
    check_memory,
    check_model_path,
    is_gguf,
    locate,
    packaged_model,
)
from headloom.tracing.sources.transformers import transformers

if TYPE_CHECKING:
    from gguf import GGUFReader
    from transformers import PretrainedConfig

#: Auto classes of models that predict, by the name of the saved class.
_PREDICTING = {
    "ForConditionalGeneration|MTModel|Seq2Seq": "AutoModelForSeq2SeqLM",
    "ForCausalLM|LMHeadModel": "AutoModelForCausalLM",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "MaskedLM": "AutoModelForMaskedLM",
}
#: Settings of a GGUF file that change the model's output, and their names in Transformers.
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
#: Values without effect: a factor of 1, the causal mask, the usual scale.
_NEUTRAL = {"rope.scaling.factor": 1, "attention.causal": True, "attention.scale": 0}
#: Architectures whose file holds an output layer although it equals the embedding.
_TIED = ("falcon", "bloom")

_LOCK = threading.Lock()

#: The settings of a GGUF file, lists left out.
Settings = dict[str, int | float | str]


def load_pretrained(model: Path | str, *, predicting: bool = False) -> tuple[nn.Module, Tokenizer]:
    """Load a model and its tokenizer, in evaluation mode.

    Args:
        model: a folder with config.json, *.safetensors and a tokenizer; a GGUF file; a name of
            `headloom.tracing.locating.PACKAGED`; or a name on the Hugging Face hub.
        predicting: whether to load the head that predicts tokens or labels, if it was saved.
            Tracing does not need it.

    Returns: the model; and its tokenizer, or None for a model that reads only images.

    Raises:
        DataError: no such folder or model; no safetensors (a pickle is never opened); damaged; or
            Transformers does not know the architecture.
        InputError: Transformers is missing.
    """
    check_model_path(str(model))  # before Transformers, whose import takes seconds
    library = transformers()
    try:
        with without_output(library):
            place, cached = locate(model)
            if isinstance(place, Path) and is_gguf(place):
                loaded, tokenizer = _load_gguf(place, library, predicting)
            else:
                if isinstance(place, Path):
                    _check_folder(place)
                loaded, tokenizer = _load(library, place, cached, predicting)
    except HeadloomError:
        raise
    except Exception as error:
        # Any error of another library is caused by the model. Its first sentence names the problem;
        # the others are about that library's options.
        reason = " ".join(str(error).split()).split(". ")[0][:200].rstrip(". ")
        raise DataError(
            f"{model}: cannot load this model: {reason or type(error).__name__}. Give a headloom "
            "run, a folder with config.json, safetensors and a tokenizer, a GGUF file, or the name "
            "of a model."
        ) from error
    return loaded.eval(), tokenizer


@contextmanager
def without_output(library: ModuleType) -> Iterator[None]:
    """Silence the progress bars and warnings of Transformers; errors still raise."""
    bars, hub = library.utils.logging, logging.getLogger("huggingface_hub")
    level = hub.level
    shown, verbosity = bars.is_progress_bar_enabled(), bars.get_verbosity()
    bars.disable_progress_bar()
    bars.set_verbosity_error()
    hub.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        hub.setLevel(level)
        bars.set_verbosity(verbosity)
        if shown:
            bars.enable_progress_bar()


def _load(
    library: ModuleType, source: Path | str, cached: bool, predicting: bool
) -> tuple[nn.Module, Tokenizer]:
    """Return the model and its tokenizer; errors of Transformers pass through."""
    # Never run code that comes with a model.
    options: JsonObject = {"trust_remote_code": False, "local_files_only": cached}
    kind = "AutoModel"
    config = library.AutoConfig.from_pretrained(source, **options)
    if predicting:
        saved = " ".join(getattr(config, "architectures", None) or [])
        kinds = (kind for words, kind in _PREDICTING.items() if re.search(words, saved))
        known = (k for k in kinds if type(config) in getattr(library, k)._model_mapping)
        kind = next(known, kind)
    tokenizer = None
    if _reads_text(config):
        tokenizer = library.AutoTokenizer.from_pretrained(source, **options)
    # `_check_weights` reports weights of another shape, in one line.
    loaded, report = getattr(library, kind).from_pretrained(
        source, use_safetensors=True, output_loading_info=True,
        ignore_mismatched_sizes=True, **options,
    )  # fmt: skip
    _check_weights(loaded, report, predicting=kind != "AutoModel")
    return loaded, tokenizer


def _reads_text(config: object) -> bool:
    """Whether a model has a tokenizer; not one that only sees images."""
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING

    kind: Any = type(config)
    return kind in TOKENIZER_MAPPING or kind not in IMAGE_PROCESSOR_MAPPING


def find_tokenizer(config: PretrainedConfig) -> Tokenizer:
    """Return the tokenizer of where a model of Transformers was loaded from; None: none is there.

    Nothing is downloaded.
    """
    source = config.name_or_path
    if not source or not _reads_text(config):
        return None
    library = transformers()
    if source in PACKAGED:
        source = str(packaged_model(source))
    try:
        with without_output(library):
            return library.AutoTokenizer.from_pretrained(
                source, local_files_only=True, trust_remote_code=False
            )
    except Exception:  # whatever Transformers raises where it finds none
        return None


def _check_weights(model: nn.Module, report: JsonMapping, predicting: bool) -> None:
    """Raise a DataError if missing weights would be initialized at random.

    Parts that do not feed attention, such as a pooler, may be missing unless the model predicts.
    """
    tables = {
        f"{name}.weight" for name, part in model.named_modules() if isinstance(part, nn.Embedding)
    }
    drawn = [
        f"{name} is missing"
        for name in sorted(report["missing_keys"])
        if predicting or name in tables or any(part.isdigit() for part in name.split("."))
    ]
    drawn += [
        f"{name} has the shape {tuple(saved)}, but config.json gives {tuple(expected)}"
        for name, saved, expected in sorted(report["mismatched_keys"])
    ]
    if drawn:
        more = f" (and {len(drawn) - 1:,} more)" if len(drawn) > 1 else ""
        raise DataError(
            f"{model.name_or_path}: the weights are damaged: {drawn[0]}{more}, and would be random "
            "numbers. Download them again."
        )


def _check_folder(folder: Path) -> None:
    """Raise unless a folder holds a model with safetensors that fits into memory."""
    if not folder.is_dir() or not is_there(folder / "config.json", "model configuration"):
        remedy = "Give a run's folder, a model's, a GGUF file, or the name of a model."
        if folder.is_file():
            remedy = f"To trace a text: headloom trace minilm --file {folder}"
        if files := sorted(folder.glob("*.gguf")):
            remedy = f"It is a folder of GGUF files. Give one of them: {files[0]}"
        if is_there(folder / "trace.json", "trace"):
            remedy = (
                "It is a trace: headloom heads, headloom measure and headloom view read it, and "
                "headloom.open in Python."
            )
        raise DataError(f"{folder}: neither a run nor a model (no config.json). {remedy}")
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors") if file.is_file())
    if not weights:
        raise DataError(
            f"{folder}: no weights; expected model.safetensors. A pickle (.bin, .pt) can run any "
            "code and is not opened: convert it by model.save_pretrained(folder) in a place you "
            "trust."
        )
    check_memory(folder, weights)


def _read_gguf(path: Path) -> tuple[GGUFReader, Settings]:
    """Return the header of a GGUF file, read by the package gguf, and its settings."""
    with optional_package("a GGUF file", installing("gguf")):
        import accelerate  # noqa: F401 - required by Transformers
        import gguf
    with open_file(path, "GGUF file") as file:
        if file.read(4) != b"GGUF":
            raise DataError(f"{path}: not a GGUF file (it does not begin with GGUF).")

    class Reader(gguf.GGUFReader):
        """Reader that stops at the end of a file, unlike the package's own."""

        def _get(
            self, offset: int, dtype: Any, count: int = 1, *order: object, **named: object
        ) -> Any:
            if offset + int(count) * np.dtype(dtype).itemsize > len(self.data):
                raise ValueError(f"it ends at byte {len(self.data):,}, before its last field")
            # Slicing the file's array is many times slower.
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
            f"{path}: this GGUF file is damaged: {in_brief(error)}. Download it again."
        ) from error
    return reader, settings


def _load_gguf(path: Path, library: ModuleType, predicting: bool) -> tuple[nn.Module, Tokenizer]:
    """Return the model of a GGUF file, with weights converted to float32, and its tokenizer."""
    reader, settings = _read_gguf(path)
    numbers: Counter[str] = Counter()
    for tensor in reader.tensors:
        numbers[tensor.tensor_type.name] += int(tensor.n_elements)
    expected = numbers.total()
    check_memory(path, 4 * expected)
    # A separate folder, so that Transformers does not read other files beside it.
    with TemporaryDirectory(prefix="headloom-gguf-") as folder, _read_once(reader):
        link = Path(folder, "model.gguf")
        link.symlink_to(path.resolve())
        options = {"gguf_file": link.name, "local_files_only": True, "trust_remote_code": False}
        tokenizer = library.AutoTokenizer.from_pretrained(folder, **options)
        config = library.AutoConfig.from_pretrained(folder, **options)
        kind = "AutoModelForSeq2SeqLM" if config.is_encoder_decoder else "AutoModelForCausalLM"
        loaded, report = getattr(library, kind).from_pretrained(
            folder, config=config, output_loading_info=True, ignore_mismatched_sizes=True,
            dtype=torch.float32, **options,
        )  # fmt: skip
    unread, config = _unread(settings, config), loaded.config
    loaded.name_or_path = loaded.base_model.name_or_path = config.name_or_path = str(path)
    for name, saved, built in sorted(report["mismatched_keys"]):
        unread = f"all of its sizes: {name} is {tuple(saved)}, the model's is {tuple(built)}"
    count = sum(parameter.numel() for parameter in loaded.parameters())
    if settings["general.architecture"] in _TIED:
        expected -= sum(int(t.n_elements) for t in reader.tensors if t.name == "output.weight")
    if not unread and not report["missing_keys"] and count != expected:
        unread = f"all of it: {expected:,} weights, the model has {count:,}"
    if unread:
        raise InputError(
            f"{path}: Transformers {library.__version__} does not read {unread}, so the model "
            "would compute something else. Give it as a folder with safetensors."
        )
    _check_weights(loaded, report, predicting=True)
    for name, parameter in loaded.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise DataError(
                f"{path}: this GGUF file is damaged: {name} has weights that are not finite. "
                "Download it again."
            )
    # The weights are no longer quantized: remove the marks that saving the model would use.
    for holder, name in (
        (config, "quantization_config"), (loaded, "hf_quantizer"), (loaded, "is_quantized"),
        (loaded, "quantization_method"), (config, "_pre_quantization_dtype"),
    ):  # fmt: skip
        vars(holder).pop(name, None)
    # The type of most weights; None: not quantized.
    ((most, _),) = numbers.most_common(1)
    bits = None if most in ("F64", "F32", "F16", "BF16") else re.search(r"\d+", most)
    config.gguf = {"quantization": None if bits is None else f"{bits[0]}-bit ({most})"}
    return loaded if predicting else loaded.base_model, tokenizer


def _unread(settings: Settings, config: PretrainedConfig) -> str | None:
    """Return a setting of the file that the configuration lacks; None: it has all."""
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


@contextmanager
def _read_once(reader: GGUFReader) -> Iterator[None]:
    """Cache the header and the table of tensor names, and draw no progress bars, in the block.

    Transformers reads the whole header for the tokenizer, the configuration and the weights, and
    builds the table of names for every module of the model.
    """
    import gguf
    from transformers import modeling_gguf_pytorch_utils as conversion

    replaced: list[tuple[object, str, object]] = [
        (gguf, "GGUFReader", lambda path: reader),
        (gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map)),
        (conversion, "tqdm", lambda tensors, **options: tensors),
    ]
    with _LOCK, ExitStack() as stack:
        for holder, name, value in replaced:
            stack.callback(setattr, holder, name, getattr(holder, name))
            setattr(holder, name, value)
        yield
