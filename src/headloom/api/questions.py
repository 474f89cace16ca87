"""What models are asked, and how they answer: see `headloom.api.model.Model`."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

import torch
from torch import Tensor, nn

from headloom.errors import DataError, InputError
from headloom.formats.files import NOT_WRITABLE, JsonMapping, JsonObject, disk_errors
from headloom.formats.tokens import visible
from headloom.formats.trace import TraceData
from headloom.formats.trace_writer import not_a_trace
from headloom.models.dense import Products
from headloom.tracing.capture import trace_with
from headloom.tracing.capture import verify as verify_model
from headloom.tracing.options import TraceOptions
from headloom.training.inference import Classification

if TYPE_CHECKING:
    from PIL.Image import Image

    from headloom.analysis.alignment.words import WordParts

#: What a model reads: tensors by the names of its arguments; or a text that its tracer encodes.
Inputs = Mapping[str, torch.Tensor] | str
#: What a model predicts from a text: what follows it, its translation, or its class.
Kind = Literal["text", "translation", "label"]
#: Told the path and the number of each layer that is done, of how many.
Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class PredictOptions:
    """Settings of what a model writes: see `headloom.Model.predict`."""

    beam: int = 5
    length_penalty: float | None = None
    n_best: int = 1
    max_new_tokens: int = 200
    temperature: float = 0.8
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 1
    products: Products = "float32"

    def __post_init__(self) -> None:
        """Raise an InputError where more is asked for than a beam holds."""
        if self.n_best > self.beam:
            raise InputError(
                f"n_best {self.n_best}: a beam of {self.beam} holds no more than {self.beam}. "
                f"Give beam {self.n_best}, or a smaller n_best."
            )


@dataclass(frozen=True)
class Measure:
    """A number that a model gives, by `run`; tokens: of the one input that it reads.

    differentiable: whether its gradient says how it changes; not of a distance, least at 0.
    """

    name: str
    run: Callable[[], torch.Tensor]
    tokens: Sequence[str] = ()
    differentiable: bool = True


class Pairs(NamedTuple):
    """Pairs of a source and its target: a batch, and of which tokens the words of each are made."""

    inputs: Mapping[str, torch.Tensor]
    sources: list[WordParts]
    targets: list[WordParts]


@dataclass(frozen=True, eq=False)
class Prediction:
    """A model, the inputs it reads, and the names of its predictions.

    tokens: of the text, whose relevance is asked; read: those that predictions come after, of an
    encoder-decoder the target's, of a classifier none.
    number: from an option and its word to the number of a logit; names: from numbers to names.
    masked: the place of a mask, whose token is predicted.
    pooling: "mean" or "max", of a classifier whose class comes from all positions; None: from one.
    parts: gives what each position adds then to each logit, (positions, classes).
    """

    network: nn.Module
    inputs: Mapping[str, torch.Tensor]
    tokens: Sequence[str]
    read: Sequence[str]
    number: Callable[[str, str], int]
    names: Callable[[list[int]], Sequence[str]]
    masked: int | None = None
    pooling: str | None = None
    parts: Callable[[], torch.Tensor] | None = None


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


def one_label(labels: Sequence[str], option: str, word: str) -> int:
    """The number of a label. Raises: InputError: there is no such."""
    if word not in labels:
        known = ", ".join([*labels[:20], *["..."][: len(labels) > 20]])
        raise InputError(f"{option} {word}: no such label; there are {known}.")
    return labels.index(word)


def one_token(option: str, ids: Sequence[int], unknown: int | None) -> int:
    """The only token of a word. Raises: InputError: it has more, or is not in the vocabulary."""
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


class Questions:
    """A network and its tokenizer, and what the verbs ask of them; subclasses answer it."""

    def __init__(self, name: str, module: nn.Module, tokenizer: object = None) -> None:
        self.name = name
        self._module, self._tokenizer = module, tokenizer

    @property
    def module(self) -> nn.Module:
        """The network, a `torch.nn.Module`."""
        return self._module

    @property
    def tokenizer(self) -> Any:
        """The tokenizer, which names the token ids; None: there is none, as of images."""
        return self._tokenizer

    def _lacks(self, what: str) -> NoReturn:
        """Raise an InputError that says what this model cannot do."""
        raise InputError(
            f"{self.name}: {what} is for runs and models of Transformers; a "
            f"{type(self.module).__name__} reads tensors. Call its .module, or trace it on tensors."
        )

    @property
    def _body(self) -> nn.Module:
        """The part that runs where nothing is predicted; layers have their paths in it."""
        return self.module

    def _unknown_parts(self, text: str) -> Sequence[str]:
        """Characters, or words, of a text that the vocabulary lacks."""
        return ()

    def _inputs(self, text: str, target: str | None = None, *, generates: bool = False) -> Inputs:
        """Return the inputs for a text and a target, after which the model perhaps `generates`."""
        if target is not None:
            self._lacks("a target")
        return text  # which the tokenizer of the trace encodes

    def _image_inputs(self, picture: Image, text: str | None) -> tuple[Questions, Inputs]:
        """A model that sees a picture, and perhaps reads a text; and its inputs."""
        self._lacks("a picture")

    def _pairs(self, sources: Sequence[str], targets: Sequence[str]) -> Pairs:
        """Sources and the targets that an encoder-decoder is to read after them, as a batch."""
        self._lacks("aligning texts")

    def _windows(self, text: str, window: int) -> list[dict[str, Tensor]]:
        """A long text in windows of so many tokens, which share a quarter of them."""
        self._lacks("a text")

    def _verify(self, inputs: Inputs, options: TraceOptions, *, generates: bool = False) -> None:
        """Compare the model with itself without headloom. Raises: VerificationError."""
        verify_model(self.module if generates else self._body, inputs, options, generates=generates)

    def _traced(
        self,
        inputs: Any,
        options: TraceOptions,
        generate: int | Mapping[str, object] | None = None,
        *,
        description: JsonMapping | None = None,
        progress: Progress | None = None,
        verification: JsonMapping | None = None,
    ) -> TraceData | list[TraceData]:
        """Trace the model on inputs; None: a run on its graph.

        description: added to that of the model; verification: None: done on these inputs.
        """
        if inputs is None:
            raise InputError("trace: give what the model reads: a text, an image or tensors.")
        return trace_with(
            self._body if generate is None else self.module, inputs, options, generate,
            verification=verification, about=description,
            progress=progress or (lambda path, number, expected: None),
        )  # fmt: skip

    @property
    def _predicts(self) -> Kind | None:
        """Kind of prediction from a text; None: the model makes none."""
        return None

    def _continuation(self, prompt: str, options: PredictOptions) -> str:
        """Return the continuation of a prompt, by a language model."""
        self._lacks("continuing a text")

    def _translations(
        self, lines: Iterator[str], options: PredictOptions, described: bool
    ) -> Iterator[JsonObject]:
        """Each line's "source" and "hypotheses", the best first, none of an empty line."""
        self._lacks("translating")

    def _classes(self, texts: Sequence[str]) -> list[Classification]:
        """Classify texts; an empty one has no label."""
        self._lacks("classifying texts")

    def _loss(self, text: object, target: str | None) -> Measure:
        """The loss on a text, or on examples; without, on some of a run's validation data."""
        self._lacks("the loss of a text")

    def _prediction(self, text: str, target: str | None, position: int | None) -> Prediction:
        """The model and its inputs, ready for a question about one of its predictions."""
        self._lacks("a prediction from a text")
