"""What a trained layer reads and makes, with its matrices; and its six steps, as the model runs."""

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

#: Numbers of the model (float32) and of the walk (float64) differ by no more than this.
_CLOSE = 1e-4


@dataclass(frozen=True, eq=False)
class LayerCalled:
    """What one layer computed in one run.

    X, Y: what queries, and keys and values were made from, (batch, positions, width).
    call, output: these, and what the heads gave. matrices: by which they were made.
    b_O: the bias of the output; None: there is none.
    """

    X: Tensor
    Y: Tensor
    call: LayerCall
    output: Tensor
    matrices: LayerMatrices
    b_O: Tensor | None


def layer_calls(model: Model, inputs: Inputs) -> dict[str, LayerCalled]:
    """Run a model once; what each layer read and made, where its matrices are known, by path."""
    network = model._body
    matrices = {each.name: each for each in matrices_of(network)}
    modules = dict(named_modules(network))
    entered: dict[str, tuple[Tensor, Tensor]] = {}
    calls: dict[str, LayerCalled] = {}

    def enter(name: str, module: nn.Module, args: Sequence[Tensor], options: JsonObject) -> None:
        spare = ("encoder_hidden_states", "key_value_states", "keys_from")
        own = args[0] if args else options.get("hidden_states")
        other = next((options[key] for key in spare if options.get(key) is not None), None)
        if isinstance(module, MultiHeadAttention) and len(args) > 1:
            other = args[1]
        if isinstance(own, Tensor):
            entered[name] = own, own if other is None else other

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
    """X W + b, and b, by what a layer made of X; and whether it then turned it by positions.

    Where it did, the first position, which is not turned, gives b; and since a turn leaves lengths
    as they are, other lengths say that it was none: then neither is known.

    Args: inputs: (positions, width); matrix: (heads, width, depth); made: (heads, positions,
    depth).
    Returns: (heads, positions, depth) in float64, or None; (heads, depth), or None; and that.
    """
    inputs, matrix, made = (part.detach().cpu().double() for part in (inputs, matrix, made))
    plain, least = inputs @ matrix, _CLOSE * max(float(made.abs().max()), 1.0)
    rest = made - plain
    bias = rest.mean(1)
    turned = float((rest - bias[:, None]).abs().max()) > least
    if turned:
        bias = rest[:, 0]
    some = float(bias.abs().max()) > least
    whole = plain + bias[:, None] if some else plain
    if float((whole.norm(dim=-1) - made.norm(dim=-1)).abs().max()) > least:
        return None, None, turned
    return whole, bias if some else None, turned


def steps_of_model(
    model: Model, text: str | Sequence[str] | None, target: str | Sequence[str] | None,
    kind: str | None, layer: int, show: Callable[..., Steps],
) -> Steps:  # fmt: skip
    """The six steps of a layer of a model, by `headloom.steps`; show: `Steps.of`, prepared."""
    if not isinstance(text, str) or not (target is None or isinstance(target, str)):
        raise InputError("model: give the text that it reads, as one string; so the target.")
    name = model.name
    if model.tokenizer is None:
        raise InputError(f"model: {name} reads images, and no text. Give a model that reads text.")
    inputs = model._inputs(text, target)
    traced = model._traced(inputs, TraceOptions(model.tokenizer, Top(64), verify=False))
    assert isinstance(traced, TraceData)
    kind = traced.layers[0].kind if kind is None else kind
    layers = [each for each in traced.layers if each.kind == kind]
    if not 0 <= layer < len(layers):
        known = ", ".join(dict.fromkeys(f"{each.kind} {each.index}" for each in traced.layers))
        raise InputError(f"{name} has no {kind} layer {layer}; its layers are: {known}.")
    chosen = layers[layer]
    check_length(max(chosen.shape[1:]), "text")
    calls = layer_calls(model, inputs)
    if chosen.name not in calls:
        raise _more(chosen, "its learned matrices, or what enters it, could not be told")
    call = calls[chosen.name]
    how = call.call
    if how.relative is not None:
        raise _more(chosen, "relative positions are inside of it")
    projections = _projections(chosen, call)
    queries, keys = how.queries.shape[2], how.keys.shape[2]
    allowed = None
    if how.mask is not None:
        cells = how.mask.cells(range(queries), keys, torch.device("cpu"))
        allowed = cells[0, 0].expand(queries, keys)
    X, Y = (inputs[0].detach().cpu().double() for inputs in (call.X, call.Y))
    worked = work(X, Y, projections, allowed)
    if not torch.allclose(worked.Z, call.output[0].cpu().double(), _CLOSE, _CLOSE):
        raise _more(chosen, "its scale, a bias or a bound gives it another output")
    return show(
        worked, kind, Words(tuple(shown(chosen.query_tokens)), X),
        Words(tuple(shown(chosen.key_tokens)), Y),
        f"{kind} layer {chosen.index} of {name} ({chosen.name})",
    )  # fmt: skip


def _projections(layer: TraceLayer, call: LayerCalled) -> Projections:
    """W_Q, W_K, W_V, W_O of every head, and their biases."""
    matrices, heads = call.matrices.repeated(), call.call
    if matrices.W_O is None:
        raise _more(layer, "its W_O could not be told")
    times = len(matrices.W_K) // len(call.matrices.W_K)
    found: dict[str, Tensor | None] = {"W_O": matrices.W_O.flatten(0, 1), "b_O": call.b_O}
    for name, matrix, made, inputs in (
        ("Q", matrices.W_Q, heads.queries[0], call.X[0]),
        ("K", matrices.W_K, heads.keys[0].repeat_interleave(times, 0), call.Y[0]),
        ("V", matrices.W_V, heads.values[0].repeat_interleave(times, 0), call.Y[0]),
    ):
        _, bias, turned = projected(inputs, matrix, made)
        if turned:
            raise _more(layer, "it turns or norms its queries and keys after the projection")
        found |= {f"W_{name}": matrix, f"b_{name}": bias}
    return {
        name: matrix.detach().cpu().double() for name, matrix in found.items() if matrix is not None
    }


def _more(layer: TraceLayer, reason: str) -> InputError:
    return InputError(
        f"steps: layer {layer.name} does more than the six steps: {reason}. headloom trace and "
        "headloom view show its weights."
    )
