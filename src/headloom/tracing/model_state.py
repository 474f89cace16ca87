"""The state of a model: out of its wrappers, recorded once at a time, in evaluation, put back."""

from __future__ import annotations

import copy
import random
import sys
import warnings
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from headloom.errors import InputError
from headloom.mechanism.module_paths import is_compiled
from headloom.tracing.sources.shared_switch import SharedSwitch

__all__ = [
    "as_written",
    "evaluation_mode",
    "recording_alone",
    "same_random_numbers",
    "unchanged",
    "unwrapped",
    "without_hooks",
]

#: An attribute of each module of a model that is being recorded.
_MARK = "_headloom_recording"


def unwrapped(model: Any, what: str) -> nn.Module:
    """The model inside of wrappers, whose weights are the same.

    Args:
        model: any object.
        what: who asks, for the message.

    Raises: InputError: it is no model at all.
    """
    while True:
        if isinstance(model, (DataParallel, DistributedDataParallel)):
            model = model.module
        elif is_compiled(model):
            model = model._orig_mod
        else:
            break
    if isinstance(model, nn.Module):
        return model
    kind = type(model).__name__
    shown = f" {model!r:.60}" if isinstance(model, str) else ""
    raise InputError(
        f"{what}: the model is a {kind}{shown}; expected a torch module. Open it first: "
        "AutoModel.from_pretrained(...) of Transformers, or give its name to `headloom trace`."
    )


class _Recording:
    """Stands for one recording of a model, as long as it goes on."""


class _Mark(weakref.ref[_Recording]):
    """Says of a module that it is being recorded; a pickled one says nothing."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


@contextmanager
def recording_alone(model: nn.Module, operation: str) -> Iterator[None]:
    """Let no other trace or watch of a model, or of a part of it, begin while the block runs.

    Raises: InputError: one goes on, around this one or in another thread.
    """
    recording = _Recording()
    # A copy of the model that is made meanwhile must not be marked for good.
    mark = _Mark(recording)
    marked = []
    try:
        for module in model.modules():
            attributes = vars(module)
            there = attributes.setdefault(_MARK, mark)
            if there is not mark and (there is None or there() is None):
                attributes[_MARK] = there = mark
            if there is not mark:
                raise InputError(
                    f"{operation}: this {type(model).__name__} is being traced or watched already, "
                    "by a block around this call or in another thread. End that first; what the "
                    "model did in a block of headloom.watch is in its traces."
                )
            marked.append(module)
        yield
    finally:
        for module in marked:
            vars(module).pop(_MARK, None)


@contextmanager
def as_written() -> Iterator[None]:
    """Run what is compiled as it is written, while the block runs.

    Compiled code calls no attention function or mode that came after it, and would be compiled anew
    with all that watches it.
    """
    # Where none of these was loaded nothing is compiled, and loading the compiler takes long.
    loaded = "torch._dynamo" in sys.modules or "torch.nn.attention.flex_attention" in sys.modules
    with _as_written.on() if loaded else nullcontext():
        yield


@contextmanager
def _not_compiled() -> Iterator[None]:
    with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        # torch 2.12, of what flex_attention compiles by itself.
        warnings.filterwarnings("ignore", "torch.compile with fullgraph=True found no compiled")
        yield


#: On: what was compiled runs as it is written. The compiler's stance is that of all threads.
_as_written = SharedSwitch(_not_compiled)


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


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Put back what a model's modules hold, by name, and their hooks, when the block ends.

    Buffers that were changed in place are put back too.

    Transformers installs hooks in the first pass that asks for hidden states, and marks the model:
    of the one without the other it would install them twice.
    """
    hooks = ("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called",
             "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs")  # fmt: skip
    inner = ("_modules", "_buffers", "_parameters", *hooks)
    before = [
        (module, dict(vars(module)), {name: dict(vars(module)[name]) for name in inner})
        for module in model.modules()
    ]
    contents = [(own, _version(own), own.detach().clone()) for own in model.buffers()]
    # What is written into lists, dictionaries and sets of a module: a cache made by hand, say.
    held = [
        (several, copy.copy(several))
        for module in model.modules()
        for name, several in vars(module).items()
        if name not in inner and type(several) in _KEPT
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


#: Packages whose hooks are part of a model.
_LIBRARIES = (__name__.split(".")[0], "torch", "transformers", "accelerate", "deepspeed")


@contextmanager
def without_hooks(model: nn.Module) -> Iterator[None]:
    """Take off the forward hooks that whoever uses a model set on it, while the block runs."""
    before = [
        (hooks, dict(hooks))
        for module in model.modules()
        for hooks in (module._forward_hooks, module._forward_pre_hooks)
    ]
    try:
        for hooks, registered in before:
            for key, hook in registered.items():
                if str(getattr(hook, "__module__", "")).split(".")[0] not in _LIBRARIES:
                    del hooks[key]
        yield
    finally:
        for hooks, registered in before:
            hooks.clear()
            hooks.update(registered)


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
