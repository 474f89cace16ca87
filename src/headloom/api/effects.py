"""`headloom.ablate` and `headloom.relevance`: effects of heads, relevance of tokens."""

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

#: Replacements of a head's output.
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
        model: a model, see `headloom.load`.
        text: input of the model; None: of a run, some of its validation data.
        target: of an encoder-decoder, its output; of a run of a classifier, the label.
        replacement: of a head's output: "zero", its "mean" over positions, or the "uniform" mean
            of the values that the mask allows.
        patch: another text with equally many tokens: each head gives its output on that text.
        logit: a token, or a label, whose logit is measured; None: the loss.
        against: another one, whose logit is subtracted.
        layer: only heads of this layer, by its number or path.
        at: only replace at these positions, negative ones from the end.
        estimate: estimate all changes from one gradient, instead of a run for each.
        data: instead of a text: examples, as `evaluate` takes them, or texts.
        progress: called with the runs done and their total.

    Returns: a DataFrame, a row a head, the largest changes first: layer, head, the measure by
    its name, change; of estimates on one text most_at, the position with the largest share, its
    token, and there, that share. ``attrs``: baseline, measure, kind, layers (their paths).

    Raises: InputError: options that do not fit each other or the model.
    """
    text = text if data is None else data
    _check_against(logit, against)
    if text is None and (patch, at) != (None, None):
        raise InputError("patch and at need text.")
    if patch is not None and replacement != "zero":
        raise InputError("patch and replacement both replace the outputs of heads. Leave one out.")
    network, measure = model.module, _measure(model, text, target, logit, against)
    if estimate and not measure.differentiable:
        raise InputError(
            f"estimate: {model.name} makes no predictions, and the {measure.name}, measured "
            "instead, has no gradient at 0. Leave estimate out, or use a model that predicts."
        )
    layers = ablation.attention_layers(network, measure.run)
    heads = [
        (number, head)
        for number, attention in enumerate(layers)
        for head in range(attention.heads)
        if layer is None or str(layer) in (str(number), attention.name)
    ]
    if not heads:
        raise InputError(
            f"layer {layer}: the model has layers 0 to {len(layers) - 1}: "
            f"{', '.join(attention.name for attention in layers[:3])} ..."
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
        "layers": [attention.name for attention in result.layers],
        "at": {f"{n}.{h}": list(e.at) for e in result.effects for n, h in e.heads if e.at},
    }  # fmt: skip
    return frame


def _measure(
    model: Questions, text: object, target: str | None, logit: str | None, against: str | None
) -> Measure:
    if logit is None:
        return model._loss(text, target)
    if not isinstance(text, str):
        raise InputError("logit needs text, whose next token is predicted.")
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
        model: a model, see `headloom.load`.
        text: input of the model.
        target: of an encoder-decoder, its output so far; None: a run's own translation.
        logit: the predicted token or label; None: the most probable one.
        against: another one, whose logit is subtracted.
        token: the position before the prediction; None: the last one, or a mask.

    Returns: a DataFrame, the most relevant token first: position, token, relevance. ``attrs``:
    predicted and its logit; position and after, of the token before the prediction.

    Raises: InputError: no text, a word of several tokens, no such position.
    """
    import pandas

    if text is None:
        raise InputError("relevance: text is missing. Give the model's input.")
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
        # The pooling is treated as a layer of one query and one head, whose values are the shares
        # of positions in the logit; as in every layer, negative shares count as 0.
        parts = _less(prediction.parts(), number, other)
        rows = parts.clamp(min=0)

    def score(output: object) -> Tensor:
        nonlocal value
        logit = _less(_logits(prediction, output, place), number, other)
        value = float(logit.detach())
        return logit

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
        raise InputError("against needs logit, from which it is subtracted. Give logit too.")


def _name(prediction: Prediction, number: int) -> str:
    """Return the token or label of a logit."""
    return str(shown(prediction.names([number]))[0])


def _place(prediction: Prediction, position: int | None) -> int | None:
    """Return the position of the prediction, from 0; None: of a classifier."""
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
    """Subtract one logit from another, in the last dimension; None: nothing."""
    return logits[..., number] if other is None else logits[..., number] - logits[..., other]


def _logits(prediction: Prediction, output: Any, place: int | None) -> Tensor:
    """Return the logits of one position of an output; None: those of a classifier."""
    logits: Tensor = output if isinstance(output, Tensor) else output.logits
    if place is None:
        return logits[0]
    # Some models are called for their last logits alone.
    count, read = logits.shape[1], len(prediction.read)
    return logits[0, place - read if count < read else place]
