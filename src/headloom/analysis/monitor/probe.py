"""The probe of a watched training: a fixed input, read anew at each measured step.

It is what the model is given when it first runs, cut to the first sequences of the batch, or what
the caller gives. A fixed input makes the curves of a training comparable from step to step; it is
kept in the run's folder, so that a training that is taken up again is measured on the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headloom.errors import DataError, InputError
from headloom.formats.tensors import load_tensors, save_tensors
from headloom.tracing.arguments import Arguments, Inputs, batch_of
from headloom.tracing.sources.graphs import reads_a_graph

#: A probe as a caller gives it: a tensor, the first arguments, or the arguments by name.
Given = Tensor | Sequence[object] | Mapping[str, object]

#: Arguments that are not for reading: what is to be learned, and what a cache holds.
_ASIDE = ("labels", "num_items_in_batch", "past_key_values", "use_cache", "output_attentions")


@dataclass(frozen=True, eq=False)
class Probe:
    """A fixed input of a model.

    inputs: by the names of the model's arguments: tensors, numbers, words.
    autocast: the device and the type in which the training computes, if it does so by
        `torch.autocast`.
    """

    inputs: Arguments
    autocast: tuple[str, torch.dtype] | None = None

    @classmethod
    def taken(cls, model: nn.Module, args: tuple[object, ...], keywords: Inputs) -> Probe:
        """The first sequence of a batch that a model is called with; all of a graph."""
        arguments = _by_name(model, args, keywords)
        write: Any = getattr(model, "prepare_decoder_input_ids_from_labels", None)
        made = {"decoder_input_ids", "decoder_inputs_embeds"} & set(arguments)
        if write and not made and "labels" in arguments:
            # What the decoder reads is made from what it is to learn.
            arguments["decoder_input_ids"] = write(labels=arguments["labels"])
        arguments = {name: value for name, value in arguments.items() if name not in _ASIDE}
        tensors = {name: value for name, value in arguments.items() if isinstance(value, Tensor)}
        if not tensors:
            raise InputError(
                f"monitor: {type(model).__name__} was called without a tensor, so that nothing can "
                "be measured. Give probe=: a tensor for each argument of the model."
            )
        first, batch, axis = next(iter(tensors.values())), batch_of(tensors), 0
        layers = [layer for layer in model.modules() if isinstance(layer, nn.MultiheadAttention)]
        if layers and first.ndim > 1 and not any(layer.batch_first for layer in layers):
            batch, axis = first.shape[1], 1  # as torch's own layers have it
        keep = batch if reads_a_graph(model) else min(1, batch)
        inputs: Arguments = {
            name: value
            for name, value in arguments.items()
            if isinstance(value, bool | int | float | str)
        }
        for name, value in tensors.items():
            whole = value.ndim <= axis or value.shape[axis] != batch
            inputs[name] = (value if whole else value.narrow(axis, 0, keep)).detach().clone()
        device = first.device.type
        autocast = torch.is_autocast_enabled(device)
        return cls(inputs, (device, torch.get_autocast_dtype(device)) if autocast else None)

    @classmethod
    def checked(cls, model: nn.Module, probe: Given) -> Probe:
        """A probe that the caller gives: a tensor, the first arguments of the model in a tuple, or
        a tensor for each by its name.
        """
        first = (probe,) if isinstance(probe, Tensor) else probe
        if isinstance(first, tuple | list) and first and isinstance(first[0], Tensor):
            named: Mapping[str, object] = _by_name(model, tuple(first), {})
        elif isinstance(first, Mapping) and any(isinstance(v, Tensor) for v in first.values()):
            named = {str(name): value for name, value in first.items() if name not in _ASIDE}
        else:
            raise InputError(
                f"monitor: probe is {type(probe).__name__}; expected a tensor, a tuple of them, "
                "or a dict with a tensor for each argument of the model, as a tokenizer gives it."
            )
        return cls({
            name: value.detach().clone() if isinstance(value, Tensor) else value
            for name, value in named.items()
        })  # fmt: skip

    def save(self, path: Path) -> None:
        """Write the probe, whole or not at all."""
        tensors = {name: value for name, value in self.inputs.items() if isinstance(value, Tensor)}
        plain = {name: value for name, value in self.inputs.items() if name not in tensors}
        autocast = None
        if self.autocast is not None:
            autocast = [self.autocast[0], str(self.autocast[1]).removeprefix("torch.")]
        save_tensors(path, tensors, {"inputs": plain, "autocast": autocast})

    @classmethod
    def open(cls, path: Path, device: torch.device) -> Probe:
        """A probe that was saved, on a device.

        Raises: DataError: it is missing or damaged.
        """
        tensors, notes = load_tensors(path, "probe")
        plain, autocast = notes.get("inputs"), notes.get("autocast")
        kind = getattr(torch, autocast[1], None) if isinstance(autocast, list) else None
        if not isinstance(plain, dict) or (autocast is not None and type(kind) is not torch.dtype):
            raise DataError(f"{path}: this probe is damaged. Restore it from a copy.")
        inputs = plain | {name: tensor.to(device) for name, tensor in tensors.items()}
        return cls(inputs, None if kind is None else (device.type, kind))

    def computing(self) -> AbstractContextManager[object]:
        """Compute in the type of the training, while the block runs."""
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(self.autocast[0], dtype=self.autocast[1])


def _by_name(model: nn.Module, args: tuple[object, ...], keywords: Inputs) -> Arguments:
    """The arguments of a call of a model, by their names."""
    signature = inspect.signature(model.forward)
    arguments: Arguments = {}
    for name, value in signature.bind(*args, **keywords).arguments.items():
        several = signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
        arguments |= value if several else {name: value}
    return {name: value for name, value in arguments.items() if value is not None}


def wait(model: nn.Module) -> None:
    """Wait for the device of a model, so that time is whose it is."""
    device = next((parameter.device for parameter in model.parameters()), None)
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)


def is_another_process() -> bool:
    """Whether this process is one of several, and not the first."""
    several = torch.distributed.is_available() and torch.distributed.is_initialized()
    return several and torch.distributed.get_rank() != 0


def check_whole(model: nn.Module) -> None:
    """Raise an InputError where no process has all of a model's parameters."""
    spread = any(
        type(part).__name__ in ("DTensor", "FlatParameter") or hasattr(part, "ds_id")
        for part in model.parameters()
    )
    names = [type(module).__name__ for module in model.modules()]
    if spread or "FullyShardedDataParallel" in names:
        raise InputError(
            "monitor: the parameters of this model are spread over processes (FSDP, ZeRO 3, tensor "
            "parallel), so that none of them can read the model alone. Train with DDP or on one "
            "device."
        )
