"""Probe batch of a monitored training: a fixed input, read again at each measured step.

It is the first batch of the model, cut to its first sequence, or given by the caller. A fixed input
makes the curves of a training comparable from step to step; it is saved in the run's folder, so
that a resumed training is measured on the same input.
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

#: Probe of a caller: a tensor, the first arguments, or the arguments by name.
Given = Tensor | Sequence[object] | Mapping[str, object]

#: Arguments that are not part of the input: labels, caches and flags.
_ASIDE = ("labels", "num_items_in_batch", "past_key_values", "use_cache", "output_attentions")


@dataclass(frozen=True, eq=False)
class Probe:
    """Fixed input of a model.

    inputs: by the names of the model's arguments: tensors, numbers, strings.
    autocast: device and type of the training's `torch.autocast`; None: it is not used.
    """

    inputs: Arguments
    autocast: tuple[str, torch.dtype] | None = None

    @classmethod
    def taken(cls, model: nn.Module, args: tuple[object, ...], keywords: Inputs) -> Probe:
        """Return the first sequence of a model's batch; a graph whole."""
        arguments = _by_name(model, args, keywords)
        write: Any = getattr(model, "prepare_decoder_input_ids_from_labels", None)
        has_inputs = {"decoder_input_ids", "decoder_inputs_embeds"} & set(arguments)
        if write and not has_inputs and "labels" in arguments:
            # The decoder's inputs are made from its labels.
            arguments["decoder_input_ids"] = write(labels=arguments["labels"])
        arguments = {name: value for name, value in arguments.items() if name not in _ASIDE}
        tensors = {name: value for name, value in arguments.items() if isinstance(value, Tensor)}
        if not tensors:
            raise InputError(
                f"monitor: {type(model).__name__} was called without a tensor, so nothing can be "
                "measured. Give probe=: a tensor for each argument of the model."
            )
        first, batch, axis = next(iter(tensors.values())), batch_of(tensors), 0
        layers = [layer for layer in model.modules() if isinstance(layer, nn.MultiheadAttention)]
        if layers and first.ndim > 1 and not any(layer.batch_first for layer in layers):
            batch, axis = first.shape[1], 1  # the default of torch's own layers
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
        """Return a caller's probe: a tensor, the first arguments in a tuple, or all by name."""
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
        """Write the probe atomically."""
        tensors = {name: value for name, value in self.inputs.items() if isinstance(value, Tensor)}
        plain = {name: value for name, value in self.inputs.items() if name not in tensors}
        autocast = None
        if self.autocast is not None:
            autocast = [self.autocast[0], str(self.autocast[1]).removeprefix("torch.")]
        save_tensors(path, tensors, {"inputs": plain, "autocast": autocast})

    @classmethod
    def open(cls, path: Path, device: torch.device) -> Probe:
        """Open a saved probe, on a device.

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
        """Apply the autocast of the training while the block runs."""
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(self.autocast[0], dtype=self.autocast[1])


def _by_name(model: nn.Module, args: tuple[object, ...], keywords: Inputs) -> Arguments:
    """Return the arguments of a model's call by their names."""
    signature = inspect.signature(model.forward)
    arguments: Arguments = {}
    for name, value in signature.bind(*args, **keywords).arguments.items():
        is_mapping = signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
        arguments |= value if is_mapping else {name: value}
    return {name: value for name, value in arguments.items() if value is not None}


def wait(model: nn.Module) -> None:
    """Synchronize the device of a model, for correct timing."""
    device = next((parameter.device for parameter in model.parameters()), None)
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)


def is_another_process() -> bool:
    """Return whether this is one of several processes, but not the first."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return distributed and torch.distributed.get_rank() != 0


def check_whole(model: nn.Module) -> None:
    """Raise an InputError if no process has all parameters of a model."""
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
