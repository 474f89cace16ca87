"""What models are asked, and how they answer: see `headloom.api.model.Model`."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from headloom.errors import DataError, InputError
from headloom.formats.files import NOT_WRITABLE, JsonObject, disk_errors
from headloom.formats.tokens import visible
from headloom.formats.trace_writer import not_a_trace

if TYPE_CHECKING:
    from headloom.analysis.alignment.words import WordParts
    from headloom.tracing.options import TraceOptions, Verify

#: What a model reads: tensors by the names of its arguments; or a text that its tracer encodes.
Inputs = Mapping[str, torch.Tensor] | str
#: Told the path and the number of each layer that is done, of how many.
Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class TraceChoices:
    """How the texts of a corpus are traced; see `headloom.trace`."""

    generate: int | None = None
    keep: int = 32
    layers: tuple[int | str, ...] | None = None
    verify: Verify = None

    def as_asked(self, tokenizer: object, save: Path) -> TraceOptions:
        """The options as `headloom.trace` takes them.

        tokenizer: who names the ids. save: the folder to write to while the model runs.
        """
        from headloom.mechanism.graph import Top
        from headloom.tracing.options import TraceOptions

        layers = self.layers and list(self.layers)
        return TraceOptions(tokenizer, Top(self.keep), layers=layers, save=save, verify=self.verify)

    @property
    def decisive(self) -> JsonObject:
        """The options that a trace depends on, as the list of a corpus has them."""
        layers = self.layers and ",".join(map(str, self.layers))
        fixed = {"target": None, "queries_keys": True}
        return {**fixed, "generate": self.generate, "keep": self.keep, "layers": layers}


@dataclass(frozen=True)
class Measure:
    """A number that a model gives: its name, and the function that runs the model for it.

    tokens: that the model reads, for tables; none of several inputs, or of a pair.
    differentiable: whether its gradient says how it changes; not of a distance, least at 0.
    """

    name: str
    run: Callable[[], torch.Tensor]
    tokens: Sequence[str] = ()
    differentiable: bool = True


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of a source and its target, as a model reads them together.

    inputs: a batch; sources, targets: which tokens the words of each are made of.
    """

    inputs: Mapping[str, torch.Tensor]
    sources: list[WordParts]
    targets: list[WordParts]


@dataclass(frozen=True, eq=False)
class Pooling:
    """How a classifier makes one vector of the outputs of all positions.

    name: "mean", "first" or "max".
    parts: gives what each position adds to each logit, (positions, classes); with the bias, the
    sums are the logits.
    """

    name: str
    parts: Callable[[], torch.Tensor]


@dataclass(frozen=True, eq=False)
class Prediction:
    """A model, the inputs it reads, and the names of its predictions.

    tokens: of the text, whose relevance is asked.
    read: the tokens that predictions come after: those of the text, or of an encoder-decoder the
        target's; of a classifier none.
    number: from an option and its word to the number of the logit, or an InputError; names: from
    numbers to names.
    masked: the place of a mask, whose token is predicted.
    pooling: of a classifier whose class comes from all positions; None: from the first.
    """

    network: nn.Module
    inputs: Mapping[str, torch.Tensor]
    tokens: Sequence[str]
    read: Sequence[str]
    number: Callable[[str, str], int]
    names: Callable[[list[int]], Sequence[str]]
    masked: int | None = None
    pooling: Pooling | None = None


def check_text(text: str | Sequence[int]) -> None:
    """Raises: InputError: a text, or what its ids are, is empty, or of spaces alone."""
    if not (text.strip() if isinstance(text, str) else text):
        raise InputError("the text is empty; give at least one character that is no space.")


def check_output(output: Path, overwrite: bool) -> None:
    """Raise a DataError where a trace cannot be written, before the model runs."""
    with disk_errors(output, NOT_WRITABLE):
        parent = Path(os.path.realpath(output)).parent
        tempfile.TemporaryFile(dir=parent).close()
    if output.exists():
        problem = not_a_trace(output)
        if problem:
            raise DataError(f"{output} is not overwritten: {problem}. Choose another name.")
        if not overwrite:
            raise DataError(f"{output} exists already. Choose another name, or give overwrite.")


def one_token(option: str, ids: Sequence[int], unknown: int | None) -> int:
    """The only token of a word.

    Args:
        option: and the word, for the error.
        ids: of the word.
        unknown: the token of all that the vocabulary lacks; None: there is none.

    Raises: InputError: it has several, or none, or is not in the vocabulary.
    """
    if len(ids) != 1:
        raise InputError(f"{option}: {len(ids)} tokens; expected one. Give another word.")
    if ids[0] == unknown:
        raise InputError(f"{option}: not in the vocabulary of this model. Give another word.")
    return ids[0]


def tell_unknown(what: str, parts: Sequence[str]) -> None:
    """Name, on standard error, the characters or words of a text that a run's vocabulary lacks."""
    if parts:
        shown = " ".join(map(visible, parts[:10])) + (" ..." if len(parts) > 10 else "")
        kind = "characters" if all(len(part) == 1 for part in parts) else "words"
        print(
            f"headloom: {what}: {kind} not in the vocabulary of this run, which the model reads as "
            f"unknown: {shown} ({len(parts)})",
            file=sys.stderr,
        )
