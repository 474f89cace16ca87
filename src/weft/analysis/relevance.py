"""Relevance: which input tokens a prediction comes from, by weights and their gradients.

    A_l = mean over heads of max(0, dy/dP * P)    elementwise
    R = (I + A_L) ... (I + A_1)

y is the logit that is asked about. A weight counts as far as y would grow with it, so that, other
than in rollout, heads that do not matter to y do not matter. Of an encoder-decoder, with n(R) = I +
(R - I) / (its row sums), 0 where these are 0, and R_s of the source, R_t of the target:

    self-attention of the target:  R_t <- R_t + A R_t,  R_ts <- R_ts + A R_ts
    cross-attention:               R_ts <- R_ts + n(R_t)^T A n(R_s)

Source: Chefer, Gur and Wolf 2021, equations 5, 6, 8 to 10.

A model need not form its weights for that: their gradient is what the output's gradient says,
dy/dp_ij = (dy/do_i) . v_j, so the model runs with fused attention, and cells are made from queries,
keys, values and dy/do some at a time. A row of R is one product with A^T a layer, from the last
layer down, in memory linear in the length.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from weft.errors import InputError
from weft.mechanism.function import attention
from weft.mechanism.graph import Keep, Top
from weft.mechanism.masks import Mask, as_mask, causal
from weft.mechanism.matrix import AttentionMatrix
from weft.mechanism.multihead import MultiHeadAttention
from weft.mechanism.observe import HeadOutputs, Observation, editing, layers_of, watching
from weft.mechanism.positions import Shaw
from weft.mechanism.shapes import repeat_kv_heads
from weft.tracing.at_rest import at_rest
from weft.tracing.interface import InterfaceCall, is_transformers_model, routed, routes
from weft.tracing.sequences import layer_kind, on_device_of

__all__ = ["Weighted", "relevance", "weighted_layers"]

#: Cells of a layer that are kept, where there are no more; of longer ones they are made again.
KEPT_CELLS = 2**24
#: Cells that are made at a time.
BLOCK_CELLS = 2**20

Target = int | Callable[[Any], Tensor]


@dataclass(eq=False)
class Weighted:
    """One layer's weights, weighed by the gradient of y: A of (queries, keys), never formed whole.

    name, kind: as a trace names them.
    matrix: the weights; values: (heads, keys, value_depth); gradient: dy/do, (heads, queries,
    value_depth).
    value_table: of relative positions that are added to values, and their offset.
    causal: whether no query looks ahead, by the rule of its mask.
    """

    name: str
    kind: str
    matrix: AttentionMatrix
    values: Tensor
    gradient: Tensor
    value_table: tuple[Tensor, int] | None = None
    causal: bool = False
    _kept: Tensor | None = field(default=None, repr=False)

    @property
    def shape(self) -> tuple[int, int]:
        """(queries, keys)."""
        return self.matrix.shape[1:]

    def rows(self, start: int, stop: int) -> Tensor:
        """Some rows of A, (rows, keys)."""
        heads, _, keys = self.matrix.shape
        # Nothing that is causal is ahead of its row.
        width = min(keys, stop) if self.causal else keys
        total = self.values.new_zeros(stop - start, keys)
        for head in range(heads):
            given = self.gradient[head, start:stop]
            slope = given @ self.values[head, :width].T
            if self.value_table is not None:
                slope += self._of_positions(head, given, start, width)
            slope *= self.matrix[head, start:stop, 0:width]
            total[:, :width] += slope.clamp_(min=0)
        return total.div_(max(heads, 1))

    def _of_positions(self, head: int, given: Tensor, start: int, keys: int) -> Tensor:
        """What the values that relative positions add to say of each cell."""
        assert self.value_table is not None
        table, offset = self.value_table
        tables = table.float().reshape(-1, *table.shape[-2:])
        own = tables[min(head, len(tables) - 1)]
        clip = len(own) // 2
        queries = torch.arange(start, start + len(given))[:, None] + offset
        distance = (torch.arange(keys)[None, :] - queries).clamp(-clip, clip) + clip
        return (given @ own.T).gather(1, distance)

    def _blocks(self) -> Iterator[tuple[slice, Tensor]]:
        queries, keys = self.shape
        if queries * keys <= KEPT_CELLS:
            if self._kept is None:
                self._kept = self.rows(0, queries)
            yield slice(0, queries), self._kept
            return
        size = max(1, BLOCK_CELLS // max(1, keys))
        for start in range(0, queries, size):
            stop = min(start + size, queries)
            yield slice(start, stop), self.rows(start, stop)

    def __matmul__(self, vectors: Tensor) -> Tensor:
        """``A x``; vectors: (keys, columns)."""
        return torch.cat([block @ vectors for _, block in self._blocks()])

    def transposed(self, vectors: Tensor) -> Tensor:
        """``A^T y``; vectors: (queries, columns)."""
        found = vectors.new_zeros(self.shape[1], vectors.shape[1])
        for rows, block in self._blocks():
            found += block.T @ vectors[rows]
        return found


def relevance(
    model: nn.Module,
    inputs: Mapping[str, Any] | Tensor,
    target: Target | None = None,
    *,
    position: int = -1,
    rows: int | Sequence[int] | None = None,
) -> Tensor:
    """How relevant each input token is for a prediction.

    The model runs once as in evaluation, with gradients, and is left as it was.

    Args:
        model: made of weft's attention layers, or of Transformers and using its attention
            interface.
        inputs: of one text, as for `weft.trace`.
        target: which logit: its number; or a function from the model's output to one number; None:
            the largest.
        position: of the logits that are asked; not of a model that classifies the whole text.
        rows: which positions of R are wanted; None: the one whose logits are asked, or the first
            of a model that classifies.

    Returns: (rows, keys), 0 or more: what each row holds of each input token; of an
    encoder-decoder, of the source's tokens. A row holds 1 of itself where the tokens are its own.

    Raises: InputError: a model whose attention cannot be reached, a batch, or an output without
    logits and no function to ask it.
    """
    layers, asked = weighted_layers(model, inputs, target, position=position)
    wanted = [rows] if isinstance(rows, int) else [asked] if rows is None else list(rows)
    towers = {layer.kind for layer in layers}
    last = layers[-1]
    length = last.shape[0]
    if not all(-length <= row < length for row in wanted):
        raise InputError(
            f"relevance: rows {wanted}; the last layer has positions 0 to {length - 1}."
        )
    start = torch.zeros(length, len(wanted))
    start[torch.tensor(wanted) % length, torch.arange(len(wanted))] = 1
    if "cross" not in towers:
        return _back(layers, start).T
    own = [layer for layer in layers if layer.kind != "encoder"]
    source = [layer for layer in layers if layer.kind == "encoder"]
    return _across(own, source, start).T


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
    inputs: Mapping[str, Any] | Tensor,
    target: Target | None = None,
    *,
    position: int = -1,
) -> tuple[list[Weighted], int]:
    """The layers of a model, weighed by the gradient of a prediction. Takes what `relevance` takes.

    Returns: the layers in the order of the run, and the position that is asked.
    """
    given = _inputs(model, inputs, last=position == -1 and not callable(target))
    calls: list[tuple[Callable[[Tensor], Weighted], Tensor]] = []
    with at_rest(model), _frozen(model), _light(model), torch.enable_grad(), ExitStack() as stack:
        stack.enter_context(_catching(model, calls))
        output = model(**given)
        score, asked = _score(output, target, position)
        if not calls:
            raise InputError(
                f"relevance: {type(model).__name__} ran without a call of attention that could be "
                "caught. docs/tracing.md lists models that can be traced."
            )
        outputs = [caught for _, caught in calls]
        gradients = torch.autograd.grad(score, outputs, allow_unused=True)
    layers = [
        make(torch.zeros_like(caught) if slope is None else slope)
        for (make, caught), slope in zip(calls, gradients, strict=True)
    ]
    return layers, asked


def _inputs(model: nn.Module, inputs: Mapping[str, Any] | Tensor, *, last: bool) -> dict[str, Any]:
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
        given.setdefault("use_cache", False)
        takes = inspect.signature(model.forward).parameters
        if last and "logits_to_keep" in takes:
            given.setdefault("logits_to_keep", 1)
    return given


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """No gradients of parameters, nor what they would need to be kept."""
    before = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        model.requires_grad_(False)
        yield
    finally:
        for parameter, was in before:
            parameter.requires_grad_(was)


@contextmanager
def _light(model: nn.Module) -> Iterator[None]:
    """Feed-forward layers keep their inputs alone, and compute again what a gradient needs."""
    parts: list[nn.Module] = []
    for blocks in [module for module in model.modules() if isinstance(module, nn.ModuleList)]:
        for block in blocks:
            if not any(_attends(module) for module in block.modules()):
                continue
            parts += [
                child
                for child in block.children()
                if not any(_attends(module) for module in child.modules())
                and any(parameter.ndim > 1 for parameter in child.parameters())
            ]
    before = [(part, part.__dict__.get("forward")) for part in parts]
    try:
        for part in parts:
            part.forward = partial(
                checkpoint, part.forward, use_reentrant=False, preserve_rng_state=False
            )
        yield
    finally:
        for part, was in before:
            if was is None:
                del part.__dict__["forward"]
            else:
                part.forward = was


def _attends(module: nn.Module) -> bool:
    return "Attention" in type(module).__name__


@contextmanager
def _catching(
    model: nn.Module, calls: list[tuple[Callable[[Tensor], Weighted], Tensor]]
) -> Iterator[None]:
    """Keep what each call of attention was made of, and its output in the graph of gradients."""
    if is_transformers_model(model):
        if not routes(model):
            raise InputError(
                f"relevance: {type(model).__name__} does not use the attention interface of "
                "Transformers; its weights cannot be reached. docs/tracing.md lists models that do."
            )

        def receive(call: InterfaceCall) -> Tensor:
            output = attention(call.queries, call.keys, call.values, **call.arguments())
            if not output.requires_grad:
                output = output.detach().requires_grad_()
            calls.append((_of_interface(call), output))
            return output

        with routed(model, receive):
            yield
        return
    names = {id(layer): name for name, layer in layers_of(model)}
    if not names:
        raise InputError(
            f"relevance: {type(model).__name__} has no attention layers of weft, and is no model "
            "of Transformers."
        )
    watcher = _Watcher(names, calls)
    with watching(model, watcher), editing(model, watcher.edit):
        yield


class _Watcher:
    """Sees what a layer of weft computes with, and then what it gives."""

    def __init__(
        self, names: dict[int, str], calls: list[tuple[Callable[[Tensor], Weighted], Tensor]]
    ) -> None:
        self.keep: Keep = Top(0)
        self._names, self._calls = names, calls
        self._seen: Observation | None = None

    def __call__(self, layer: MultiHeadAttention, observation: Observation) -> None:
        self._seen = observation

    def edit(self, layer: MultiHeadAttention, heads: HeadOutputs) -> Tensor:
        seen, output = self._seen, heads.output
        assert seen is not None
        if not output.requires_grad:
            output = output.detach().requires_grad_()
        name, kind = self._names[id(layer)], layer.kind

        def make(gradient: Tensor) -> Weighted:
            relative, table = seen.relative, None
            if isinstance(relative, Shaw) and relative.value_table is not None:
                table = relative.value_table.detach(), relative.offset
            matrix = AttentionMatrix(
                seen.queries[0], seen.keys[0], mask=seen.mask, relative=relative, scale=seen.scale
            )
            return _weighted(name, kind, matrix, seen.values, gradient, table, seen.mask)

        self._calls.append((make, output))
        return output


def _of_interface(call: InterfaceCall) -> Callable[[Tensor], Weighted]:
    def make(gradient: Tensor) -> Weighted:
        matrix = AttentionMatrix(
            call.queries[0],
            call.keys[0],
            mask=None if call.mask is None else as_mask(call.mask),
            bias=None if call.bias is None else call.bias[0],
            scale=call.scale,
            softcap=call.softcap,
            sinks=call.sinks,
        )
        kind = layer_kind(call.path, call.module, call.is_causal)
        return _weighted(call.path, kind, matrix, call.values, gradient, None, call.mask)

    return make


def _weighted(
    name: str,
    kind: str,
    matrix: AttentionMatrix,
    values: Tensor,
    gradient: Tensor,
    table: tuple[Tensor, int] | None,
    mask: Mask | None,
) -> Weighted:
    repeated = repeat_kv_heads(values.detach().float(), matrix.shape[0])[0]
    slopes = gradient[0].detach().float()
    return Weighted(name, kind, matrix, repeated, slopes, table, mask == causal())


def _score(output: Any, target: Target | None, position: int) -> tuple[Tensor, int]:
    """The number that is asked about, and the position that it is of."""
    if callable(target):
        return target(output), position
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
    return of_one[int(of_one.argmax()) if target is None else target], position
