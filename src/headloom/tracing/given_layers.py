"""Layers that are given: their names and kinds, and the trace that is made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headloom.errors import InputError, ShapeError
from headloom.formats.files import JsonMapping
from headloom.formats.trace import TraceData
from headloom.formats.trace_writer import writing_trace
from headloom.mechanism.graph import Keep
from headloom.mechanism.masks import Mask, as_mask
from headloom.mechanism.shapes import check_flag, in_words
from headloom.tracing.given_tokens import GivenTokens
from headloom.tracing.options import check_keep, check_save
from headloom.tracing.recording.layers import LayerMaker
from headloom.tracing.recording.recorder import CallRecorder
from headloom.tracing.recording.sequences import check_can_be_saved, kind_of_name
from headloom.tracing.sources.tensors import as_tensor, first_place

__all__ = [
    "KINDS",
    "GivenLayers",
    "Making",
    "checked_model",
    "each",
    "in_layer",
    "masks_of",
    "tensors_of",
]

KINDS = ("encoder", "decoder", "cross")


def each(operation: str, name: str, value: Any, count: int) -> list[Any]:
    """An argument for each layer: a list as it is, anything else for all.

    Raises: InputError: a list of another length.
    """
    if not isinstance(value, (list, tuple)):
        return [value] * count
    if len(value) != count:
        raise InputError(
            f"{operation}: {name} is a list of {len(value)} for {count} layers; expected one for "
            "each, or one for all."
        )
    return list(value)


def masks_of(operation: str, mask: Any, count: int) -> tuple[Mask | None, ...]:
    """The mask of each layer."""
    entries = each(operation, "mask", mask, count)
    return tuple(None if one is None else as_mask(one) for one in entries)


def tensors_of(operation: str, name: str, value: Any, count: int) -> tuple[Tensor | None, ...]:
    """What is added to scores, or stands beside them: a tensor for each layer.

    Raises: InputError: a number that leaves no row a number: NaN, or infinity.
    """
    entries = each(operation, name, value, count)
    tensors = tuple(None if one is None else as_tensor(name, one) for one in entries)
    for number, tensor in enumerate(tensors):
        wrong = None if tensor is None else tensor.isnan() | tensor.isposinf()
        if tensor is not None and wrong is not None and bool(wrong.any()):
            of = f" of layer {number}" if count > 1 else ""
            raise InputError(
                f"{operation}: {name}{of} holds {float(tensor[first_place(wrong)])}, "
                f"{int(wrong.sum()):,} such of {wrong.numel():,} numbers; expected finite ones, or "
                "minus infinity."
            )
    return tensors


def checked_model(operation: str, model: object) -> None:
    """Raise an InputError where what a trace calls its model is no text."""
    if model is not None and not isinstance(model, str):
        raise InputError(
            f"{operation}: model is {type(model).__name__}; expected a text, the name of the "
            "model, or None."
        )


@dataclass(frozen=True)
class GivenLayers:
    """The names of layers, and their kinds where these are known before their numbers."""

    names: list[str]
    kinds: list[str | None]

    @classmethod
    def of(
        cls,
        operation: str,
        count: int,
        names: Sequence[str] | None,
        kind: Any,
        lengths: Callable[[int], tuple[int, int]],
        steps: bool = False,
    ) -> GivenLayers:
        """Named and sorted.

        Args:
            operation: what errors begin with.
            count: how many layers there are.
            names: of them; None: by number.
            kind: of each, or of all; None: by names and lengths.
            lengths: how many queries and keys a layer has.
            steps: whether one query may be the last of its keys, in a step of a generation.
        """
        said = [f"layers.{number}" for number in range(count)]
        if names is not None:
            if isinstance(names, str) or not isinstance(names, Sequence):
                raise InputError(
                    f"{operation}: names is {type(names).__name__}; expected a list with a text "
                    "for each layer, or None."
                )
            said = list(names)
        if len(said) != count or not all(isinstance(name, str) for name in said):
            raise InputError(
                f"{operation}: {len(said)} names for {count} layers; expected a text for each."
            )
        kinds: list[str | None] = []
        for number, own in enumerate(each(operation, "kind", kind, count)):
            if own is not None and not (isinstance(own, str) and own in KINDS):
                raise InputError(
                    f"{operation}: kind={in_words(own)}; expected {', '.join(KINDS)} or None."
                )
            if own is not None:
                kinds.append(own)
                continue
            queries, keys = lengths(number)
            crosses = queries != keys or kind_of_name(said[number], False) == "cross"
            if steps and queries == 1 < keys and kind_of_name(said[number], False) != "cross":
                raise InputError(
                    f"{operation}: layer {said[number]} has 1 query and {keys} keys: a later step "
                    "of a generation, or a position that looks at another sequence. Say which: "
                    'kind="decoder", or kind="cross".'
                )
            kinds.append("cross" if crosses else None)
        return cls(said, kinds)

    @property
    def pair(self) -> bool:
        """Whether one sequence looks at another."""
        return "cross" in self.kinds

    def kind(self, number: int, is_causal: bool) -> str:
        """The kind of a layer, when it is known whether a query looks ahead."""
        return self.kinds[number] or kind_of_name(self.names[number], is_causal)


@dataclass(frozen=True)
class Making:
    """How given layers become a trace: see `headloom.from_queries_keys`."""

    operation: str
    keep: Keep
    queries_keys: bool
    save: Path | str | None
    dtype: torch.dtype | None
    overwrite: bool

    def traces(
        self,
        sequences: GivenTokens,
        record: Callable[[CallRecorder], None],
        said: JsonMapping,
    ) -> TraceData | list[TraceData]:
        """The trace of each input; saved and opened, alone, or all.

        Args:
            sequences: names the positions.
            record: hands each layer to a recorder.
            said: what the trace says of its model.
        """
        check_keep(self.keep, self.operation)
        check_save(self.save, self.operation)
        for name in ("queries_keys", "overwrite"):
            check_flag(self.operation, name, getattr(self, name))
        check_can_be_saved(self.save, sequences.samples)
        maker = LayerMaker(sequences, sequences.samples, self.queries_keys)
        # There is no model to hold the layers against.
        recorder = CallRecorder(maker, self.keep, None, verified=lambda: False)
        with ExitStack() as stack:
            if self.save is not None:
                maker.writer = stack.enter_context(
                    writing_trace(self.save, {}, said, dtype=self.dtype, overwrite=self.overwrite)
                )
            record(recorder)
            sequences.check_all_read()
            maker.finish([])
        if self.save is not None:
            return TraceData.open(self.save)
        made = maker.traces(said)
        return made[0] if len(made) == 1 else made


@contextmanager
def in_layer(operation: str, name: str) -> Iterator[None]:
    """Errors of the mechanism, with the layer that they are of."""
    try:
        yield
    except InputError as error:
        line = str(error)
        if not line.startswith("attend: "):
            raise
        line = f"{operation}: layer {name}: {line.removeprefix('attend: ')}"
        raise (ShapeError if isinstance(error, ShapeError) else InputError)(line) from error
