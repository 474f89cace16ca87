"""Models of Hugging Face from a folder, a GGUF file or by name: no pickle, no code of theirs."""

from __future__ import annotations

import inspect
import json
import logging
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headloom.errors import DataError, HeadloomError, InputError
from headloom.formats.files import JsonObject, check_file, is_there, read_json
from headloom.tracing.arguments import Arguments, Tokenizer
from headloom.tracing.gguf import load_gguf
from headloom.tracing.inputs import token_limit
from headloom.tracing.locating import Located, check_memory, locate
from headloom.tracing.sources.transformers import transformers

__all__ = ["image_inputs", "load_pretrained", "predicts", "split_windows", "text_inputs"]

#: Ends of the names of files that hold pickles.
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def load_pretrained(
    model: Path | str, *, predicting: bool = False, labelling: bool = False, text: bool = True
) -> tuple[nn.Module, Any]:
    """A model and its tokenizer, in evaluation mode.

    Args:
        model: a folder with config.json, *.safetensors and a tokenizer; a GGUF file; a name of
            `headloom.tracing.packaged`; or a name on the Hugging Face hub.
        predicting: with the part that predicts tokens, where the model was saved with one.
            Without: tracing reads attention only.
        labelling: with predicting, also with the part that gives a whole text a label.

    Raises:
        DataError: no such folder or model; no safetensors (a pickle is never opened); damaged.
        InputError: Transformers is missing, or does not know the architecture.
    """
    located = locate(model)
    library = transformers()
    if located.folder and not located.gguf:
        _check_folder(Path(located.source), library)
    hub, bars = logging.getLogger("huggingface_hub"), library.utils.logging
    level, shown, verbosity = hub.level, bars.is_progress_bar_enabled(), bars.get_verbosity()
    hub.setLevel(logging.CRITICAL)
    bars.disable_progress_bar()
    # Its table of weights that do not fit: what matters of it is an error of ours.
    bars.set_verbosity_error()
    try:
        loaded, tokenizer = _load(library, located, predicting, labelling, text)
    except HeadloomError:
        raise
    except Exception as error:
        # Whatever a configuration makes another library raise, it is not a fault of headloom.
        if type(error).__name__ == "SafetensorError":
            raise DataError(
                f"{model}: the weights are damaged: {error}. Get them again."
            ) from error
        # Their first sentence says what is wrong; the others are of their own options.
        reason = " ".join(str(error).split()).split(". ")[0][:200].rstrip(". ")
        raise DataError(
            f"{model}: cannot load this model: {reason or type(error).__name__}. Give a headloom "
            "run, a folder with config.json, safetensors and a tokenizer, a GGUF file, or the name "
            "of a model."
        ) from error
    finally:
        hub.setLevel(level)
        bars.set_verbosity(verbosity)
        if shown:
            bars.enable_progress_bar()
    network: nn.Module = loaded
    return nn.Module.eval(network), tokenizer


def _load(
    library: Any, located: Located, predicting: bool, labelling: bool, text: bool
) -> tuple[Any, Any]:
    """The model and its tokenizer; whatever Transformers raises is raised."""
    if located.gguf:
        path = Path(located.source)
        loaded, tokenizer, report = load_gguf(path, library, predicting=predicting, text=text)
        _check_weights(loaded, report, predicting=True)
        return loaded, tokenizer
    # Code that a model brings along is never run.
    options: JsonObject = {"trust_remote_code": False, "local_files_only": located.cached}
    tokenizer = None
    if text:
        tokenizer = library.AutoTokenizer.from_pretrained(located.source, **options)
        longest = tokenizer.model_max_length
        # The library takes whatever is written, and fails at the first text.
        if isinstance(longest, bool) or not isinstance(longest, int | float):
            raise DataError(
                f"{located.source}: this tokenizer is damaged: tokenizer_config.json says "
                f"model_max_length is {longest!r:.40}, expected a number. Get it again."
            )
    kind = "AutoModel"
    if predicting:
        config = library.AutoConfig.from_pretrained(located.source, **options)
        kind = _predicting_class(config, labelling)
    automatic = getattr(library, kind)
    # Weights of another shape are told by us, in one line that names one.
    loaded, report = automatic.from_pretrained(
        located.source,
        use_safetensors=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,
        **options,
    )
    _check_weights(loaded, report, predicting=kind != "AutoModel")
    return loaded, tokenizer


