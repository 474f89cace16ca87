"""The relevance of each token of a text for a prediction of a model."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headloom.analysis.effects.relevance import relevance
from headloom.api.model import Prediction, tell_unknown
from headloom.api.opening import open_model
from headloom.errors import InputError
from headloom.formats.tokens import shown

__all__ = ["Relevance", "logits_at", "place_of", "relevance_of_tokens"]


@dataclass(frozen=True)
class Relevance:
    """A prediction, and how relevant each token was for it.

    predicted: the token or the label; logit: its logit, less that of `against`.
    position: the token that the prediction comes after, and after: its text; None: of a classifier.
    pooling: how a run of a classifier pools, and parts: what each position adds to the logit.
    """

    predicted: str
    against: str | None
    logit: float
    position: int | None
    after: str | None
    tokens: Sequence[str]
    values: list[float]
    pooling: str | None = None
    parts: list[float] | None = None


def relevance_of_tokens(
    name: str,
    text: str | None,
    *,
    target: str | None = None,
    logit: str | None = None,
    against: str | None = None,
    position: int | None = None,
) -> Relevance:
    """How relevant each token of a text is for a prediction: see
    `headloom.analysis.effects.relevance`.

    Args:
        name: of a run, or of a model of Hugging Face.
        text: that the model reads.
        target: of an encoder-decoder, what it has written so far; None: a run's own translation.
        logit: the token or the label that is predicted; None: the likeliest.
        against: another, whose logit is taken off.
        position: of the token that the prediction comes after; None: the last one, or a mask.

    Raises: InputError: no text, a word of several tokens, no such position.
    """
    if text is None:
        raise InputError("relevance: give the text that the model reads, by --text or --file.")
    if against is not None and logit is None:
        raise InputError(
            "--against needs --logit, the token or label from whose logit it is subtracted."
        )
    model = open_model(name, predicting=True, labelling=True)
    prediction = model.prediction(text, target, position)
    place = place_of(prediction, position)
    chosen = None if logit is None else prediction.number("--logit", logit)
    other = None if against is None else prediction.number("--against", against)
    asked = _Asked(prediction, place, chosen, other)
    (values,) = relevance(
        prediction.network, _inputs(prediction, place), asked.score, rows=asked.rows()
    ).tolist()
    tell_unknown("the text", model.unknown_parts(text + (target or "")))
    return Relevance(
        _name(prediction, asked.number),
        None if other is None else _name(prediction, other),
        asked.logit,
        place,
        None if place is None else shown(prediction.read)[place],
        prediction.tokens,
        values,
        None if prediction.pooling is None else prediction.pooling.name,
        None if asked.parts is None else asked.parts.tolist(),
    )


class _Asked:
    """The logit that is asked about.

    number, logit: which it is and what it is, once the model has run.
    parts: what each position adds to it, of a model that pools; None: it comes from one position.
    """

    def __init__(
        self,
        prediction: Prediction,
        place: int | None,
        chosen: int | None = None,
        other: int | None = None,
    ) -> None:
        self._prediction, self._place = prediction, place
        self._chosen, self._other = chosen, other
        self.number, self.logit = -1, 0.0
        self.parts = _parts(prediction, chosen, other)

    def score(self, output: Any) -> Tensor:
        """The logit, of a model's output."""
        logits = logits_at(self._prediction, output, self._place)
        self.number = int(logits.argmax()) if self._chosen is None else self._chosen
        value = logits[self.number]
        value = value if self._other is None else value - logits[self._other]
        self.logit = float(value.detach())
        return value

    def rows(self) -> int | Tensor:
        """The rows of R that are asked for."""
        # The pooling is one more layer, of one query and one head, whose values are what positions
        # add to the logit: like every layer it is weighed, and what is negative counts nothing.
        return (self._place or 0) if self.parts is None else self.parts.clamp(min=0)


def _parts(prediction: Prediction, number: int | None, other: int | None) -> Tensor | None:
    """What each position adds to the logit that is asked; None: it comes from one position."""
    if prediction.pooling is None:
        return None
    parts = prediction.pooling.parts()
    if number is None:
        with torch.no_grad():
            number = int(prediction.network(**prediction.inputs)[0].argmax())
    return parts[:, number] if other is None else parts[:, number] - parts[:, other]


def _name(prediction: Prediction, number: int) -> str:
    """The token or the label of a logit."""
    (name,) = shown(prediction.names([number]))
    return str(name)


def place_of(prediction: Prediction, position: int | None) -> int | None:
    """The position that is asked, from 0; None: of a classifier."""
    count = len(prediction.read)
    if not count:
        if position is not None:
            raise InputError("--token: a classifier predicts one label for the whole text.")
        return None
    place = prediction.masked if position is None else position
    place = count - 1 if place is None else place
    if not -count <= place < count:
        raise InputError(f"--token {place}: there are tokens 0 to {count - 1}.")
    return place % count


def _inputs(prediction: Prediction, place: int | None) -> Mapping[str, Any]:
    """The inputs; for the last position alone, a model that can computes no other logits."""
    takes = inspect.signature(prediction.network.forward).parameters
    if place is not None and place == len(prediction.read) - 1 and "logits_to_keep" in takes:
        return {**prediction.inputs, "logits_to_keep": 1}
    return prediction.inputs


def logits_at(prediction: Prediction, output: Any, place: int | None) -> Tensor:
    """The logits of one position of an output; None: those of a classifier."""
    logits: Tensor = output if isinstance(output, Tensor) else output.logits
    if place is None:
        return logits[0]
    # Some models are asked for their last logits alone.
    count, read = logits.shape[1], len(prediction.read)
    return logits[0, place - read if count < read else place]
