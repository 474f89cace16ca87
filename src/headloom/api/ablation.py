"""The effect of each head of a model: on its loss, or on a logit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from headloom.analysis.effects.ablation import Ablation, Group, ablate, attention_layers, patch
from headloom.analysis.effects.estimates import estimate
from headloom.analysis.effects.interventions import Kind
from headloom.api.model import Measure, Model, tell_unknown
from headloom.api.opening import open_model
from headloom.api.relevance import logits_at, place_of
from headloom.errors import InputError
from headloom.mechanism.shapes import in_words

__all__ = ["HeadQuestion", "effects_of_heads"]


@dataclass(frozen=True)
class HeadQuestion:
    """What is measured of a model, and of which of its heads.

    text: that the model reads; None: of a run, some of its validation data.
    target: of an encoder-decoder, what it is to write.
    patch: another text, of as many tokens, whose outputs replace those of the heads.
    logit, against: the token whose logit is measured, less that of another; None: the loss.
    layer: only heads of this one, by its number or its path.
    positions: the only ones where heads give something else; None: all.
    estimated: all changes from one gradient, instead of a run for each.
    """

    text: str | None = None
    target: str | None = None
    patch: str | None = None
    logit: str | None = None
    against: str | None = None
    layer: str | None = None
    positions: Sequence[int] | None = None
    estimated: bool = False


def effects_of_heads(
    name: str, question: HeadQuestion, kind: Kind, progress: Callable[[int, int], None]
) -> tuple[Ablation, Measure]:
    """Replace heads one after the other; returns the changes of a measure, and the measure.

    Args:
        name: of a run, or of a model of Hugging Face.
        question: see HeadQuestion.
        kind: see `headloom.analysis.effects.ablation.ablate`.
        progress: told how many runs of how many are done.

    Raises: InputError: options that do not fit each other or the model.
    """
    if question.against is not None and question.logit is None:
        raise InputError("--against needs --logit, the token from whose logit it is subtracted.")
    if question.text is None and (question.patch is not None or question.positions is not None):
        raise InputError("--patch and --at need --text, on which the heads are replaced.")
    if question.patch is not None and kind != "zero":
        raise InputError(
            "--patch and --replacement: both say what replaces the outputs of heads. Leave one out."
        )
    model = open_model(name, predicting=True)
    measure = _measure(model, question, question.text)
    if question.estimated and not measure.differentiable:
        raise InputError(
            f"--estimate: the {measure.name} has no gradient where nothing is changed. Leave "
            "--estimate out, or give a model that predicts."
        )
    heads = _heads(model, question, measure)
    network, positions = model.network, question.positions
    source = None if question.patch is None else _patch(model, question, question.patch)
    if question.estimated:
        kind = kind if source is None else "patch"
        result = estimate(
            network, measure.run, kind=kind, source=source, heads=heads, positions=positions
        )
    elif source is None:
        result = ablate(
            network, measure.run, kind=kind, heads=heads, positions=positions, progress=progress
        )
    else:
        result = patch(
            network, measure.run, source, heads=heads, positions=positions, progress=progress
        )
    if question.text is not None:
        read = question.text + (question.target or "") + (question.patch or "")
        tell_unknown("the text", model.unknown_parts(read))
    return result, measure


def _patch(model: Model, question: HeadQuestion, text: str) -> Callable[[], Tensor]:
    """Runs the model on the other text."""
    try:
        return _measure(model, question, text).run
    except InputError as error:
        reason = str(error).removesuffix(" Give more text.")
        raise InputError(
            f"--patch {in_words(text)}: {reason} Give another text of as many tokens as --text."
        ) from None


def _measure(model: Model, question: HeadQuestion, text: str | None) -> Measure:
    if question.logit is None:
        return model.loss(text, question.target)
    if text is None:
        raise InputError("--logit needs --text, after which the token comes.")
    prediction = model.prediction(text, question.target, None)
    token = prediction.number("--logit", question.logit)
    name, other = f"logit of {question.logit!r}", None
    if question.against is not None:
        other = prediction.number("--against", question.against)
        name += f" less that of {question.against!r}"
    place = place_of(prediction, None)

    def run() -> Tensor:
        logits = logits_at(prediction, prediction.network(**prediction.inputs), place)
        return logits[token] if other is None else logits[token] - logits[other]

    tokens = (
        prediction.tokens if prediction.tokens == prediction.read or not prediction.read else ()
    )
    return Measure(name, run, tokens)


def _heads(model: Model, question: HeadQuestion, measure: Measure) -> list[Group]:
    """The heads that are asked about."""
    layers = attention_layers(model.network, measure.run)
    names = [(str(number), layer.name) for number, layer in enumerate(layers)]
    chosen = [n for n, name in enumerate(names) if question.layer in (None, *name)]
    if not chosen:
        raise InputError(
            f"--layer {question.layer}: the model has layers 0 to {len(layers) - 1}: "
            f"{', '.join(layer.name for layer in layers[:3])} ..."
        )
    return [(number, head) for number in chosen for head in range(layers[number].heads)]
