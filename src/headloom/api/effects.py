"""What the heads of a model are needed for, and which tokens a prediction of it comes from."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headloom.analysis.effects.ablation import Ablation, ablate, attention_layers, patch
from headloom.analysis.effects.estimates import estimate
from headloom.analysis.effects.interventions import Kind
from headloom.analysis.effects.relevance import relevance
from headloom.api.model import Model
from headloom.api.opening import load
from headloom.api.questions import Measure, Prediction, tell_unknown
from headloom.errors import InputError
from headloom.formats.tokens import shown


def effects_of_heads(
    name: str,
    text: str | None,
    *,
    target: str | None = None,
    kind: Kind = "zero",
    patch_text: str | None = None,
    logit: str | None = None,
    against: str | None = None,
    layer: str | None = None,
    positions: Sequence[int] | None = None,
    estimated: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Ablation, Measure]:
    """Replace heads one after the other; returns the changes of a measure, and the measure.

    Args:
        name: of a run, or of a model of Hugging Face.
        text: that the model reads; None: of a run, some of its validation data.
        target: of an encoder-decoder, what it is to write.
        kind: see `headloom.analysis.effects.ablation.ablate`.
        patch_text: another text, of as many tokens, whose outputs replace those of the heads.
        logit, against: the token whose logit is measured, less that of another; None: the loss.
        layer: only heads of this one, by its number or its path.
        positions: the only ones where heads give something else; None: all.
        estimated: all changes from one gradient, instead of a run for each.
        progress: told how many runs of how many are done.

    Raises: InputError: options that do not fit each other or the model.
    """
    _check_against(logit, against)
    if text is None and (patch_text, positions) != (None, None):
        raise InputError("--patch and --at need --text, on which the heads are replaced.")
    if patch_text is not None and kind != "zero":
        raise InputError(
            "--patch and --replacement: both say what replaces the outputs of heads. Leave one out."
        )
    model = load(name)
    network, measure = model.module, _measure(model, text, target, logit, against)
    if estimated and not measure.differentiable:
        raise InputError(
            f"--estimate: {name} predicts nothing, and the {measure.name}, which is measured "
            "instead, has no gradient where nothing is changed. Leave --estimate out, or give a "
            "model that predicts."
        )
    layers = attention_layers(network, measure.run)
    heads = [
        (number, head)
        for number, ran in enumerate(layers)
        for head in range(ran.heads)
        if layer in (None, str(number), ran.name)
    ]
    if not heads:
        raise InputError(
            f"--layer {layer}: the model has layers 0 to {len(layers) - 1}: "
            f"{', '.join(ran.name for ran in layers[:3])} ..."
        )
    source = None
    if patch_text is not None:
        source = _measure(model, patch_text, target, logit, against).run
    run = measure.run
    if estimated:
        kind = kind if source is None else "patch"
        result = estimate(network, run, kind=kind, source=source, heads=heads, positions=positions)
    elif source is None:
        result = ablate(
            network, run, kind=kind, heads=heads, positions=positions, progress=progress
        )
    else:
        result = patch(network, run, source, heads=heads, positions=positions, progress=progress)
    if text is not None:
        read = text + (target or "") + (patch_text or "")
        tell_unknown("the text", model._unknown_parts(read))
    return result, measure


def _measure(
    model: Model, text: str | None, target: str | None, logit: str | None, against: str | None
) -> Measure:
    if logit is None:
        return model._loss(text, target)
    if text is None:
        raise InputError("--logit needs --text, after which the token comes.")
    prediction = model._prediction(text, target, None)
    token = prediction.number("--logit", logit)
    name, other = f"logit of {logit!r}", None
    if against is not None:
        other = prediction.number("--against", against)
        name += f" less that of {against!r}"
    place = _place(prediction, None)

    def run() -> Tensor:
        logits = _logits(prediction, prediction.network(**prediction.inputs), place)
        return logits[token] if other is None else logits[token] - logits[other]

    one_sequence = not prediction.read or prediction.tokens == prediction.read
    return Measure(name, run, prediction.tokens if one_sequence else ())


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
    _check_against(logit, against)
    model = load(name)
    prediction = model._prediction(text, target, position)
    network, pooling, place = prediction.network, prediction.pooling, _place(prediction, position)
    number = None if logit is None else prediction.number("--logit", logit)
    other = None if against is None else prediction.number("--against", against)
    inputs: dict[str, Any] = dict(prediction.inputs)
    is_last = place is not None and place == len(prediction.read) - 1
    if is_last and "logits_to_keep" in inspect.signature(network.forward).parameters:
        inputs["logits_to_keep"] = 1
    if number is None:
        with torch.no_grad():
            number = int(_logits(prediction, network(**inputs), place).argmax())
    value = 0.0
    rows: int | Tensor = place or 0
    parts: Tensor | None = None
    if pooling is not None:
        # The pooling is one more layer, of one query and one head, whose values are what positions
        # add to the logit: like every layer it is weighed, and what is negative counts nothing.
        parts = pooling.parts()
        parts = parts[:, number] if other is None else parts[:, number] - parts[:, other]
        rows = parts.clamp(min=0)

    def score(output: Any) -> Tensor:
        nonlocal value
        logits = _logits(prediction, output, place)
        asked = logits[number] if other is None else logits[number] - logits[other]
        value = float(asked.detach())
        return asked

    (values,) = relevance(network, inputs, score, rows=rows).tolist()
    tell_unknown("the text", model._unknown_parts(text + (target or "")))
    return Relevance(
        _name(prediction, number),
        None if other is None else _name(prediction, other),
        value,
        place,
        None if place is None else shown(prediction.read)[place],
        prediction.tokens,
        values,
        None if pooling is None else pooling.name,
        None if parts is None else parts.tolist(),
    )


def _check_against(logit: str | None, against: str | None) -> None:
    if against is not None and logit is None:
        raise InputError(
            "--against needs --logit, the token or label from whose logit it is subtracted."
        )


def _name(prediction: Prediction, number: int) -> str:
    """The token or the label of a logit."""
    return str(shown(prediction.names([number]))[0])


def _place(prediction: Prediction, position: int | None) -> int | None:
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


def _logits(prediction: Prediction, output: Any, place: int | None) -> Tensor:
    """The logits of one position of an output; None: those of a classifier."""
    logits: Tensor = output if isinstance(output, Tensor) else output.logits
    if place is None:
        return logits[0]
    # Some models are asked for their last logits alone.
    count, read = logits.shape[1], len(prediction.read)
    return logits[0, place - read if count < read else place]
