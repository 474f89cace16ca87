"""Predictions of a model from lines, in constant memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from headloom.api.questions import Kind, PredictOptions, Questions, tell_unknown
from headloom.errors import InputError

#: Lines that are read, sorted by length and predicted together.
WINDOW = 2_000
#: Method and name of each kind of prediction.
_NAMES: dict[Kind, tuple[str, str]] = {
    "text": ("generate(prompt)", "continue text"),
    "translation": ("translate(lines)", "translate"),
    "label": ("classify(texts)", "classify texts"),
}


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
