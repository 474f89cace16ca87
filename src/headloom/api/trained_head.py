"""Inputs, outputs and matrices of a trained layer; its six steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from headloom.analysis.effects.interventions import reaching
from headloom.analysis.matrices.projections import LayerMatrices, matrices_of, output_projection
from headloom.api.model import Model
from headloom.api.questions import Inputs
from headloom.errors import InputError
from headloom.formats.files import JsonObject
from headloom.formats.tokens import shown
from headloom.formats.trace import TraceData, TraceLayer
from headloom.mechanism.graph import Top
from headloom.mechanism.multihead import MultiHeadAttention
from headloom.mechanism.watching import named_modules
from headloom.studio.steps.matrices import Words, check_length
from headloom.studio.steps.steps import Steps
from headloom.studio.steps.worked import Projections, work
from headloom.tracing.options import TraceOptions
from headloom.tracing.recording.layer_call import LayerCall

#: Tolerance between the model (float32) and the steps (float64).
_CLOSE = 1e-4


@dataclass(frozen=True, eq=False)
class LayerCalled:
    """Computation of one layer in one run.

    X, Y: inputs of queries, and of keys and values, (batch, positions, width).
    call: queries, keys and values; output: of the heads; matrices: the projections.
    b_O: the bias of the output; None: there is none.
    """

    X: Tensor
    Y: Tensor
    call: LayerCall
    output: Tensor
    matrices: LayerMatrices
    b_O: Tensor | None


def layer_calls(model: Model, inputs: Inputs) -> dict[str, LayerCalled]:
    """Run a model once; return inputs and outputs of each layer with known matrices, by path."""
    network = model._body
    matrices = {layer.name: layer for layer in matrices_of(network)}
    modules = dict(named_modules(network))
    entered: dict[str, tuple[Tensor, Tensor]] = {}
    calls: dict[str, LayerCalled] = {}

    def enter(name: str, module: nn.Module, args: Sequence[Tensor], options: JsonObject) -> None:
        spare = ("encoder_hidden_states", "key_value_states", "keys_from")
        hidden = args[0] if args else options.get("hidden_states")
        other = next((options[key] for key in spare if options.get(key) is not None), None)
        if isinstance(module, MultiHeadAttention) and len(args) > 1:
            other = args[1]
        if isinstance(hidden, Tensor):
            entered[name] = hidden, hidden if other is None else other

    def note(call: LayerCall, output: Tensor) -> Tensor:
        path = call.path
        if path in entered:
            module = modules[path]
            holder = (
                module.w_o
                if isinstance(module, MultiHeadAttention)
                else output_projection(path, modules, matrices[path].heads)[0]
            )
            b_O = getattr(holder, "bias", None)
            calls[path] = LayerCalled(*entered[path], call, output, matrices[path], b_O)
        return output

    if isinstance(inputs, str):
        inputs = dict(model.tokenizer(inputs, return_tensors="pt"))
    ready = {name: value for name, value in inputs.items() if name != "offset_mapping"}
    with torch.no_grad(), ExitStack() as stack:
        for name in matrices:
            module = network.get_submodule(name)
            handle = module.register_forward_pre_hook(partial(enter, name), with_kwargs=True)
            stack.callback(handle.remove)
        stack.enter_context(reaching(network, note, operation="steps"))
        network(**ready)
    return calls


def projected(
    inputs: Tensor, matrix: Tensor, made: Tensor
) -> tuple[Tensor | None, Tensor | None, bool]:
    """Return X W + b, and b, from a layer's projection of X; and whether positions rotated it.

    With rotary positions, the first position, whose rotation is the identity, gives b. A rotation
    keeps lengths; where lengths differ, the layer did something else, and both are unknown.

    Args: inputs: (positions, width); matrix: (heads, width, depth); made: (heads, positions,
    depth).
    Returns: (heads, positions, depth) in float64, or None; (heads, depth), or None; a bool.
    """
    inputs, matrix, made = (part.detach().cpu().double() for part in (inputs, matrix, made))
    plain, least = inputs @ matrix, _CLOSE * max(float(made.abs().max()), 1.0)
    rest = made - plain
    bias = rest.mean(1)
    turned = float((rest - bias[:, None]).abs().max()) > least
    if turned:
        bias = rest[:, 0]
    has_bias = float(bias.abs().max()) > least
    result = plain + bias[:, None] if has_bias else plain
    if float((result.norm(dim=-1) - made.norm(dim=-1)).abs().max()) > least:
        return None, None, turned
    return result, bias if has_bias else None, turned


def steps_of_model(
    model: Model, text: str | Sequence[str] | None, target: str | Sequence[str] | None,
    kind: str | None, layer: int, show: Callable[..., Steps],
) -> Steps:  # fmt: skip
    """Work through the six steps of a model's layer; show: `Steps.of`, prepared."""
    if not isinstance(text, str) or not (target is None or isinstance(target, str)):
        raise InputError("model: text and target must each be one string.")
    name = model.name
    if model.tokenizer is None:
        raise InputError(f"model: {name} reads images only. Use a model that reads text.")
    inputs = model._inputs(text, target)
    traced = model._traced(inputs, TraceOptions(model.tokenizer, Top(64), verify=False))
    assert isinstance(traced, TraceData)
    kind = traced.layers[0].kind if kind is None else kind
    layers = [candidate for candidate in traced.layers if candidate.kind == kind]
    if not 0 <= layer < len(layers):
        known = ", ".join(dict.fromkeys(f"{other.kind} {other.index}" for other in traced.layers))
        raise InputError(f"{name} has no {kind} layer {layer}; its layers are: {known}.")
    chosen = layers[layer]
    check_length(max(chosen.shape[1:]), "text")
    calls = layer_calls(model, inputs)
    if chosen.name not in calls:
        raise _unsupported(chosen, "its learned matrices or its input were not found")
    call = calls[chosen.name]
    heads = call.call
    if heads.relative is not None:
        raise _unsupported(chosen, "it has relative positions")
    projections = _projections(chosen, call)
    queries, keys = heads.queries.shape[2], heads.keys.shape[2]
    allowed = None
    if heads.mask is not None:
        cells = heads.mask.cells(range(queries), keys, torch.device("cpu"))
        allowed = cells[0, 0].expand(queries, keys)
    X, Y = (inputs[0].detach().cpu().double() for inputs in (call.X, call.Y))
    worked = work(X, Y, projections, allowed)
    if not torch.allclose(worked.Z, call.output[0].cpu().double(), _CLOSE, _CLOSE):
        raise _unsupported(chosen, "its scale, a bias or a bound changes its output")
    return show(
        worked, kind, Words(tuple(shown(chosen.query_tokens)), X),
        Words(tuple(shown(chosen.key_tokens)), Y),
        f"{kind} layer {chosen.index} of {name} ({chosen.name})",
    )  # fmt: skip


