"""`headloom.load` and `headloom.open`: open a model, a run or a trace."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeAlias, TypeVar, cast

from torch import nn

from headloom.api.model import Model
from headloom.api.pretrained_model import PretrainedModel
from headloom.api.run import Run
from headloom.api.trace import Trace
from headloom.errors import DataError, InputError
from headloom.formats.manifest import MANIFEST
from headloom.formats.run import is_run
from headloom.formats.trace import TraceData
from headloom.models.huggingface.conversion import load_module
from headloom.tracing.huggingface import TransformersReader, reader_of
from headloom.tracing.locating import is_gguf, is_named
from headloom.tracing.model_state import describe
from headloom.tracing.pretrained import load_pretrained

#: Argument types of `load`.
Source: TypeAlias = Model | nn.Module | Path | str
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def load(model: Source | TraceData, tokenizer: object = None) -> Model:
    """Load a model with its tokenizer, from a path, a name or a module.

    Args:
        model: the folder of a run, or of a module by its `save_pretrained`; a packaged name
            ("minilm", "smollm2"); a folder of Transformers or its name on the Hugging Face hub; a
            GGUF file, also one of Ollama, "ollama:NAME:TAG"; a model of Transformers; any module of
            torch; or a result of `load`.
        tokenizer: instead of the model's own. A model of Transformers finds its tokenizer where it
            was loaded from, on this machine; nothing is downloaded.

    Returns: a Model: of a run, a `Run`. A folder's model has the prediction head it was saved with.

    Raises:
        DataError: no such run or model, or a damaged one.
        InputError: not a model; Transformers is missing.
    """
    if isinstance(model, Model) and tokenizer is None:
        return model
    if isinstance(model, Model):
        model = model.module
    if isinstance(model, nn.Module):
        reader = reader_of(model, "load")
        if not isinstance(reader, TransformersReader):
            return Model(type(model).__name__, model, tokenizer)
        name = str(getattr(reader.model, "name_or_path", "") or reader.name)
        return PretrainedModel(name, reader.model, tokenizer, whole=True)
    if isinstance(model, TraceData):
        raise InputError("load: this is a trace, not a model. Give the model or its name.")
    if not isinstance(model, str | os.PathLike):
        raise InputError(
            f"load: {type(model).__name__}; expected a run's folder, a model's folder or name, a "
            "GGUF file, or a module of torch."
        )
    opened = open_model(model, tokenizer)
    if isinstance(opened, PretrainedModel) and (
        bits := describe(opened.module).get("quantization")
    ):
        print(
            f"headloom: {model}: quantised weights ({bits}) are converted to float32",
            file=sys.stderr,
        )
    return opened


def open_model(name: Path | str, tokenizer: object = None) -> Model:
    """Open a run, or a model by its folder, file or name; like `load`, without messages."""
    if is_run(name) or (Path(name) / "history").is_dir():  # the latter lacks its run.json
        return Run(name)
    if (module := load_module(Path(name))) is not None:
        return Model(str(name), module, tokenizer)
    network, saved = load_pretrained(name, predicting=True)
    return PretrainedModel(str(name), network, saved if tokenizer is None else tokenizer)


def open(path: Path | str) -> Trace | Run | list[Trace]:
    """Open a trace, a run, or all traces of a folder.

    Returns: a Trace, whose layers are read on first use; a Run; or a list of traces, in the order
    of their names.

    Raises:
        DataError: missing, incomplete, damaged, or of a newer version; or a model, which
            `headloom.load` loads.
    """
    folder = Path(path)
    if is_run(folder):
        return Run(folder)
    inside = sorted(manifest.parent for manifest in folder.glob(f"*/{MANIFEST}"))
    if inside and not (folder / MANIFEST).exists():
        return [Trace.open(path) for path in inside]
    if is_named(str(path)) or (folder / "config.json").exists() or is_gguf(folder):
        raise DataError(
            f"{path}: a model, not a trace, a run, or a folder of traces. Load it: "
            f"headloom.load({str(path)!r})."
        )
    return Trace.open(folder)


def _loading(
    method: Callable[Concatenate[Model, Parameters], Result],
) -> Callable[Concatenate[Source, Parameters], Result]:
    """Convert a method to a function that loads its model first; see `load`."""

    @wraps(method)
    def function(model: Source, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        # llama.cpp reads the file itself.
        by_torch = isinstance(model, Model) or kwargs.get("engine") is None
        opened = load(model) if by_torch else Model(str(model), nn.Identity())
        made: Result = getattr(opened, method.__name__)(*args, **kwargs)
        return made

    signature = inspect.signature(method)
    first, *rest = signature.parameters.values()
    function.__module__, function.__qualname__ = __name__, method.__name__
    vars(function)["__signature__"] = signature.replace(
        parameters=[first.replace(name="model"), *rest]
    )
    return cast(Callable[Concatenate[Source, Parameters], Result], function)


ablate = _loading(Model.ablate)
evaluate = _loading(Model.evaluate)
predict = _loading(Model.predict)
relevance = _loading(Model.relevance)
trace = _loading(Model.trace)
