"""Relevance of input tokens for a prediction, from weights and their gradients.

    R = (I + A_L) ... (I + A_1),    A = mean over heads of max(0, dy/dP * P)    elementwise

P are the weights of a layer, y the target logit: a weight counts as much as y grows with it, so
that, unlike in rollout, heads without influence on y do not count. In an encoder-decoder, R_s is of
the source, R_t of the target, and R_ts of the target's rows and the source's columns, with n(R) = I
+ (R - I) / (its row sums), 0 if these are 0:

    self-attention of the target:  R_t <- R_t + A R_t,  R_ts <- R_ts + A R_ts
    cross-attention:               R_ts <- R_ts + n(R_t)^T A n(R_s)

The model need not form its weights: for the output o of a head, dy/dp_ij = (dy/do_i) . v_j. So
cells are computed from queries, keys, values and dy/do, in blocks of rows. A row of R takes one
product with A^T for each layer, from the last layer down, in the order of the backward pass. So
each layer is freed after its gradient (`headloom.analysis.effects.gradients`), and memory is linear
in the length. The matrices of an encoder-decoder are formed whole.

Source: Chefer, Gur and Wolf 2021, equations 5, 6, 8 to 10.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, SupportsIndex

import torch
from torch import Tensor, nn

from headloom.analysis.effects.gradients import backward
from headloom.analysis.weights import row_tiles
from headloom.errors import InputError
from headloom.mechanism.masks import causal
from headloom.mechanism.matrix.attention_matrix import AttentionMatrix
from headloom.mechanism.positions import Shaw
from headloom.mechanism.shapes import repeat_kv_heads
from headloom.tracing.arguments import Inputs, batch_of
from headloom.tracing.huggingface import reader_of
from headloom.tracing.recording.layer_call import LayerCall

#: Target logit: its number, or a function from the model's output to one number.
Target = int | Callable[[Any], Tensor]


def relevance(
    model: nn.Module, inputs: Inputs | Tensor, target: Target | None = None, *, position: int = -1,
    rows: int | Sequence[int] | Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return the relevance of each input token for a prediction.

    The model runs once in evaluation mode, with gradients, and is left unchanged.

    Args:
        model: of headloom's attention layers, or of Transformers with its attention interface.
        inputs: of one text, as for `headloom.trace`.
        target: number of the logit; or a function from the model's output to one number; None:
            the largest logit.
        position: of the logits; ignored for a model that classifies the whole text.
        rows: positions of R; a tensor, (positions,): one row, the sum of all rows with these
            factors, for a model that pools its outputs; None: the position of the logits, or the
            first one of a classifier.

    Returns: (rows, keys), 0 or more: the relevance of each input token for each row; in an
    encoder-decoder, of the source's tokens. A row has a relevance of 1 for itself if the tokens are
    its own.

    Raises: InputError: a model whose attention cannot be traced, a batch, a text that is too long,
    or an output without logits and no function as target.

    >>> from headloom.mechanism.multihead import MultiHeadAttention
    >>> layer = MultiHeadAttention(4, heads=2)               # its output is read as logits
    >>> tokens = relevance(layer, torch.eye(4)[None], target=2)
    >>> tokens.shape, bool(tokens[0, -1] >= 1)               # at least 1 for itself
    (torch.Size([1, 4]), True)
    """
    reader = reader_of(model, "relevance")
    arguments = reader.arguments(inputs, None, False)
    if batch_of(arguments) != 1:
        raise InputError(f"relevance: a batch of {batch_of(arguments)} inputs; expected one text.")
    takes = inspect.signature(reader.model.forward).parameters
    if position == -1 and not callable(target) and "logits_to_keep" in takes:
        arguments.setdefault("logits_to_keep", 1)  # only the last logits are used
    relevances = torch.zeros(0)
    is_pair = False
    layers: list[tuple[str, Tensor]] = []

    def measure(calls: Sequence[LayerCall]) -> Tensor:
        nonlocal relevances, is_pair
        score, place = _score(reader.model(**arguments), target, position)
        is_pair = any(call.kind == "cross" for call in calls)
        sizes = {size for call in calls for size in (call.queries.shape[2], call.keys.shape[2])}
        if len(sizes) > 1 and not is_pair:
            raise InputError(
                f"relevance: the layers have queries or keys of {sorted(sizes)} positions; "
                "expected one sequence, or an encoder-decoder."
            )
        if calls:  # otherwise `backward` raises an error
            relevances = _wanted(place if rows is None else rows, calls[-1].queries.shape[2])
        return score

    def receive(call: LayerCall, output: Tensor, gradient: Tensor) -> None:
        nonlocal relevances
        if is_pair:
            cells = [tile for _, tile in _weighed(call, gradient, ahead=True)]
            layers.insert(0, (call.kind, torch.cat(cells)))
            return
        relevances = relevances.to(gradient)
        added = torch.zeros_like(relevances)
        for part, tile in _weighed(call, gradient, ahead=call.mask != causal()):
            added[: tile.shape[1]] += tile.T @ relevances[part.start : part.stop]
        relevances = relevances + added

    backward(reader.model, measure, receive, operation="relevance")
    if not is_pair:
        return relevances.T
    across = _across(layers)
    return relevances.T.to(across) @ across