def _projections(layer: TraceLayer, call: LayerCalled) -> Projections:
    """Return W_Q, W_K, W_V, W_O of every head, and their biases."""
    matrices, heads = call.matrices.repeated(), call.call
    if matrices.W_O is None:
        raise _unsupported(layer, "its W_O was not found")
    times = len(matrices.W_K) // len(call.matrices.W_K)
    tensors: dict[str, Tensor | None] = {"W_O": matrices.W_O.flatten(0, 1), "b_O": call.b_O}
    for name, matrix, made, inputs in (
        ("Q", matrices.W_Q, heads.queries[0], call.X[0]),
        ("K", matrices.W_K, heads.keys[0].repeat_interleave(times, 0), call.Y[0]),
        ("V", matrices.W_V, heads.values[0].repeat_interleave(times, 0), call.Y[0]),
    ):
        _, bias, turned = projected(inputs, matrix, made)
        if turned:
            raise _unsupported(layer, "it rotates or normalises queries and keys after projecting")
        tensors |= {f"W_{name}": matrix, f"b_{name}": bias}
    known = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    return {name: tensor.detach().cpu().double() for name, tensor in known.items()}


def _unsupported(layer: TraceLayer, reason: str) -> InputError:
    return InputError(
        f"steps: layer {layer.name} does more than the six steps: {reason}. headloom trace and "
        "headloom view show its weights."
    )
