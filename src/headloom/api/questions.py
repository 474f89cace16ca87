"""Base class of models: the operations that `headloom.api.model.Model` builds on; predictions."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
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
from headloom.tracing.arguments import Tokenizer
from headloom.tracing.capture import trace_with
from headloom.tracing.capture import verify as verify_model
from headloom.tracing.options import TraceOptions
from headloom.training.inference import Classification

if TYPE_CHECKING:
    from PIL.Image import Image

    from headloom.analysis.alignment.words import WordParts

#: Model inputs: tensors by argument name; or a text, encoded by the tracer.
Inputs = Mapping[str, torch.Tensor] | str
#: Prediction from a text: its continuation, its translation, or its class.
Kind = Literal["text", "translation", "label"]
#: Called with path and number of each finished layer, and their total.
Progress = Callable[[str, int, int | None], None]
#: Lines that are read, sorted by length and predicted together.
WINDOW = 2_000
#: Method and name of each kind of prediction.
_NAMES: dict[Kind, tuple[str, str]] = {
    "text": ("generate(prompt)", "continue text"),
    "translation": ("translate(lines)", "translate"),
    "label": ("classify(texts)", "classify texts"),
}


@dataclass(frozen=True)
class PredictOptions:
    """Settings of a model's output; see `headloom.Model.predict`."""

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
        """Raise an InputError where n_best exceeds the beam."""
        if self.n_best > self.beam:
            raise InputError(
                f"n_best {self.n_best}: larger than the beam of {self.beam}. Use beam "
                f"{self.n_best}, or a smaller n_best."
            )


@dataclass(frozen=True)
class Measure:
    """Number computed by a model with `run`; tokens: of its one input.

    differentiable: whether its gradient predicts changes; not of a distance, minimal at 0.
    """

    name: str
    run: Callable[[], torch.Tensor]
    tokens: Sequence[str] = ()
    differentiable: bool = True


class Pairs(NamedTuple):
    """Batch of source and target pairs, with the tokens of each word."""

    inputs: Mapping[str, torch.Tensor]
    sources: list[WordParts]
    targets: list[WordParts]


@dataclass(frozen=True, eq=False)
class Prediction:
    """Model, its inputs, and the names of its predictions.

    tokens: of the text; read: tokens that predictions follow: of an encoder-decoder the target's,
    of a classifier none.
    number: from an option and its word to the number of a logit; names: from numbers to names.
    masked: position of the mask whose token is predicted.
    pooling: "mean" or "max", of a classifier that pools all positions; None: it reads one.
    parts: computes each position's share of each logit, (positions, classes), with pooling.
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
    """Raise an InputError where a text, or a list of ids, is empty or blank."""
    if not (text.strip() if isinstance(text, str) else text):
        raise InputError("the text is empty; give at least one character that is not a space.")


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
            raise DataError(f"{output} exists already. Choose another name, or use overwrite.")


def one_label(labels: Sequence[str], option: str, word: str) -> int:
    """Return the number of a label. Raises: InputError: no such label."""
    if word not in labels:
        known = ", ".join([*labels[:20], *["..."][: len(labels) > 20]])
        raise InputError(f"{option} {word}: no such label; there are {known}.")
    return labels.index(word)


def one_token(option: str, ids: Sequence[int], unknown: int | None) -> int:
    """Return a word's single token. Raises: InputError: it has several, or is unknown."""
    if len(ids) != 1:
        raise InputError(f"{option}: {len(ids)} tokens; expected one. Use another word.")
    if ids[0] == unknown:
        raise InputError(f"{option}: not in the vocabulary of this model. Use another word.")
    return ids[0]


def tell_unknown(what: str, parts: Sequence[str]) -> None:
    """Print the characters or words of a text that a run's vocabulary lacks, on stderr."""
    if parts:
        shown = " ".join(map(visible, parts[:10])) + (" ..." if len(parts) > 10 else "")
        kind = "characters" if all(len(part) == 1 for part in parts) else "words"
        print(
            f"headloom: {what}: {kind} not in the vocabulary of this run, which the model reads as "
            f"unknown: {shown} ({len(parts)})",
            file=sys.stderr,
        )