def _check_weights(model: nn.Module, report: JsonObject, predicting: bool) -> None:
    """Raise a DataError where weights that were not saved would be drawn at random.

    Not of parts that no attention reads, such as a pooler, unless the model is to predict.
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
        f"{name} has the shape {tuple(saved)}, and config.json says {tuple(expected)}"
        for name, saved, expected in sorted(report["mismatched_keys"])
    ]
    if drawn:
        more = f" (and {len(drawn) - 1:,} more)" if len(drawn) > 1 else ""
        raise DataError(
            f"{model.name_or_path}: the weights are damaged: {drawn[0]}{more}, and would be drawn "
            "at random. Get them again."
        )


def _predicting_class(config: Any, labelling: bool) -> str:
    """The automatic class that loads a model with the part it was saved with."""
    saved = " ".join(getattr(config, "architectures", None) or [])
    if any(ending in saved for ending in ("ForConditionalGeneration", "MTModel", "Seq2Seq")):
        return "AutoModelForSeq2SeqLM"
    if any(ending in saved for ending in ("ForCausalLM", "LMHeadModel")):
        return "AutoModelForCausalLM"
    if labelling and "ForSequenceClassification" in saved:
        return "AutoModelForSequenceClassification"
    return "AutoModelForMaskedLM" if "MaskedLM" in saved else "AutoModel"


def predicts(config: Any) -> bool:
    """Whether a model was saved with a part that predicts tokens, or a label of a whole text.

    True where its configuration does not say.
    """
    saved = getattr(config, "architectures", None)
    return not saved or _predicting_class(config, True) != "AutoModel"


def _check_folder(folder: Path, library: Any) -> None:
    """Raise unless a folder holds a model that can be opened without a pickle."""
    if not folder.is_dir():
        raise DataError(
            f"{folder}: a file; expected a run, or a model: a folder with config.json in it, or a "
            "GGUF file."
        )
    if not is_there(folder / "config.json", "model configuration"):
        inside = sorted(folder.glob("*.gguf"))
        if inside:
            raise DataError(f"{folder}: a folder of GGUF files. Give one of them: {inside[0]}")
        if is_there(folder / "trace.json", "trace"):
            raise DataError(
                f"{folder}: a trace, not a model. headloom heads, headloom measure and headloom "
                "view read it; here give a run's folder, a model's, or the name of a model."
            )
        raise DataError(
            f"{folder}: neither a run (it has no run.json) nor a model (it has no config.json). "
            "Give a run's folder, a model's, or the name of a model."
        )
    config = read_json(folder / "config.json", "model configuration")
    kind = config.get("model_type") if isinstance(config, dict) else None
    if not isinstance(kind, str) or kind not in library.CONFIG_MAPPING:
        name = json.dumps(kind)[:60]
        raise InputError(
            f"{folder}: config.json names the architecture {name}, which Transformers "
            f"{library.__version__} does not know. Upgrade it (pip install -U transformers), or "
            "choose another model; code that comes with a model is not run."
        )
    files = sorted(folder.iterdir())
    for file in files:
        if file.suffix not in _PICKLES and is_there(file) and not file.is_dir():
            check_file(file, "part of a model")
    weights = sum(f.stat().st_size for f in files if f.suffix == ".safetensors" and f.is_file())
    if weights:
        check_memory(folder, weights)
        return
    pickles = [file.name for file in files if file.suffix in _PICKLES]
    if pickles:
        raise DataError(
            f"{folder}: the weights are a pickle ({pickles[0]}), which can run any code when it is "
            "opened. Convert them to safetensors: model.save_pretrained(folder) in a place you "
            "trust."
        )
    raise DataError(f"{folder}: no weights; expected model.safetensors.")


def text_inputs(
    model: nn.Module, tokenizer: Tokenizer, text: str, target: str | None, generates: bool = False
) -> Arguments | str:
    """What `headloom.trace` reads for a text, and for an encoder-decoder its target.

    generates: whether the model is to write the target itself.

    Raises: InputError: a target is missing, or one too many.
    """
    config: Any = model.config
    if not getattr(config, "is_encoder_decoder", False):
        if target is not None:
            kind = config.model_type
            raise InputError(f"--target: a {kind} reads one text and has no target. Leave it out.")
        return text
    if generates:
        if target is not None:
            raise InputError("--target and --generate: give the target, or let the model write it.")
        return text
    if target is None:
        raise InputError(
            f"a {config.model_type} reads a source and writes a target: give its text as --target, "
            "or let the model write it, as with --generate 40."
        )
    start = getattr(config, "decoder_start_token_id", None)
    target_ids = tokenizer(text_target=target, verbose=False)["input_ids"]
    first = [] if start is None else [start]
    return {
        **tokenizer(text, return_tensors="pt", verbose=False),
        "decoder_input_ids": torch.tensor([first + target_ids]),
    }


def image_inputs(
    source: str, model: nn.Module, image: Any, text: str | None
) -> tuple[Arguments, Any]:
    """What `headloom.trace` reads for an image, by the model's own processor; and the tokenizer.

    Args:
        source: the folder or the name of the model.
        model: of Hugging Face.
        image: from `headloom.formats.images.open_image`.
        text: what the model reads beside it; None: nothing.

    Raises: InputError: the model sees no images, has no processor, or reads a text too.
    """
    library = transformers()
    takes = inspect.signature(model.forward).parameters
    kind = getattr(model.config, "model_type", type(model).__name__)
    if "pixel_values" not in takes:
        raise InputError(f"a {kind} reads no images (pixel_values). Give it a --text.")
    level = library.utils.logging.get_verbosity()
    library.utils.logging.set_verbosity_error()
    try:
        if "input_ids" in takes and text is None:
            raise InputError(f"a {kind} reads a text too: give it as --text.")
        if text is not None and getattr(model.config, "image_token_id", None) is not None:
            return _text_with_image(library, source, image, text)
        processor = library.AutoImageProcessor.from_pretrained(source, trust_remote_code=False)
        inputs = dict(processor(image, return_tensors="pt"))
        tokenizer = None
        if "input_ids" in takes:
            tokenizer = library.AutoTokenizer.from_pretrained(source, trust_remote_code=False)
            inputs.update(tokenizer(text, return_tensors="pt", verbose=False))
        elif text is not None:
            raise InputError(f"--text: a {kind} sees an image and reads no text.")
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        reason = " ".join(str(error).split())[:120].rstrip(". ")
        raise InputError(
            f"{source}: no processor that makes inputs of an image ({reason}). It is in "
            "preprocessor_config.json; save it beside the model: processor.save_pretrained(folder)."
        ) from error
    finally:
        library.utils.logging.set_verbosity(level)
    return inputs, tokenizer


def _text_with_image(library: Any, source: str, image: Any, text: str) -> tuple[Arguments, Any]:
    """What a model reads that has an image among the tokens of its text; and its processor.

    The image stands where the text has the image token of the processor, else before the text.
    """
    processor = library.AutoProcessor.from_pretrained(source, trust_remote_code=False)
    token = str(processor.image_token)
    inputs = dict(
        processor(images=image, text=text if token in text else token + text, return_tensors="pt")
    )
    inputs.pop("labels", None)
    return inputs, processor


def split_windows(
    model: nn.Module, tokenizer: Tokenizer, text: str, window: int, overlap: int | None
) -> list[Arguments]:
    """A text in overlapping windows, each as a model reads it, special tokens and offsets included.

    Args:
        window: tokens of each, special ones included.
        overlap: tokens that two of them share; None: a quarter.

    Raises: InputError: a window does not fit the model, or a window has no room for what is new.
    """
    config: Any = model.config
    if getattr(config, "is_encoder_decoder", False):
        raise InputError(f"--window: a {config.model_type} writes a target for the whole source.")
    if not getattr(tokenizer, "is_fast", False):
        raise InputError("--window needs a tokenizer of the tokenizers library (tokenizer.json).")
    limit = token_limit(model)
    if limit is not None and window > limit:
        raise InputError(
            f"--window {window}: {type(model).__name__} reads {limit} at most. Give --window "
            f"{limit} or less."
        )
    special = len(tokenizer("", verbose=False)["input_ids"])
    shared = (window - special) // 4 if overlap is None else overlap
    if window - special - shared < 1:
        raise InputError(
            f"--window {window}: with {special} special tokens and {shared} of overlap there is no "
            "room for new ones. Give a larger --window."
        )
    if not text.strip():
        raise InputError("the text is empty; give at least one character that is no space.")
    encoded = tokenizer(
        text,
        truncation=True,
        max_length=window,
        stride=shared,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        verbose=False,
    )
    names = [name for name in encoded if name != "overflow_to_sample_mapping"]
    return [
        {name: torch.tensor([encoded[name][number]]) for name in names}
        for number in range(len(encoded["input_ids"]))
    ]
