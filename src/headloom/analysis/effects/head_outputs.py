"""Reaching what the heads of every attention layer give, while a model runs.

Of headloom's own models through `headloom.mechanism.attention_layer`, of unmodified models of
Transformers through their attention interface. For experiments that change what heads give
(`headloom.analysis.effects.interventions`) and for gradients by it
(`headloom.analysis.effects.gradients`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from torch import Tensor, nn

from headloom.errors import InputError
from headloom.mechanism.attention_layer import AttentionLayer, HeadOutputs, Observation
from headloom.mechanism.function import attend, attention
from headloom.mechanism.graph import AttentionGraph, Keep, Top
from headloom.mechanism.masks import Mask
from headloom.mechanism.matrix.attention_matrix import AttentionMatrix
from headloom.mechanism.positions import Relative
from headloom.mechanism.watching import editing, layers_of, watching
from headloom.tracing.recording.layer_call import LayerCall
from headloom.tracing.sources.transformers import is_transformers_model, routed, routes

__all__ = ["Reached", "Scoring", "reaching"]


@dataclass(frozen=True, eq=False)
class Scoring:
    """How one call made its scores and weights, beside queries and keys.

    lse: (batch, heads, queries), a sink's part in it; the rest as `headloom.attention` takes it.
    """

    lse: Tensor
    mask: Mask | None
    scale: float
    bias: Tensor | None = None
    relative: Relative | None = None
    softcap: float | None = None


@dataclass(frozen=True, eq=False)
class Reached:
    """One attention call of a model.

    path, kind: of the layer, as a trace names them.
    heads: what they gave, and from what.
    scoring: of its scores, where that was asked for.
    """

    path: str
    kind: str
    heads: HeadOutputs
    scoring: Scoring | None = None

    def matrix(self) -> AttentionMatrix:
        """The weights of the first input of the batch. Needs `scoring`."""
        how = self.scoring
        assert how is not None
        return AttentionMatrix(
            self.heads.queries[0],
            self.heads.keys[0],
            mask=how.mask,
            bias=None if how.bias is None else how.bias[0],
            relative=how.relative,
            scale=how.scale,
            softcap=how.softcap,
            lse=how.lse[0],
        )


@contextmanager
def reaching(
    model: nn.Module,
    edit: Callable[[Reached], Tensor],
    *,
    operation: str,
    scoring: bool = False,
) -> Iterator[None]:
    """Send what the heads of every attention layer give through a function.

    Args:
        model: of headloom's attention layers, or of Transformers and using its attention interface.
        edit: from one call to the output the layer goes on with, (batch, heads, queries,
            value_depth).
        operation: who asks, for errors.
        scoring: whether `edit` needs to know how the scores were made.

    Raises: InputError: a model whose heads cannot be reached.
    """
    if is_transformers_model(model):
        if not routes(model):
            raise InputError(
                f"{operation}: {type(model).__name__} does not use the attention interface of "
                "Transformers; its heads cannot be reached. docs/tracing.md lists models that do."
            )
        with routed(model, lambda call: edit(_of_interface(call, scoring))):
            yield
        return
    paths = {id(layer): path for path, layer in layers_of(model)}
    if not paths:
        raise InputError(
            f"{operation}: {type(model).__name__} has no attention layers of headloom, and is no "
            f"model "
            "of Transformers. Only the heads of these can be reached."
        )
    watcher = _Watcher()

    def edit_own(layer: AttentionLayer, heads: HeadOutputs) -> Tensor:
        how = watcher.take() if scoring else None
        return edit(Reached(paths[id(layer)], layer.kind, heads, how))

    with ExitStack() as stack:
        if scoring:
            stack.enter_context(watching(model, watcher))
        stack.enter_context(editing(model, edit_own))
        yield


def _of_interface(call: LayerCall, scoring: bool) -> Reached:
    """Run a call of Transformers."""
    tensors = call.queries, call.keys, call.values
    how = None
    if scoring:
        output, graph = attend(*tensors, **call.arguments(), keep=Top(0))
        how = Scoring(graph.lse.detach(), call.mask, call.scale, call.bias, None, call.softcap)
    else:
        output = attention(*tensors, **call.arguments())
    return Reached(call.path, call.kind, HeadOutputs(output, *tensors, call.mask), how)


class _Watcher:
    """Sees how a layer of headloom makes its scores, just before it gives its outputs."""

    def __init__(self) -> None:
        self.keep: Keep = Top(0)
        self._seen: Observation | None = None

    def __call__(self, layer: AttentionLayer, observation: Observation) -> None:
        self._seen = observation

    def take(self) -> Scoring:
        """What was seen last; it is let go."""
        seen, self._seen = self._seen, None
        assert seen is not None and isinstance(seen.caught, AttentionGraph)
        return Scoring(
            seen.caught.lse.detach(), seen.mask, seen.scale, relative=seen.relative,
            softcap=seen.softcap,
        )  # fmt: skip