class Questions:
    """Network and tokenizer, with the operations of the verbs; subclasses implement them.

    whole: whether a trace without generation also runs the prediction head, if there is one.
    """

    def __init__(
        self, name: str, module: nn.Module, tokenizer: object = None, *, whole: bool = False
    ) -> None:
        self.name, self._whole = name, whole
        self._module, self._tokenizer = module, tokenizer

    @property
    def module(self) -> nn.Module:
        """Network, a `torch.nn.Module`."""
        return self._module

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer, which names the token ids; None: there is none, as of images."""
        return self._tokenizer

    def _lacks(self, what: str) -> NoReturn:
        """Raise an InputError that names an operation which this model lacks."""
        raise InputError(
            f"{self.name}: {what} is for runs and models of Transformers; a "
            f"{type(self.module).__name__} reads tensors. Call its .module, or trace it on tensors."
        )

    @property
    def _body(self) -> nn.Module:
        """Part without the prediction head; layer paths are relative to it."""
        return self.module

    def _unknown_parts(self, text: str) -> Sequence[str]:
        """Return the characters, or words, of a text that the vocabulary lacks."""
        return ()

    def _inputs(self, text: str, target: str | None = None, *, generates: bool = False) -> Inputs:
        """Return the inputs for a text and a target; generates: for a generation."""
        if target is not None:
            self._lacks("a target")
        return text

    def _image_inputs(self, picture: Image, text: str | None) -> tuple[Questions, Inputs]:
        """Return a model that reads an image, perhaps with a text; and its inputs."""
        self._lacks("a picture")

    def _pairs(self, sources: Sequence[str], targets: Sequence[str]) -> Pairs:
        """Return sources and targets of an encoder-decoder as a batch."""
        self._lacks("aligning texts")

    def _windows(self, text: str, window: int) -> list[dict[str, Tensor]]:
        """Split a long text into windows of so many tokens, which overlap by a quarter."""
        self._lacks("a text")

    def _verify(self, inputs: Inputs, options: TraceOptions, *, generates: bool = False) -> None:
        """Compare the model with itself without headloom. Raises: VerificationError."""
        verify_model(self.module if generates else self._body, inputs, options, generates=generates)

    def _traced(
        self, inputs: Any, options: TraceOptions,
        generate: int | Mapping[str, object] | None = None, *,
        description: JsonMapping | None = None, progress: Progress | None = None,
        verification: JsonMapping | None = None,
    ) -> TraceData | list[TraceData]:  # fmt: skip
        """Trace the model on inputs; None: a run on its graph.

        description: added to the model's; verification: an earlier result, None: verify now.
        """
        if inputs is None:
            raise InputError("trace: the input is missing. Give a text, an image or tensors.")
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
        """Yield each line's "source" and "hypotheses", the best first, none of an empty line."""
        self._lacks("translating")

    def _classes(self, texts: Sequence[str]) -> list[Classification]:
        """Return the class probabilities of each text; None of an empty one."""
        self._lacks("classifying texts")

    def _loss(self, text: object, target: str | None) -> Measure:
        """Return the loss on a text or examples; None: on validation data of a run."""
        self._lacks("the loss of a text")

    def _prediction(self, text: str, target: str | None, position: int | None) -> Prediction:
        """Return the model and its inputs for a question about one of its predictions."""
        self._lacks("a prediction from a text")


def predictions(
    model: Questions, lines: Iterable[str], options: PredictOptions, described: bool = False
) -> Iterator[Any]:
    """Yield the result of each line, as `headloom.Model.predict` gives it."""
    kind, unknown = model._predicts, dict[str, None]()
    if kind is None:
        raise cannot(model, "text", "translation", "label")

    def watched() -> Iterator[str]:
        for line in lines:
            unknown.update(dict.fromkeys(model._unknown_parts(line)))
            yield line

    texts = watched()
    if kind == "text":
        for line in texts:
            text = model._continuation(line, options)
            yield {"prompt": line, "text": text} if described else line + text
    elif kind == "translation":
        for content in model._translations(texts, options, described):
            best = content["hypotheses"][:1]
            yield content if described else " ".join(best[0]["text"].splitlines()) if best else ""
    else:
        while window := list(islice(texts, WINDOW)):
            for text, classes in zip(window, model._classes(window), strict=True):
                yield {"text": text, **classes} if described else classes
    tell_unknown("the input", list(unknown))


def cannot(model: Questions, *kinds: Kind) -> InputError:
    """Return the error of a model without these kinds of prediction."""
    missing = " or ".join(_NAMES[kind][1] for kind in kinds)
    known = model._predicts
    instead = f"use .{_NAMES[known][0]}." if known else "it makes no predictions from text."
    return InputError(
        f"{model.name}: a {type(model.module).__name__}, which does not {missing}; {instead}"
    )
