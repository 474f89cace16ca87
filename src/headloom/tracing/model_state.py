"""State of a model: without wrappers, in evaluation mode, restored when a block ends."""

from __future__ import annotations

import copy
import ctypes
import random
import sys
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from headloom.errors import InputError
from headloom.formats.files import JsonObject
from headloom.mechanism.watching import is_compiled
from headloom.tracing.sources.transformers import is_transformers_model, transformers


def unwrapped(model: object, what: str) -> nn.Module:
    """Return the model inside wrappers such as DataParallel and torch.compile.

    Args: model: any object. what: the operation, for the message.
    Raises: InputError: not a torch module.
    """
    while True:
        if isinstance(model, (DataParallel, DistributedDataParallel)):
            model = model.module
        elif is_compiled(model):
            model = getattr(model, "_orig_mod")  # noqa: B009 - not an attribute of `object`
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
    """Hook that calls a function; its copies, pickled ones too, call nothing.

    A training may copy or pickle its model (the best so far, averaged weights) while headloom
    watches it.
    """

    def __init__(self, call: Callable[..., object] | None = None) -> None:
        self._call = call

    def __call__(self, *args: object, **keywords: object) -> object:
        return None if self._call is None else self._call(*args, **keywords)

    def __deepcopy__(self, memo: object) -> Hook:
        return Hook()

    def __reduce__(self) -> tuple[type[Hook], tuple[()]]:
        return Hook, ()


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run compiled code eagerly while the block runs.

    Compiled code does not call attention functions or modes installed after its compilation, and
    hooks would make torch compile it again.
    """
    # If neither is loaded nothing is compiled, and loading the compiler takes long.
    if "torch._dynamo" in sys.modules or "torch.nn.attention.flex_attention" in sys.modules:
        with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
            # torch 2.12: flex_attention compiles a part by itself.
            warnings.filterwarnings("ignore", "torch.compile with fullgraph=True found no compiled")
            yield
    else:
        yield


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put a model in evaluation mode, uncompiled; restore each module when the block ends."""
    before = [(module, module.training) for module in model.modules()]
    try:
        # Not model.eval(): a model may override it.
        nn.Module.eval(model)
        with uncompiled():
            yield
    finally:
        for module, training in before:
            module.training = training


#: Types of attributes whose contents are restored. (Others may refuse to be written to.)
_RESTORED = (list, dict, set, OrderedDict, defaultdict)
#: Tables of a module that are restored entry by entry.
_TABLES = (
    *("_modules", "_buffers", "_parameters", "_forward_hooks", "_forward_hooks_with_kwargs"),
    *("_forward_hooks_always_called", "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"),
)


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Restore the attributes, buffers and hooks of a model's modules when the block ends.

    Buffers that were changed in place are restored too. Transformers installs hooks in the first
    pass that returns hidden states, and marks the model: restoring only one of the two would make
    it install them twice.
    """
    before = [
        (module, dict(vars(module)), {name: dict(vars(module)[name]) for name in _TABLES})
        for module in model.modules()
    ]
    contents = [(part, _version(part), part.detach().clone()) for part in model.buffers()]
    # Lists, dictionaries and sets of a module: a cache made by hand, for example.
    containers = [
        (container, copy.copy(container))
        for module in model.modules()
        for name, container in vars(module).items()
        if name not in _TABLES and type(container) in _RESTORED
    ]
    try:
        yield
    finally:
        with torch.inference_mode():
            # Required for the buffers of a model that was made in inference mode.
            for buffer, version, content in contents:
                if version is None or version != _version(buffer):
                    buffer.copy_(content)
        for container, was in containers:
            container.clear()
            container.extend(was) if isinstance(container, list) else container.update(was)
        for module, attributes, entries in before:
            state = vars(module)
            state.clear()
            state.update(attributes)
            for name, registered in entries.items():
                state[name].clear()
                state[name].update(registered)


def _version(tensor: Tensor) -> int | None:
    """Return how often a tensor was changed in place; None: torch does not count it."""
    return None if tensor.is_inference() else tensor._version


@contextmanager
def random_state_restored() -> Iterator[None]:
    """Restore the random states of Python, NumPy and torch when the block ends."""
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


def release_memory() -> None:
    """Return free memory to the system, where the C library (glibc) can.

    By itself glibc keeps the gaps between live tensors, too small for the next ones: one or two
    gigabytes for the inputs of 12 blocks at 8,192 tokens; up to half a gigabyte, in some runs, for
    the caches of 200 steps after 2,000 tokens of SmolLM2.
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


def _quantization(config: object) -> JsonObject:
    """Return the quantization of the weights; empty: none."""
    gguf = getattr(config, "gguf", None)
    if isinstance(gguf, dict):
        return gguf
    settings = getattr(config, "quantization_config", None)
    if settings is None:
        return {}
    # A dictionary when read from a file, an object when the model was loaded with one.
    method = settings.get("quant_method") if isinstance(settings, dict) else settings.quant_method
    return {"quantization": str(getattr(method, "value", method))}
