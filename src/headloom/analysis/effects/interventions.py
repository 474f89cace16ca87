"""Interventions on the outputs of heads while a model runs.

    with intervening(model, [Intervention("decoder.1.self_attention", 3, "zero")]):
        outputs = model(tokens)

Outputs are changed before W_O, in headloom's own models and in unmodified ones of Transformers. The
weights of a model do not change, and the model is restored however the block ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from headloom.errors import InputError, ShapeError
from headloom.mechanism.attention_layer import AttentionLayer, HeadOutputs
from headloom.mechanism.function import attention
from headloom.mechanism.graph import Top
from headloom.mechanism.shapes import describe, place_of
from headloom.mechanism.watching import editing, layers_of
from headloom.tracing.model_state import evaluation_mode
from headloom.tracing.recording.layer_call import LayerCall
from headloom.tracing.sources.source import Receivers
from headloom.tracing.sources.transformers import SOURCE, is_transformers_model, routes

#: Function from a call and its output, (batch, heads, queries, value_depth), to the new output.
Edit = Callable[[LayerCall, Tensor], Tensor]
Kind = Literal["zero", "mean", "uniform", "patch"]


@dataclass(frozen=True, eq=False)
class Intervention:
    """Replacement of one head's output.

        zero      0
        mean      `output`, (value_depth,), at every position: its mean over some inputs
        uniform   the mean of the visible values of each query: uniform weights
        patch     `output`, (batch, queries, value_depth): from another input

    layer: the path of the attention layer in the model; head: from 0.
    positions: queries to replace; None: all.
    """

    layer: str
    head: int
    kind: Kind = "zero"
    output: Tensor | None = None
    positions: Sequence[int] | None = None

    def apply(self, call: LayerCall, output: Tensor) -> None:
        """Write the replacement into a layer's output, (batch, heads, queries, value_depth).

        Raises: InputError: no such head or position, or an output that is missing or does not fit.
        """
        heads, queries = output.shape[1:3]
        if not 0 <= self.head < heads:
            raise InputError(
                f"intervening: no head {self.head} in {self.layer}, which has 0 to {heads - 1}."
            )
        other = self.output
        if other is not None and other.ndim == 3:
            other = other[:, None]
        instead = substitute(call, output, self.kind, other)[:, self.head]
        at = self.positions if self.positions is not None else range(queries)
        places = [place_of("input", "intervening", "position", place, queries) for place in at]
        output[:, self.head, places] = instead[:, places]


def substitute(call: LayerCall, output: Tensor, kind: Kind, other: Tensor | None) -> Tensor:
    """Return the replacement of a call's output, of its shape: see Intervention.

    other: for "mean" and "patch", broadcast to the output's shape.
    Raises: InputError: it is missing; ShapeError: another number of tokens.
    """
    if kind == "zero":
        return torch.zeros_like(output)
    if kind == "uniform":
        queries, keys = (part.new_zeros(*part.shape[:3], 1) for part in (output, call.keys))
        return attention(queries, keys, call.values, mask=call.mask)
    if other is None:
        raise InputError(f"a {kind} of {call.path} without an output. Give output=.")
    if kind == "patch" and other.shape[-2:] != output.shape[-2:]:
        raise ShapeError(
            f"a patch of {call.path} is {describe(other)}; expected that of {describe(output)}. "
            "Both inputs need the same number of tokens."
        )
    return other.to(output).expand_as(output)


@contextmanager
def intervening(model: nn.Module, interventions: Sequence[Intervention]) -> Iterator[None]:
    """Replace the outputs of some heads in every run of the model within the block.

    Raises: InputError: no such layer or head; a model whose heads cannot be replaced.
    """
    of_layer = defaultdict(list)
    for intervention in interventions:
        of_layer[intervention.layer].append(intervention)
    ran: set[str] = set()

    def edit(call: LayerCall, output: Tensor) -> Tensor:
        ran.add(call.path)
        if call.path in of_layer:
            output = output.clone()
            for intervention in of_layer[call.path]:
                intervention.apply(call, output)
        return output

    with editing_heads(model, edit):
        yield
    missing = of_layer.keys() - ran
    if missing and ran:
        raise InputError(
            f"intervening: the model ran no attention layer {min(missing)!r}; it has "
            f"{', '.join(sorted(ran))}."
        )


@contextmanager
def editing_heads(model: nn.Module, edit: Edit) -> Iterator[None]:
    """Apply a function to the outputs of heads, in evaluation mode, without gradients.

    Raises: InputError: a model whose heads cannot be reached.
    """
    with evaluation_mode(model), torch.no_grad(), reaching(model, edit, operation="intervening"):
        yield


@contextmanager
def reaching(model: nn.Module, edit: Edit, *, operation: str) -> Iterator[None]:
    """Apply a function to the outputs of the heads of every attention layer.

    Args:
        model: of headloom's attention layers, or of Transformers with its attention interface.
        edit: function from each call and its output to the new output.
        operation: name for errors.

    Raises: InputError: a model whose heads cannot be reached.
    """

    def compute(call: LayerCall) -> Tensor:
        output = attention(call.queries, call.keys, call.values, **call.arguments())
        return edit(call, output)

    paths = {id(layer): path for path, layer in layers_of(model)}

    def edit_own(layer: AttentionLayer, heads: HeadOutputs) -> Tensor:
        call = LayerCall(
            paths[id(layer)], layer.kind, heads.queries, heads.keys, heads.values, heads.scale,
            heads.mask, None, heads.relative, heads.softcap, heads.sinks,
        )  # fmt: skip
        return edit(call, heads.output)

    if is_transformers_model(model) and routes(model):
        receivers = Receivers(compute, lambda call, graph: None)
        with SOURCE.calls({"": model}, Top(0), receivers):
            yield
    elif paths:
        with editing(model, edit_own):
            yield
    else:
        raise InputError(
            f"{operation}: the heads of {type(model).__name__} cannot be reached: it has no "
            "attention layers of headloom, and does not use the attention interface of "
            "Transformers. docs/tracing.md lists models that do."
        )
