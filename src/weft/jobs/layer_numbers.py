"""What the layers of a model that `weft view` opened read and made on a text."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from weft.analysis.matrices.projections import LayerMatrices, matrices_of
from weft.errors import InputError
from weft.jobs.model import Model, TraceChoices
from weft.jobs.trained_head import (
    LayerCalled,
    after_projection,
    before_turn,
    layer_calls,
    output_module,
)
from weft.studio.neuron import LayerNumbers

__all__ = ["ModelLayers"]


class ModelLayers:
    """The layers of a model on the text it was last asked for: it runs once a text."""

    def __init__(self) -> None:
        self._text: str | None = None
        self._calls: dict[str, LayerCalled] = {}

    def numbers(self, model: Model, text: str, layer: str) -> LayerNumbers:
        """What a layer, by its path, read and made.

        Raises: InputError: its learned matrices, or what enters it, could not be told.
        """
        if text != self._text:
            inputs = model.inputs(text, TraceChoices(verify=False))
            with torch.no_grad():
                self._calls = layer_calls(model, inputs)
            self._text = text
        matrices = {each.name: each for each in matrices_of(model.network)}.get(layer)
        call = self._calls.get(layer)
        if matrices is None or call is None:
            raise InputError(
                f"layer {layer}: its learned matrices, or what enters it, could not be told."
            )
        return _numbers(model.network, layer, matrices, call)


def _numbers(
    network: nn.Module, layer: str, matrices: LayerMatrices, call: LayerCalled
) -> LayerNumbers:
    heads, holder = call.reached.heads, output_module(network, layer, matrices.heads)
    bias, turned = after_projection(call.queries_from[0], matrices.W_Q, heads.queries[0])
    projected: Tensor | None = None
    if turned:
        projected, bias = before_turn(call.queries_from[0], matrices.W_Q, heads.queries[0])
    scoring = call.reached.scoring
    return LayerNumbers(
        call.queries_from[0].detach().cpu(),
        heads.values[0].detach().cpu(),
        heads.output[0].detach().cpu(),
        None if matrices.W_O is None else matrices.W_O.detach().cpu(),
        b_O=getattr(holder, "bias", None) is not None,
        biases=bias is not None,
        turned=turned,
        projected=projected,
        relative=None if scoring is None else scoring.relative,
    )