def _wanted(rows: int | Sequence[int] | Tensor, length: int) -> Tensor:
    """Return the requested rows of R as columns, (length, rows)."""
    if isinstance(rows, Tensor):
        return rows.detach()[:, None]
    places = [int(row) for row in ([rows] if isinstance(rows, SupportsIndex) else rows)]
    if not all(-length <= row < length for row in places):
        raise InputError(
            f"relevance: rows {places}; the last layer has positions 0 to {length - 1}."
        )
    return torch.eye(length)[:, places]


def _weighed(call: LayerCall, gradient: Tensor, *, ahead: bool) -> Iterator[tuple[range, Tensor]]:
    """Yield A of a layer in blocks of rows, (rows, keys); ahead: whether rows see later keys."""
    options = {**call.arguments(), "bias": None if call.bias is None else call.bias[0]}
    matrix = AttentionMatrix(call.queries[0], call.keys[0], **options)
    values = repeat_kv_heads(call.values, matrix.shape[0])[0].to(matrix.queries.dtype)
    table = None
    if isinstance(call.relative, Shaw) and call.relative.value_table is not None:
        table = Shaw(call.relative.value_table.detach(), offset=call.relative.offset)
    for rows, columns, tile in row_tiles(matrix, causal=not ahead):
        part = gradient[:, :, rows.start : rows.stop].to(values.dtype)
        slopes = part[0] @ values[:, : len(columns)].mT
        if table is not None:  # relative positions are added to the values
            slopes += table.key_scores(part, rows, len(columns))[0]
        yield rows, (tile * slopes.clamp(min=0)).mean(0)


def _across(layers: Sequence[tuple[str, Tensor]]) -> Tensor:
    """Return R_ts of an encoder-decoder, from the kind and A of each layer."""
    across = torch.zeros_like(next(cells for kind, cells in layers if kind == "cross"))
    of_target, of_source = (torch.eye(size).to(across) for size in across.shape)
    for _, cells in (layer for layer in layers if layer[0] == "encoder"):
        of_source = of_source + cells @ of_source
    for kind, cells in (layer for layer in layers if layer[0] != "encoder"):
        if kind == "cross":
            across = across + _normalised(of_target).T @ cells @ _normalised(of_source)
        else:
            of_target, across = of_target + cells @ of_target, across + cells @ across
    return across


def _normalised(matrix: Tensor) -> Tensor:
    """Return n(R): the rows of R - I are scaled to sum to 1, or stay 0."""
    identity = torch.eye(len(matrix)).to(matrix)
    sums = (matrix - identity).sum(1, keepdim=True)
    return identity + torch.where(sums > 0, (matrix - identity) / sums.clamp(min=1e-30), 0.0)


def _score(output: Any, target: Target | None, position: int) -> tuple[Tensor, int]:
    """Return the target number, and its position."""
    if callable(target):
        return target(output), position
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if logits is None or logits.ndim not in (2, 3):
        raise InputError(
            f"relevance: the output, {type(output).__name__}, has no logits. Give a model that "
            "predicts, or target= a function from its output to one number."
        )
    of_input = logits[0]
    if of_input.ndim == 1:
        position = 0
    else:
        of_input = of_input[position]
    return of_input[int(of_input.argmax()) if target is None else target], position
