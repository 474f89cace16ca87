"""Readers of models: arguments, their prefixes, and names of positions."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headloom.errors import InputError
from headloom.mechanism.watching import layers_of, named_modules
from headloom.tracing.arguments import Arguments, Inputs, Tokenizer
from headloom.tracing.names import token_ids
from headloom.tracing.recording.layer_call import LayerCall
from headloom.tracing.recording.module_sequences import ModuleSequences, samples_of
from headloom.tracing.recording.sequences import NamesOfSequences, Sequences, on_device_of
from headloom.tracing.sources.functions import Functions
from headloom.tracing.sources.graphs import reads_a_graph
from headloom.tracing.sources.transformers import is_transformers_model

#: Integer types of token ids.
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class Reader(ABC):
    """Base of the readers of a kind of models. model: the traced one; name: of its class."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.name = model, type(model).__name__

    @abstractmethod
    def arguments(self, inputs: object, tokenizer: Tokenizer, generates: bool) -> Arguments:
        """Return the inputs of `headloom.trace` by the names of the model's arguments.

        generates: whether the model is to generate after them.

        Raises: InputError: the model cannot read it.
        """

    @abstractmethod
    def names(
        self, arguments: Inputs, tokenizer: Tokenizer, calls: Sequence[LayerCall] | None
    ) -> tuple[NamesOfSequences, int] | None:
        """Return the names of the positions, and the number of inputs.

        calls: of the run; None: before the run. Returns: None: names need the calls.
        """

    def called(self, args: tuple[object, ...], keywords: Inputs) -> Arguments:
        """Return a call's inputs by the names of the model's arguments, or "input 0" and so on.

        Raises: TypeError: the model does not take them.
        """
        signature = inspect.signature(self.model.forward)
        arguments: Arguments = {}
        for name, value in signature.bind(*args, **keywords).arguments.items():
            kind = signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                arguments.update(value)
            elif kind is inspect.Parameter.VAR_POSITIONAL:
                arguments.update((f"input {number}", part) for number, part in enumerate(value))
            else:
                arguments[name] = value
        return arguments

    def by_names(self, inputs: object) -> object:
        """Return a tensor (the first argument), or several in a tuple, by the arguments' names.

        Raises: InputError: the model does not take them.
        """
        if isinstance(inputs, Tensor):
            inputs = (inputs,)
        if not isinstance(inputs, tuple | list):
            return inputs
        try:
            return self.called(tuple(inputs), {})
        except TypeError as error:
            raise InputError(f"trace: {self.name}.forward does not take these: {error}.") from None

    def prefix(self, arguments: Inputs, tokens: int | None) -> tuple[Arguments, int]:
        """Return the arguments cut to a number of tokens (None: whole), and the number left."""
        part: Arguments = dict(arguments)
        if reads_a_graph(self.model):  # integers are edges: half of them is another graph
            return part, 0
        lengths = [0]
        for name, value in arguments.items():
            if isinstance(value, Tensor) and value.ndim == 2 and not value.is_floating_point():
                part[name] = value if tokens is None else value[:, :tokens]
                lengths.append(part[name].shape[1])
        return part, max(lengths)

    def nothing(self, functions: Functions) -> str:
        """Return the reason why nothing was recorded, and the remedy."""
        return functions.nothing_recorded()

    @property
    def around(self) -> str | None:
        """Remedy for a module that wraps a model of Transformers; None: it wraps none."""
        for path, module in named_modules(self.model):
            if path and is_transformers_model(module):
                return (
                    f"It wraps a {type(module).__name__}: call it in a block of "
                    f"headloom.watch(model.{path})."
                )
        return None


class ModuleReader(Reader):
    """Reader of any torch module."""

    def arguments(self, inputs: object, tokenizer: Tokenizer, generates: bool) -> Arguments:
        """Return the inputs by name; they are the first tensor, a tuple of them, or a mapping."""
        name = self.name
        if generates:
            raise InputError(
                f"trace: generate= is for models of Transformers and of headloom; {name} is "
                f"neither. {self.around or 'Generate in a block of headloom.watch(model).'}"
            )
        if isinstance(inputs, Tensor) and inputs.ndim == 1 and inputs.dtype in _INTEGERS:
            # Ids of one text, of headloom's layers, which read batches.
            inputs = inputs[None] if layers_of(self.model) else inputs
        inputs = self.by_names(inputs)
        if not isinstance(inputs, Mapping):
            raise InputError(
                f"trace: the inputs are {type(inputs).__name__}; {name} reads tensors: give one, a "
                "tuple of them, or a dict with one for each argument."
            )
        device = next(
            (parameter.device for parameter in self.model.parameters()), torch.device("cpu")
        )
        return {
            str(name): value.to(device) if isinstance(value, Tensor) else value
            for name, value in inputs.items()
        }

    def names(
        self, arguments: Inputs, tokenizer: Tokenizer, calls: Sequence[LayerCall] | None
    ) -> tuple[NamesOfSequences, int] | None:
        """Return names of sequences, which are told apart by the lengths of the calls."""
        if calls is None:
            return None
        samples = samples_of(arguments, calls)
        return ModuleSequences(self.model, arguments, samples, calls, tokenizer), samples


