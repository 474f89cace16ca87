"""Models of Hugging Face from a folder or by name: safetensors only, no code of theirs is run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from weft.errors import DataError, InputError
from weft.formats.files import read_json
from weft.tracing.interface import transformers

__all__ = ["load_pretrained", "text_inputs"]

#: Ends of the names of files that hold pickles.
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def load_pretrained(model: Path | str, *, predicting: bool = False) -> tuple[nn.Module, Any]:
    """A model and its tokenizer, in evaluation mode.

    Args:
        model: a folder with config.json, *.safetensors and a tokenizer; or a name on the Hugging
            Face hub.
        predicting: with the part that predicts tokens, where the model was saved with one.
            Without: tracing reads attention only.

    Raises:
        DataError: no such folder or model; no safetensors (a pickle is never opened); damaged.
        InputError: Transformers is missing, or does not know the architecture.
    """
    folder = Path(model)
    is_path = folder.is_absolute() or str(model).startswith(".") or str(model).count("/") > 1
    if is_path and not folder.exists():
        raise DataError(
            f"{model}: no such run or model. Check the path, or train a run: weft train."
        )
    library = transformers()
    if folder.exists():
        _check_folder(folder, library)
    source = str(model)
    logging = library.utils.logging
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        # Code that a model brings along is never run.
        tokenizer = library.AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        kind = "AutoModel"
        if predicting:
            config = library.AutoConfig.from_pretrained(source, trust_remote_code=False)
            kind = _predicting_class(config)
        loaded = getattr(library, kind).from_pretrained(
            source, trust_remote_code=False, use_safetensors=True
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, TypeError) as error:
        reason = " ".join(str(error).split())[:200].rstrip(". ")
        raise DataError(
            f"{source}: cannot load this model: {reason or type(error).__name__}. Give a weft "
            "run, a folder with config.json, safetensors and a tokenizer, or the name of a model."
        ) from error
    except Exception as error:
        # The library that reads the weights has errors of its own, which are plain exceptions.
        if type(error).__name__ != "SafetensorError":
            raise
        raise DataError(f"{source}: the weights are damaged: {error}. Get them again.") from error
    finally:
        if bars:
            logging.enable_progress_bar()
    network: nn.Module = loaded
    return nn.Module.eval(network), tokenizer


def _predicting_class(config: Any) -> str:
    """The automatic class that loads a model with the part it was saved with."""
    saved = " ".join(getattr(config, "architectures", None) or [])
    if any(ending in saved for ending in ("ForConditionalGeneration", "MTModel", "Seq2Seq")):
        return "AutoModelForSeq2SeqLM"
    if any(ending in saved for ending in ("ForCausalLM", "LMHeadModel")):
        return "AutoModelForCausalLM"
    return "AutoModelForMaskedLM" if "MaskedLM" in saved else "AutoModel"


def _check_folder(folder: Path, library: Any) -> None:
    """Raise unless a folder holds a model that can be opened without a pickle."""
    if not folder.is_dir():
        raise DataError(f"{folder}: not a model: a model is a folder with config.json in it.")
    config = read_json(folder / "config.json", "model configuration")
    kind = config.get("model_type") if isinstance(config, dict) else None
    if not isinstance(kind, str) or kind not in library.CONFIG_MAPPING:
        said = json.dumps(kind)[:60]
        raise InputError(
            f"{folder}: config.json names the architecture {said}, which Transformers "
            f"{library.__version__} does not know. Upgrade it (pip install -U transformers), or "
            "choose another model; code that comes with a model is not run."
        )
    if any(folder.glob("*.safetensors")):
        return
    pickles = sorted(file.name for file in folder.iterdir() if file.suffix in _PICKLES)
    if pickles:
        raise DataError(
            f"{folder}: the weights are a pickle ({pickles[0]}), which can run any code when it is "
            "opened. Convert them to safetensors: model.save_pretrained(folder) in a place you "
            "trust."
        )
    raise DataError(f"{folder}: no weights; expected model.safetensors.")


def text_inputs(
    model: nn.Module, tokenizer: Any, text: str, target: str | None
) -> dict[str, Any] | str:
    """What `weft.trace` reads for a text, and for an encoder-decoder its target.

    Raises: InputError: a target is missing, or one too many.
    """
    config: Any = model.config
    if not getattr(config, "is_encoder_decoder", False):
        if target is not None:
            raise InputError(f"--target: a {config.model_type} reads one text and has no target.")
        return text
    if target is None:
        raise InputError(
            f"a {config.model_type} reads a source and writes a target: give its text as --target."
        )
    start = getattr(config, "decoder_start_token_id", None)
    target_ids = tokenizer(text_target=target, verbose=False)["input_ids"]
    first = [] if start is None else [start]
    return {
        **tokenizer(text, return_tensors="pt", verbose=False),
        "decoder_input_ids": torch.tensor([first + target_ids]),
    }
