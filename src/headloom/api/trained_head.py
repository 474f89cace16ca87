"""The six steps of a trained layer: its own vectors, matrices and masks, as the model runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headloom.analysis.effects.head_outputs import Reached, reaching
from headloom.analysis.matrices.projections import LayerMatrices, matrices_of, output_projection
from headloom.api.model import Model, TraceChoices
from headloom.api.opening import open_model
from headloom.errors import InputError
from headloom.formats.tokens import shown
from headloom.formats.trace import TraceData, TraceLayer
from headloom.mechanism.graph import Top
from headloom.mechanism.multihead import MultiHeadAttention
from headloom.studio.steps.matrices import Words, check_length
from headloom.studio.steps.steps import Steps
from headloom.studio.steps.worked import Projections, Worked, work
from headloom.tracing.capture import trace

__all__ = [
    "LayerCalled",
    "after_projection",
    "before_turn",
    "layer_calls",
    "output_module",
    "steps_of_model",
]

#: Numbers of the model (float32) and of the walk (float64) differ by no more than this.
_CLOSE = 1e-4


@dataclass(frozen=True, eq=False)
class LayerCalled:
    """What one layer computed: what it made queries, and keys and values, from; and these."""

    queries_from: Tensor
    keys_from: Tensor
    reached: Reached


def steps_of_model(
    name: str,
    text: str | Sequence[str] | None,
    target: str | Sequence[str] | None,
    kind: str | None,
    layer: int,
    show: Callable[..., Steps],
) -> Steps:
    """The six steps of a layer of a model: see `headloom.api.steps.steps`.

    show: `Steps.of`, with what the user chose to see.

    Raises: InputError: no text, no such layer or head, or a layer that does more than the steps.
    """
    if not isinstance(text, str) or not (target is None or isinstance(target, str)):
        raise InputError("model: give the text that it reads, as one string; so the target.")
    model = open_model(name)
    if model.tokenizer is None:
        raise InputError(f"model: {name} reads images, and no text. Give a model that reads text.")
    inputs = model.inputs(text, TraceChoices(target=target))
    with torch.no_grad():
        traced = trace(
            model.network, inputs, tokenizer=model.tokenizer, keep=Top(64), verify=False
        )  # fmt: skip
        if not isinstance(traced, TraceData):
            raise InputError(f"{name}: the inputs are a batch. Give one text.")
        calls = layer_calls(model, inputs)
    kind = traced.layers[0].kind if kind is None else kind
    layers = [each for each in traced.layers if each.kind == kind]
    if not layers:
        kinds = ", ".join(sorted({each.kind for each in traced.layers}))
        raise InputError(f"kind {kind}: {name} has no such layer; its layers are: {kinds}.")
    if not 0 <= layer < len(layers):
        raise InputError(f"layer {layer}: {name} has {kind} layers 0 to {len(layers) - 1}.")
    chosen = layers[layer]
    matrices = {each.name: each for each in matrices_of(model.network)}
    if chosen.name not in matrices or chosen.name not in calls:
        raise _more(chosen, "its learned matrices, or what enters it, could not be told")
    check_length(max(chosen.shape[1:]), "text")
    worked = _worked(model.network, chosen, matrices[chosen.name], calls[chosen.name])
    queries = Words(tuple(shown(chosen.query_tokens)), worked.X)
    keys = Words(tuple(shown(chosen.key_tokens)), worked.Y)
    origin = f"{kind} layer {chosen.index} of {name} ({chosen.name})"
    return show(worked, kind, queries, keys, origin)


def _worked(
    network: nn.Module, layer: TraceLayer, matrices: LayerMatrices, call: LayerCalled
) -> Worked:
    """The walk of a layer, held against what the model computed itself."""
    how, heads = call.reached.scoring, call.reached.heads
    if how is None or (how.relative is not None and not how.relative.only_bias):
        raise _more(layer, "how it scores could not be told, or adds vectors to keys or values")
    module = network.get_submodule(layer.name)
    turn = None
    if isinstance(module, MultiHeadAttention) and module.relative == "rotary":
        turn = module.turned
    queries, keys = heads.queries.shape[2], heads.keys.shape[2]
    allowed = None
    if how.mask is not None:
        cells = how.mask.cells(range(queries), keys, torch.device("cpu"))
        allowed = cells[0, 0].expand(queries, keys)
    projections = _projections(network, layer, matrices, call)
    worked = work(
        call.queries_from[0], call.keys_from[0], projections, allowed, relative=how.relative,
        turn=turn,
    )  # fmt: skip
    if float((worked.Z - heads.output[0].double()).abs().max()) > _CLOSE * _size(worked.Z):
        raise _more(layer, "its scale, a bias or a bound gives it another output")
    return worked


def _projections(
    network: nn.Module, layer: TraceLayer, matrices: LayerMatrices, call: LayerCalled
) -> Projections:
    """W_Q, W_K, W_V, W_O of every head, and their biases."""
    repeated, module = matrices.repeated(), network.get_submodule(layer.name)
    holder = output_module(network, layer.name, matrices.heads)
    if repeated.W_O is None or holder is None:
        raise _more(layer, "its W_O could not be told")
    times = matrices.heads // len(matrices.W_K)
    heads, biases = call.reached.heads, {}
    for name, matrix, made, inputs in (
        ("b_Q", repeated.W_Q, heads.queries[0], call.queries_from[0]),
        ("b_K", repeated.W_K, heads.keys[0].repeat_interleave(times, 0), call.keys_from[0]),
        ("b_V", repeated.W_V, heads.values[0].repeat_interleave(times, 0), call.keys_from[0]),
    ):
        if isinstance(module, MultiHeadAttention):
            linear = {"b_Q": module.w_q, "b_K": module.w_k, "b_V": module.w_v}[name]
            own: Tensor | None = linear.bias  # torch's own type forgets that there may be none
            by_head = None if own is None else own.detach().reshape(-1, module.depth)
            repeats = 1 if name == "b_Q" else times
            biases[name] = None if by_head is None else by_head.repeat_interleave(repeats, 0)
            continue
        biases[name], more = after_projection(inputs, matrix, made)
        if more:
            raise _more(layer, "it turns or norms its queries and keys after the projection")
    bias: Any = getattr(holder, "bias", None)
    return Projections(
        repeated.W_Q, repeated.W_K, repeated.W_V, repeated.W_O.flatten(0, 1), **biases,
        b_O=bias if isinstance(bias, Tensor) else None,
    )  # fmt: skip


def output_module(network: nn.Module, layer: str, heads: int) -> nn.Module | None:
    """The module of a layer, by its path, that holds W_O; None: it could not be told."""
    module = network.get_submodule(layer)
    if isinstance(module, MultiHeadAttention):
        return module.w_o
    return output_projection(layer, network, heads)


def after_projection(inputs: Tensor, matrix: Tensor, made: Tensor) -> tuple[Tensor | None, bool]:
    """What a layer adds to X W, by what it made of X; and whether it does something else to it.

    Args: inputs: (positions, width); matrix: (heads, width, depth); made: (heads, positions,
    depth).
    Returns: the bias, one vector for all positions, (heads, depth), or None; in float64.
    """
    inputs, matrix, made = (part.detach().cpu().double() for part in (inputs, matrix, made))
    rest, least = made - inputs @ matrix, _CLOSE * _size(made)
    bias = rest.mean(1)
    if float((rest - bias[:, None]).abs().max()) > least:
        return None, True
    return (bias if float(bias.abs().max()) > least else None), False


def before_turn(
    inputs: Tensor, matrix: Tensor, made: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """X W + b, (heads, positions, depth), before a turn by positions; and b, or None.

    The first position is not turned, which gives b; and a turn leaves lengths as they are, which
    says whether it was one: where it was not, neither is known.

    Args: as of `after_projection`.
    """
    inputs, matrix, made = (part.detach().cpu().double() for part in (inputs, matrix, made))
    plain, least = inputs @ matrix, _CLOSE * _size(made)
    bias = made[:, 0] - plain[:, 0]
    some = float(bias.abs().max()) > least
    found = plain + bias[:, None] if some else plain
    if float((found.norm(dim=-1) - made.norm(dim=-1)).abs().max()) > least:
        return None, None
    return found, bias if some else None


def _size(numbers: Tensor) -> float:
    return max(float(numbers.abs().max()), 1.0)


def _more(layer: TraceLayer, reason: str) -> InputError:
    return InputError(
        f"steps: layer {layer.name} does more than the six steps: {reason}. headloom trace and "
        "headloom view show its weights."
    )


def layer_calls(model: Model, inputs: Any) -> dict[str, LayerCalled]:
    """Run a model once, and keep what every attention layer read and made."""
    network, calls = model.network, {}
    entered: dict[str, tuple[Tensor, Tensor]] = {}
    names = {each.name for each in matrices_of(network)}

    def note(reached: Reached) -> Tensor:
        if reached.path in entered:
            calls[reached.path] = LayerCalled(*entered[reached.path], reached)
        return reached.heads.output

    ready: dict[str, Any] = dict(model.tokenizer(inputs, return_tensors="pt")) if isinstance(
        inputs, str
    ) else {
        name: value for name, value in inputs.items() if name != "offset_mapping"
    }  # fmt: skip
    with _entering(network, names, entered), reaching(
        network, note, operation="steps", scoring=True
    ):  # fmt: skip
        network(**ready)
    return calls


@contextmanager
def _entering(
    network: nn.Module, names: set[str], entered: dict[str, tuple[Tensor, Tensor]]
) -> Iterator[None]:
    """Note the vectors that enter each attention layer, those of queries and those of keys."""

    def hook(name: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def note(module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
            spare = ("encoder_hidden_states", "key_value_states", "keys_from")
            own = args[0] if args else options.get("hidden_states")
            other = next((options[key] for key in spare if options.get(key) is not None), None)
            if isinstance(module, MultiHeadAttention) and len(args) > 1:
                other = args[1]
            if isinstance(own, Tensor):
                entered[name] = own, own if other is None else other

        return note

    with ExitStack() as stack:
        for name in names:
            handle = network.get_submodule(name).register_forward_pre_hook(
                hook(name), with_kwargs=True
            )
            stack.callback(handle.remove)
        yield