class HeadloomReader(Reader):
    """Reader of models made of headloom's layers that read sequences or images.

    Such a model has an attribute ``padding`` (an id) or ``outputs``; any other module with such
    layers is read by `ModuleReader`. The only sequence of a model is "tokens", whatever its
    argument is called; two sequences are "source" and "target".
    """

    @staticmethod
    def reads(model: nn.Module) -> bool:
        """Return whether a model is of this kind."""
        return bool(layers_of(model)) and (hasattr(model, "padding") or hasattr(model, "outputs"))

    def arguments(self, inputs: object, tokenizer: Tokenizer, generates: bool) -> Arguments:
        """Return the inputs by name: ids, images or a text (the first argument); or a tuple."""
        if isinstance(inputs, str):
            inputs = torch.tensor([token_ids(inputs, tokenizer)])
        inputs = self.by_names(inputs)
        if not isinstance(inputs, Mapping):
            raise InputError(
                f"trace: the inputs are {type(inputs).__name__}; expected a tensor of token ids, "
                "or a dict with a tensor for each argument of the model."
            )
        arguments = on_device_of(self.model, inputs)
        self._sequences(arguments)
        return arguments

    def _sequences(self, arguments: Inputs) -> dict[str, Tensor]:
        """Return the model's token ids by name, (batch, length); without ids, its images."""
        tensors = {name: value for name, value in arguments.items() if isinstance(value, Tensor)}
        texts = {n: ids for n, ids in tensors.items() if ids.ndim == 2 and ids.dtype in _INTEGERS}
        sequences = texts or {
            name: images
            for name, images in tensors.items()
            if images.ndim == 4 and images.is_floating_point()
        }
        if not sequences:
            raise InputError(
                "trace: the inputs hold no token ids and no images; expected integers of shape "
                "(length,) or (batch, length), or numbers, (batch, channels, rows, columns)."
            )
        return sequences

    def names(
        self, arguments: Inputs, tokenizer: Tokenizer, calls: Sequence[LayerCall] | None,
        prompt: int | None = None,
    ) -> tuple[NamesOfSequences, int]:  # fmt: skip
        """Return the names. prompt: number of prompt tokens; the ones after it were generated."""
        ids = self._sequences(arguments)
        samples = len(next(iter(ids.values())))
        images = next((part for part in ids.values() if part.ndim == 4), None)
        if images is not None:
            return Sequences(self.model, {"pixel_values": images}, None), samples
        names = {"source": "input_ids", "target": "decoder_input_ids"}
        if not all(name in ids for name in names):
            first = next(iter(ids))
            names = {first: "input_ids"}
            if isinstance(tokenizer, Mapping):
                tokenizer = tokenizer.get(first)
        padding = getattr(self.model, "padding", None)
        inputs: Arguments = {}
        for name, argument in names.items():
            inputs[argument] = ids[name]
            if padding is not None:
                inputs[argument.replace("input_ids", "attention_mask")] = ids[name] != padding
        return Sequences(self.model, inputs, tokenizer, prompt=prompt), samples

    def write(
        self, arguments: Arguments, tokens: int, begin: Callable[[int], None]
    ) -> tuple[Arguments, int]:
        """Let a language model generate greedily.

        Args: begin: called before each pass with the number of positions in the cache.
        Returns: the arguments with all tokens read, and the length of the prompt.
        Raises: InputError: the model does not continue texts.
        """
        model: Any = self.model
        sequences = self._sequences(arguments)
        if len(sequences) != 1 or not hasattr(model, "start") or not hasattr(model, "step"):
            raise InputError(
                f"trace: {type(model).__name__} does not continue a text; generate= is for "
                "language models."
            )
        ((name, ids),) = sequences.items()
        # The first step reads the prompt.
        state, last, prompt = model.start(), ids, ids.shape[1]
        for _ in range(tokens):
            begin(state.position)
            last = model.step(last, state)[:, -1].argmax(-1, keepdim=True)
            ids = torch.cat((ids, last), 1)
        begin(state.position)
        model.step(last, state)
        return {**arguments, name: ids}, prompt
