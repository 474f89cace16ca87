"""Relevance: which input tokens a prediction comes from, by weights and their gradients.

    R = (I + A_L) ... (I + A_1)

of the weights of each layer, weighed (`headloom.analysis.effects.gradient_weights`): a weight
counts as far as y, the logit that is asked about, would grow with it, so that, other than in
rollout, heads that do not matter to y do not matter. Of an encoder-decoder, with n(R) = I + (R - I)
/ (its row sums), 0 where these are 0, and R_s of the source, R_t of the target:

    self-attention of the target:  R_t <- R_t + A R_t,  R_ts <- R_ts + A R_ts
    cross-attention:               R_ts <- R_ts + n(R_t)^T A n(R_s)

Source: Chefer, Gur and Wolf 2021, equations 5, 6, 8 to 10.

A row of R is one product with A^T a layer, from the last layer down: the way that the gradient
goes. So a layer is done with when the gradient leaves it (`headloom.analysis.effects.gradients`),
and memory is linear in the length. Those of an encoder-decoder are needed again, and stay.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex

import torch
from torch import Tensor, nn

from headloom.analysis.effects.gradient_weights import Weighted
from headloom.analysis.effects.gradients import Layer, backward
from headloom.analysis.effects.head_outputs import Reached
from headloom.errors import InputError
from headloom.tracing.arguments import Arguments, Inputs, token_limit
from headloom.tracing.recording.sequences import on_device_of
from headloom.tracing.sources.transformers import is_transformers_model

__all__ = ["Target", "first_rows", "relevance", "weighted_layers"]

#: Which logit is asked about: its number, or a function from the model's output to one number.
Target = int | Callable[[Any], Tensor]


def relevance(
    model: nn.Module,
    inputs: Inputs | Tensor,
    target: Target | None = None,
    *,
    position: int = -1,
    rows: int | Sequence[int] | Tensor | None = None,
) -> Tensor:
    """How relevant each input token is for a prediction.

    The model runs once as in evaluation, with gradients, and is left as it was.

    Args:
        model: made of headloom's attention layers, or of Transformers and using its attention
            interface.
        inputs: of one text, as for `headloom.trace`.
        target: which logit: its number; or a function from the model's output to one number; None:
            the largest.
        position: of the logits that are asked; not of a model that classifies the whole text.
        rows: which positions of R are wanted; a tensor, (positions,): one row, the sum of all,
            each times its number, as of a model that pools its outputs; None: the one whose logits
            are asked, or the first of a model that classifies.

    Returns: (rows, keys), 0 or more: what each row holds of each input token; of an
    encoder-decoder, of the source's tokens. A row holds 1 of itself where the tokens are its own.

    Raises: InputError: a model whose attention cannot be reached, a batch, a text that is too long,
    or an output without logits and no function to ask it.

    >>> from headloom.mechanism.multihead import MultiHeadAttention
    >>> layer = MultiHeadAttention(4, heads=2)               # what it gives is taken as logits
    >>> found = relevance(layer, torch.eye(4)[None], target=2)
    >>> found.shape, bool(found[0, -1] >= 1)                 # of itself, at least
    (torch.Size([1, 4]), True)
    """
    held: Tensor | None = None
    kept: list[Weighted] = []
    pair = False

    def measure(layers: Sequence[Layer]) -> Tensor:
        nonlocal held, pair
        score, asked = _score(model(**given), target, position)
        if not layers:  # which `backward` refuses
            return score
        pair = any(layer.kind == "cross" for layer in layers)
        if not pair:
            _check_one_sequence(layers)
        held = first_rows(asked if rows is None else rows, layers[-1].shape[0])
        return score

    def receive(number: int, reached: Reached, gradient: Tensor) -> None:
        nonlocal held
        layer = Weighted.of(reached, gradient)
        assert held is not None
        held = held.to(layer.values)
        if pair:
            kept.insert(0, layer)
        else:
            held = held + layer.transposed(held)

    given = _inputs(model, inputs, last=position == -1 and not callable(target))
    backward(model, measure, receive, operation="relevance", scoring=True)
    assert held is not None
    if pair:
        own = [layer for layer in kept if layer.kind != "encoder"]
        held = _across(own, [layer for layer in kept if layer.kind == "encoder"], held)
    return held.T


def first_rows(rows: int | Sequence[int] | Tensor, length: int) -> Tensor:
    """What is asked for, (length, wanted): a column for each row of R."""
    if isinstance(rows, Tensor):
        if rows.shape != (length,):
            raise InputError(
                f"relevance: rows= has shape {tuple(rows.shape)}; the last layer has {length} "
                "positions. Give a number for each."
            )
        return rows.detach()[:, None]
    wanted = [int(row) for row in ([rows] if isinstance(rows, SupportsIndex) else rows)]
    if not all(-length <= row < length for row in wanted):
        raise InputError(
            f"relevance: rows {list(wanted)}; the last layer has positions 0 to {length - 1}."
        )
    chosen = torch.zeros(length, len(wanted))
    chosen[torch.tensor(wanted) % length, torch.arange(len(wanted))] = 1
    return chosen


def _check_one_sequence(layers: Sequence[Layer]) -> None:
    """Raise an InputError where layers look at sequences that no layer leads between."""
    shapes = sorted({layer.shape for layer in layers})
    if len(shapes) > 1 or shapes[0][0] != shapes[0][1]:
        found = ", ".join(f"{queries} x {keys}" for queries, keys in shapes)
        raise InputError(
            f"relevance: the layers have queries and keys {found}; expected one sequence, or an "
            "encoder-decoder."
        )


def _back(layers: Sequence[Weighted], held: Tensor) -> Tensor:
    """``R^T y``: from the last layer down."""
    for layer in reversed(layers):
        held = held + layer.transposed(held)
    return held


def _forth(layers: Sequence[Weighted], held: Tensor) -> Tensor:
    """``R x``: from the first layer up."""
    for layer in layers:
        held = held + layer @ held
    return held


def _across(own: Sequence[Weighted], source: Sequence[Weighted], held: Tensor) -> Tensor:
    """``R_ts^T y`` of an encoder-decoder."""
    ones = torch.ones(source[0].shape[1] if source else own[-1].shape[1], 1)
    of_source = _forth(source, ones) - ones
    found = torch.zeros(len(ones), held.shape[1])
    for number in reversed(range(len(own))):
        layer = own[number]
        if layer.kind != "cross":
            held = held + layer.transposed(held)
            continue
        below = [earlier for earlier in own[:number] if earlier.kind != "cross"]
        # n(R_t) y, then A^T, then n(R_s)^T.
        both = torch.cat((held, torch.ones(len(held), 1)), 1)
        moved = _forth(below, both) - both
        given = layer.transposed(held + _over(moved[:, :-1], moved[:, -1:]))
        shares = _over(given, of_source)
        found += given + _back(source, shares) - shares
    return found


def _over(above: Tensor, below: Tensor) -> Tensor:
    return torch.where(below > 0, above / below.clamp(min=1e-30), 0.0)


def weighted_layers(
    model: nn.Module,
    inputs: Inputs | Tensor,
    target: Target | None = None,
    *,
    position: int = -1,
) -> tuple[list[Weighted], int]:
    """The layers of a model, weighed by the gradient of a prediction. Takes what `relevance` takes.

    Returns: those that the prediction depends on, in the order of the run, and the position that
    is asked. They hold queries, keys, values and gradients of all layers at once.
    """
    found: list[Weighted] = []
    asked = position

    def measure(layers: Sequence[Layer]) -> Tensor:
        nonlocal asked
        score, asked = _score(model(**given), target, position)
        return score

    def receive(_: int, reached: Reached, gradient: Tensor) -> None:
        found.insert(0, Weighted.of(reached, gradient))

    given = _inputs(model, inputs, last=position == -1 and not callable(target))
    backward(model, measure, receive, operation="relevance", scoring=True)
    return found, asked


def _inputs(model: nn.Module, inputs: Inputs | Tensor, *, last: bool) -> Arguments:
    """The arguments of the model; last: of all logits, the last ones alone are asked about."""
    if isinstance(inputs, Tensor):
        inputs = {next(iter(inspect.signature(model.forward).parameters)): inputs}
    given = on_device_of(model, inputs)
    sizes = {len(value) for value in given.values() if isinstance(value, Tensor)}
    if sizes != {1}:
        raise InputError(
            f"relevance: a batch of {max(sizes, default=0)} inputs; expected one text."
        )
    if any(isinstance(value, Tensor) and not value.numel() for value in given.values()):
        raise InputError("relevance: the text is empty; expected at least one token.")
    if is_transformers_model(model):
        limit = token_limit(model)
        for name in ("input_ids", "decoder_input_ids"):
            if limit is not None and name in given and given[name].shape[1] > limit:
                raise InputError(
                    f"relevance: {given[name].shape[1]} tokens in {name}; {type(model).__name__} "
                    f"reads {limit} at most. Shorten the text."
                )
        given.setdefault("use_cache", False)
        takes = inspect.signature(model.forward).parameters
        if last and "logits_to_keep" in takes:
            given.setdefault("logits_to_keep", 1)
    return given


def _score(output: Any, target: Target | None, position: int) -> tuple[Tensor, int]:
    """The number that is asked about, and the position that it is of."""
    if callable(target):
        score = target(output)
        if not isinstance(score, Tensor) or score.numel() != 1:
            raise InputError("relevance: target= gave no single number in a tensor.")
        return _real(score), position
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if logits is None or logits.ndim not in (2, 3):
        raise InputError(
            f"relevance: the output, {type(output).__name__}, has no logits. Give a model that "
            "predicts, or target= a function from its output to one number."
        )
    of_one = logits[0]
    if of_one.ndim == 2:
        if not -len(of_one) <= position < len(of_one):
            raise InputError(
                f"relevance: no position {position}; there are logits of 0 to {len(of_one) - 1}."
            )
        of_one = of_one[position]
    else:
        position = 0
    if target is not None and not 0 <= target < len(of_one):
        raise InputError(f"relevance: no logit {target}; there are 0 to {len(of_one) - 1}.")
    return _real(of_one[int(of_one.argmax()) if target is None else target]), position


def _real(score: Tensor) -> Tensor:
    if not bool(score.isfinite()):
        raise InputError(
            f"relevance: the prediction is {float(score.detach())}. The model's weights, or its "
            "inputs, hold what is no finite number."
        )
    return score
