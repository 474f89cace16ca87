"""What the heads of a model are needed for, and which tokens a prediction of it comes from."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import Tensor

from headloom.analysis.effects import ablation, estimates
from headloom.analysis.effects import relevance as gradients
from headloom.api.questions import Measure, Prediction, Questions, tell_unknown
from headloom.errors import InputError
from headloom.formats.tokens import shown
from headloom.tracing.model_state import evaluation_mode

if TYPE_CHECKING:
    import pandas

#: What a head gives instead of its output.
Replacement: TypeAlias = Literal["zero", "mean", "uniform"]


def ablate(
    model: Questions,
    text: object = None,
    *,
    target: str | None = None,
    replacement: Replacement = "zero",
    patch: str | None = None,
    logit: str | None = None,
    against: str | None = None,
    layer: str | int | None = None,
    at: Sequence[int] | None = None,
    estimate: bool = False,
    data: object = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> pandas.DataFrame:
    """Replace the output of each head in turn, and measure how the loss, or a logit, changes.

    Args:
        text: that the model reads; None: of a run, some of its validation data.
        target: of an encoder-decoder, what it writes; of a run of a classifier, the label.
        replacement: what a head gives instead of its output: "zero", its "mean", or the
            "uniform" mean of the values that it may look at.
        patch: another text with as many tokens: each head gives its output on that one.
        logit: a token, or a label, whose logit is measured; None: the loss.
        against: another, whose logit is subtracted.
        layer: only heads of this one, by its number or its path.
        at: the only positions where heads give something else, negative ones from the end.
        estimate: all changes from one gradient, instead of a run for each.
        data: instead of a text: examples, as `evaluate` takes them, or texts.
        progress: told how many runs of how many are done.

    Returns: a DataFrame, a row a head, the largest changes first: layer, head, the measure by
    its name, change; of estimates on one text most_at, the position that adds most, its token,
    and there, what it adds. ``attrs``: baseline, measure, kind, layers (their paths).

    Raises: InputError: options that do not fit each other or the model.
    """
    text = text if data is None else data
    _check_against(logit, against)
    if text is None and (patch, at) != (None, None):
        raise InputError("patch and at need text, on which the heads are replaced.")
    if patch is not None and replacement != "zero":
        raise InputError(
            "patch and replacement: both say what replaces the outputs of heads. Leave one out."
        )
    network, measure = model.module, _measure(model, text, target, logit, against)
    if estimate and not measure.differentiable:
        raise InputError(
            f"estimate: {model.name} predicts nothing, and the {measure.name}, which is measured "
            "instead, has no gradient where nothing is changed. Leave estimate out, or give a "
            "model that predicts."
        )
    layers = ablation.attention_layers(network, measure.run)
    heads = [
        (number, head)
        for number, ran in enumerate(layers)
        for head in range(ran.heads)
        if layer is None or str(layer) in (str(number), ran.name)
    ]
    if not heads:
        raise InputError(
            f"layer {layer}: the model has layers 0 to {len(layers) - 1}: "
            f"{', '.join(ran.name for ran in layers[:3])} ..."
        )
    source = None if patch is None else _measure(model, patch, target, logit, against).run
    run, kind = measure.run, replacement if source is None else "patch"
    with evaluation_mode(network):
        if estimate:
            result = estimates.estimate(
                network, run, kind=kind, source=source, heads=heads, positions=at
            )
        elif source is None:
            result = ablation.ablate(
                network, run, kind=kind, heads=heads, positions=at, progress=progress
            )
        else:
            result = ablation.patch(
                network, run, source, heads=heads, positions=at, progress=progress
            )
    if isinstance(text, str):
        tell_unknown("the text", model._unknown_parts(text + (target or "") + (patch or "")))
    frame = result.by_change().to_pandas().rename(columns={"value": measure.name})
    frame = frame.drop(columns=["heads", "name"])
    if "most_at" in frame and len(measure.tokens) == max(len(e.at) for e in result.effects):
        names = shown(measure.tokens)
        places = frame["most_at"]
        frame.insert(
            len(frame.columns) - 1, "token", [None if p != p else names[int(p)] for p in places]
        )
    frame.attrs |= {
        "model": model.name, "measure": measure.name, "kind": result.kind,
        "estimated": result.estimated, "baseline": result.baseline,
        "layers": [each.name for each in result.layers],
        "at": {f"{n}.{h}": list(e.at) for e in result.effects for n, h in e.heads if e.at},
    }  # fmt: skip
    return frame


def _measure(
    model: Questions, text: object, target: str | None, logit: str | None, against: str | None
) -> Measure:
    if logit is None:
        return model._loss(text, target)
    if not isinstance(text, str):
        raise InputError("logit needs text, after which the token comes.")
    prediction = model._prediction(text, target, None)
    token = prediction.number("logit", logit)
    name, other = f"logit of {logit!r}", None
    if against is not None:
        other = prediction.number("against", against)
        name += f" less that of {against!r}"
    place = _place(prediction, None)

    def run() -> Tensor:
        output = prediction.network(**prediction.inputs)
        return _less(_logits(prediction, output, place), token, other)

    one_sequence = not prediction.read or prediction.tokens == prediction.read
    return Measure(name, run, prediction.tokens if one_sequence else ())


def relevance(
    model: Questions,
    text: str | None = None,
    *,
    target: str | None = None,
    logit: str | None = None,
    against: str | None = None,
    token: int | None = None,
) -> pandas.DataFrame:
    """Weigh each token of a text for a prediction, by weights and gradients.

    See `headloom.analysis.effects.relevance`.

    Args:
        text: that the model reads.
        target: of an encoder-decoder, what it has written so far; None: a run's own.
        logit: the token or the label that is predicted; None: the likeliest.
        against: another, whose logit is subtracted.
        token: the position that the prediction comes after; None: the last one, or a mask.

    Returns: a DataFrame, the most relevant token first: position, token, relevance. ``attrs``:
    predicted and its logit; position and after, of the token that it comes after.

    Raises: InputError: no text, a word of several tokens, no such position.
    """
    import pandas

    if text is None:
        raise InputError("relevance: give the text that the model reads.")
    _check_against(logit, against)
    prediction = model._prediction(text, target, token)
    network, place = prediction.network, _place(prediction, token)
    number = None if logit is None else prediction.number("logit", logit)
    other = None if against is None else prediction.number("against", against)
    inputs: dict[str, Tensor | int] = dict(prediction.inputs)
    is_last = place is not None and place == len(prediction.read) - 1
    if is_last and "logits_to_keep" in inspect.signature(network.forward).parameters:
        inputs["logits_to_keep"] = 1
    if number is None:
        with torch.no_grad():
            number = int(_logits(prediction, network(**inputs), place).argmax())
    value = 0.0
    rows: int | Tensor = place or 0
    parts: Tensor | None = None
    if prediction.parts is not None:
        # The pooling is one more layer, of one query and one head, whose values are what positions
        # add to the logit: like every layer it is weighed, and what is negative counts nothing.
        parts = _less(prediction.parts(), number, other)
        rows = parts.clamp(min=0)

    def score(output: object) -> Tensor:
        nonlocal value
        asked = _less(_logits(prediction, output, place), number, other)
        value = float(asked.detach())
        return asked

    with evaluation_mode(network):
        (values,) = gradients.relevance(network, inputs, score, rows=rows).tolist()
    tell_unknown("the text", model._unknown_parts(text + (target or "")))
    tokens = shown(prediction.tokens)
    frame = pandas.DataFrame(
        {"position": range(len(tokens)), "token": list(tokens), "relevance": values}
    ).sort_values("relevance", ascending=False, kind="stable", ignore_index=True)
    frame.attrs |= {
        "model": model.name, "predicted": _name(prediction, number), "logit": value,
        "against": None if other is None else _name(prediction, other), "position": place,
        "after": None if place is None else shown(prediction.read)[place],
        "tokens": list(prediction.tokens), "pooling": prediction.pooling,
        "parts": None if parts is None else parts.tolist(),
    }  # fmt: skip
    return frame


def _check_against(logit: str | None, against: str | None) -> None:
    if against is not None and logit is None:
        raise InputError(
            "against needs logit, the token or label from whose logit it is subtracted."
        )


def _name(prediction: Prediction, number: int) -> str:
    """The token or the label of a logit."""
    return str(shown(prediction.names([number]))[0])


def _place(prediction: Prediction, position: int | None) -> int | None:
    """The position that is asked, from 0; None: of a classifier."""
    count = len(prediction.read)
    if not count:
        if position is not None:
            raise InputError("token: a classifier predicts one label for the whole text.")
        return None
    place = prediction.masked if position is None else position
    place = count - 1 if place is None else place
    if not -count <= place < count:
        raise InputError(f"token {place}: there are tokens 0 to {count - 1}.")
    return place % count


def _less(logits: Tensor, number: int, other: int | None) -> Tensor:
    """One of logits, in the last dimension, less another."""
    return logits[..., number] if other is None else logits[..., number] - logits[..., other]


def _logits(prediction: Prediction, output: Any, place: int | None) -> Tensor:
    """The logits of one position of an output; None: those of a classifier."""
    logits: Tensor = output if isinstance(output, Tensor) else output.logits
    if place is None:
        return logits[0]
    # Some models are asked for their last logits alone.
    count, read = logits.shape[1], len(prediction.read)
    return logits[0, place - read if count < read else place]
