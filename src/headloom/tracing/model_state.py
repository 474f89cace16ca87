"""The state of a model: out of its wrappers, in evaluation, unchanged when a block ends."""

from __future__ import annotations

import copy
import ctypes
import random
import sys
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from headloom.errors import InputError
from headloom.formats.files import JsonObject
from headloom.mechanism.watching import is_compiled
from headloom.tracing.sources.transformers import is_transformers_model, transformers


def unwrapped(model: object, what: str) -> nn.Module:
    """The model inside of wrappers, whose weights are the same.

    Args: model: any object. what: who asks, for the message.
    Raises: InputError: it is no model at all.
    """
    while True:
        if isinstance(model, (DataParallel, DistributedDataParallel)):
            model = model.module
        elif is_compiled(model):
            model = getattr(model, "_orig_mod")  # noqa: B009 - no attribute of every object
        else:
            break
    if isinstance(model, nn.Module):
        return model
    shown = f" {model!r:.60}" if isinstance(model, str) else ""
    raise InputError(
        f"{what}: the model is a {type(model).__name__}{shown}; expected a torch module. Open it "
        "first: AutoModel.from_pretrained(...) of Transformers, or give its name to `headloom "
        "trace`."
    )


class Hook:
    """A hook that calls a function; a copy of it, also a pickled one, calls nothing.

    A training copies its model (the best so far, an average of weights) and saves it whole, by
    pickle too, while headloom looks on.
    """

    def __init__(self, call: Callable[..., object] | None = None) -> None:
        self._call = call

    def __call__(self, *given: object, **named: object) -> object:
        return None if self._call is None else self._call(*given, **named)

    def __deepcopy__(self, memo: object) -> Hook:
        return Hook()

    def __reduce__(self) -> tuple[type[Hook], tuple[()]]:
        return Hook, ()


@contextmanager
def as_written() -> Iterator[None]:
    """Run what is compiled as it is written, while the block runs.

    Compiled code calls no attention function or mode that came after it, and would be compiled anew
    with all that watches it.
    """
    # Where none of these was loaded nothing is compiled, and loading the compiler takes long.
    if "torch._dynamo" in sys.modules or "torch.nn.attention.flex_attention" in sys.modules:
        with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
            # torch 2.12, of what flex_attention compiles by itself.
            warnings.filterwarnings("ignore", "torch.compile with fullgraph=True found no compiled")
            yield
    else:
        yield


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode and as it is written; afterwards each of its modules as it was.

    See `as_written`.
    """
    before = [(module, module.training) for module in model.modules()]
    try:
        # Not model.eval(): a model may have its own.
        nn.Module.eval(model)
        with as_written():
            yield
    finally:
        for module, training in before:
            module.training = training


#: What a module may write into. (Others may refuse to be written to.)
_KEPT = (list, dict, set, OrderedDict, defaultdict)
#: The tables of a module that are put back entry by entry.
_TABLES = (
    *("_modules", "_buffers", "_parameters", "_forward_hooks", "_forward_hooks_with_kwargs"),
    *("_forward_hooks_always_called", "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"),
)


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Put back what a model's modules hold, by name, and their hooks, when the block ends.

    Buffers that were changed in place are put back too. Transformers installs hooks in the first
    pass that asks for hidden states, and marks the model: of the one without the other it would
    install them twice.
    """
    before = [
        (module, dict(vars(module)), {name: dict(vars(module)[name]) for name in _TABLES})
        for module in model.modules()
    ]
    contents = [(own, _version(own), own.detach().clone()) for own in model.buffers()]
    # What is written into lists, dictionaries and sets of a module: a cache made by hand, say.
    held = [
        (several, copy.copy(several))
        for module in model.modules()
        for name, several in vars(module).items()
        if name not in _TABLES and type(several) in _KEPT
    ]
    try:
        yield
    finally:
        with torch.inference_mode():
            # Also a buffer of a model that was made in this mode.
            for buffer, version, content in contents:
                if version is None or version != _version(buffer):
                    buffer.copy_(content)
        for several, was in held:
            several.clear()
            several.extend(was) if isinstance(several, list) else several.update(was)
        for module, attributes, entries in before:
            own = vars(module)
            own.clear()
            own.update(attributes)
            for name, registered in entries.items():
                own[name].clear()
                own[name].update(registered)


def _version(tensor: Tensor) -> int | None:
    """How often a tensor was changed in place; None: torch does not count it."""
    return None if tensor.is_inference() else tensor._version


@contextmanager
def same_random_numbers() -> Iterator[None]:
    """Put the random numbers of Python, NumPy and torch back to where they were."""
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if devices is not None:
            torch.cuda.set_rng_state_all(devices)


def give_back() -> None:
    """Hand free memory back to the system, where the C library (glibc) can.

    By itself it keeps the holes between tensors that stay, too small for the next. Of the inputs of
    12 blocks at 8,192 tokens these were one or two gigabytes; of the caches of 200 steps after
    2,000 tokens of SmolLM2 up to half a gigabyte, in some runs.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def describe(model: nn.Module) -> JsonObject:
    """Its name, class, type and size, the version of the library; of a quantised one its bits."""
    kind, config = type(model), getattr(model, "config", None)
    if not is_transformers_model(model):
        return {
            "name": kind.__name__,
            "class": f"{kind.__module__}.{kind.__qualname__}",
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
        }
    return {
        "name": getattr(config, "name_or_path", "") or kind.__name__,
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "type": getattr(config, "model_type", None),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "transformers": transformers().__version__,
        **_quantization(config),
    }


def _quantization(config: Any) -> JsonObject:
    """How the weights were stored in fewer bits, where they were."""
    gguf = getattr(config, "gguf", None)
    if isinstance(gguf, dict):
        return gguf
    asked = getattr(config, "quantization_config", None)
    if asked is None:
        return {}
    # Of a file it is a dictionary, of a model that was loaded with one an object.
    method = asked.get("quant_method") if isinstance(asked, dict) else asked.quant_method
    return {"quantization": str(getattr(method, "value", method))}
