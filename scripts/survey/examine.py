"""One family: built small, run, traced, and held against its own eager attention."""

from __future__ import annotations

import copy
import inspect
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import headloom
from survey.inputs import made_inputs
from survey.oracle import Eager, recording, tensors_in
from survey.small import small_fields

#: The largest difference of a weight, and of an output against its largest number, that is exact.
WEIGHTS, OUTPUT = 2e-5, 1e-4


@dataclass
class Found:
    """What was found of a family.

    outcome     "exact", "dense", "refused", "wrong", or "not built"
    difference  of a weight from eager attention, at most
    reason      why it is not exact
    layers      how many were traced and compared
    not_traced  paths of modules that the trace names as not traced
    """

    family: str
    model: str = ""
    outcome: str = "not built"
    difference: float | None = None
    output_difference: float | None = None
    reason: str = ""
    layers: int = 0
    not_traced: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class _WrongError(Exception):
    """Something that headloom did wrong."""


def build(family: str, model_class: type[nn.Module], implementation: str | None) -> nn.Module:
    """Return a small random model of a family, the same at each call."""
    from transformers import CONFIG_MAPPING

    default: Any = CONFIG_MAPPING[family]()
    last: Exception | None = None
    for keep_widths in (False, True):
        try:
            config = type(default)(**small_fields(default, keep_widths))
            with torch.device("meta"):
                size = sum(p.numel() for p in model_class(config).parameters())
            if size > 3e8:
                raise MemoryError(f"{size / 1e6:.0f} million parameters when made small")
            torch.manual_seed(7)
            options = {} if implementation is None else {"attn_implementation": implementation}
            build = model_class._from_config  # type: ignore[attr-defined]
            model: nn.Module = build(copy.deepcopy(config), **options)
            _stir(model)
            return model.float().eval()
        except Exception as error:
            last = error
    assert last is not None
    raise last


def _stir(model: nn.Module) -> None:
    """Larger weights than at first, so that attention is far from even and biases are not 0."""
    generator = torch.Generator().manual_seed(13)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.is_floating_point():
                continue
            inputs = max(1, parameter[0].numel()) if parameter.ndim > 1 else 32
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(noise.to(parameter.dtype) * (0.7 * inputs**-0.5))


def run(model: nn.Module, inputs: dict[str, Tensor], **options: Any) -> Any:
    """Return the model's output, what is random in it the same each time."""
    torch.manual_seed(3)
    with torch.no_grad():
        return model(**copy.deepcopy(inputs), **options)


def _plain_options(model: nn.Module) -> dict[str, Any]:
    takes = inspect.signature(model.forward).parameters
    return {"use_cache": False} if "use_cache" in takes else {}


def _asks_weights(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Any]:
    """Return the option with which a model returns its weights, where it takes it."""
    try:
        run(model, inputs, output_attentions=True, **_plain_options(model))
    except Exception:
        return {}
    return {"output_attentions": True}


def examine(family: str, model_class: type[nn.Module]) -> Found:
    """Build, run, trace and compare a family."""
    found = Found(family, model_class.__name__)
    try:
        eager_model = build(family, model_class, "eager")
    except Exception as first:
        # Families without an eager implementation of their own have one only.
        try:
            eager_model = build(family, model_class, None)
        except Exception:
            found.reason = _line(first)
            return found
    for padded in (True, False):
        inputs = made_inputs(eager_model, padded)
        try:
            run(eager_model, inputs, **_plain_options(eager_model))
            break
        except Exception as error:
            if not padded:
                found.reason = f"runs on none of the made inputs: {_line(error)}"
                return found
    options = {**_plain_options(eager_model), **_asks_weights(eager_model, inputs)}
    with recording(eager_model) as eager:
        run(eager_model, inputs, **options)
    models = {"eager": eager_model}
    try:
        fused = build(family, model_class, None)
        if fused.config._attn_implementation != "eager":  # type: ignore[union-attr]
            models[str(fused.config._attn_implementation)] = fused  # type: ignore[union-attr]
    except Exception as error:
        found.notes.append(f"no default implementation: {_line(error)}")
    found.outcome, found.difference = "exact", 0.0
    runs = [(name, model, inputs, eager) for name, model in models.items()]
    alone = _first_input(inputs)
    if alone is not None:
        # Windows and parts are traced of one input only.
        try:
            with recording(eager_model) as eager_alone:
                run(eager_model, alone, **options)
            runs += [(f"{name}, one input", of, alone, eager_alone) for name, of in models.items()]
        except Exception as error:
            found.notes.append(f"does not run on one input: {_line(error)}")
    refused, traced = "", 0
    for name, model, given, seen in runs:
        try:
            if model is not eager_model and not _alike(model, eager_model, given):
                found.notes.append(f"{name}: its default attention is not its eager attention")
                seen = None
            _compare(found, model, given, seen)
            traced += 1
        except headloom.HeadloomError as error:
            refused = refused or str(error)
            if "\n" in str(error):
                found.outcome, found.reason = "wrong", f"{name}: an error of more than one line"
        except _WrongError as error:
            found.outcome, found.reason = "wrong", f"{name}: {error}"
            break
        except Exception as error:
            found.outcome = "wrong"
            found.reason = f"{name}: raw error, {_line(error)}"
            break
    if found.outcome != "wrong" and not traced:
        found.outcome, found.reason = "refused", refused
    elif refused:
        found.notes.append(f"in part refused: {refused}")
    return found


def _first_input(inputs: dict[str, Tensor]) -> dict[str, Tensor] | None:
    """Return the first input of a batch of two; None: some tensor has no batch in front."""
    if any(len(value) != 2 for value in inputs.values()):
        return None
    return {name: value[:1] for name, value in inputs.items()}


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


def _alike(model: nn.Module, other: nn.Module, inputs: dict[str, Tensor]) -> bool:
    """Whether two implementations of a model give one output; a few families' own do not."""
    one, two = (run(of, inputs, **_plain_options(of)) for of in (model, other))
    try:
        _same_outputs(Found(""), one, two, inputs, 100 * OUTPUT, "")
    except _WrongError:
        return False
    return True


def _compare(
    found: Found, model: nn.Module, inputs: dict[str, Tensor], eager: Eager | None
) -> None:
    """Trace a model and hold all that is in the trace against what the model does without headloom.

    eager: None: the implementation of the model is not its eager one, and has no weights to show.
    """
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    config: Any = model.config
    said, own = copy.deepcopy(config.to_dict()), config._attn_implementation
    plain_options = _plain_options(model)
    before = run(model, inputs, **plain_options)
    hooks = _hooks(model)
    outputs: list[Any] = []
    hook = model.register_forward_hook(lambda *given: outputs.append(given[2]))
    torch.manual_seed(3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            traces = headloom.trace(model, copy.deepcopy(inputs), keep=headloom.All())
        finally:
            hook.remove()
            _unchanged(model, state, said, own)
            if _hooks(model) != hooks:
                raise _WrongError("hooks are left on the model")
    after = run(model, inputs, **plain_options)
    _same_outputs(found, before, after, {}, 0.0, "the model's output afterwards")
    if outputs:
        _same_outputs(found, before, outputs[-1], inputs, OUTPUT, "its output while it is traced")
    messages = [str(warning.message) for warning in caught]
    if any("formed whole" in message for message in messages):
        found.outcome = "dense"
    traces = traces if isinstance(traces, list) else [traces]
    if eager is not None:
        _same_weights(found, traces, inputs, eager)


def _unchanged(model: nn.Module, state: dict[str, Tensor], said: Any, own: Any) -> None:
    config: Any = model.config
    now = model.state_dict()
    if set(now) != set(state) or not all(torch.equal(state[n], now[n]) for n in state):
        raise _WrongError("the model's weights were changed")
    if str(config.to_dict()) != str(said) or config._attn_implementation != own:
        raise _WrongError("the model's configuration was changed")


def _hooks(model: nn.Module) -> int:
    """How many hooks a model has; some libraries leave their own on it."""
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def _same_outputs(
    found: Found, before: Any, after: Any, inputs: dict[str, Tensor], near: float, what: str
) -> None:
    mask = inputs.get("attention_mask")
    one, two = dict(tensors_in(before)), dict(tensors_in(after))
    for name in one.keys() & two.keys():
        own, other = one[name].float(), two[name].float()
        if own.shape != other.shape:
            raise _WrongError(f"{what} has another shape, {name}")
        if mask is not None and own.shape[:2] == mask.shape:
            # What implementations make of padding differs, and nobody reads it.
            own, other = own[mask.bool()], other[mask.bool()]
        if not own.numel():
            continue
        size = max(1.0, float(own.abs().nan_to_num(0, 0, 0).max()))
        same = torch.isclose(own, other, rtol=0, atol=near * size, equal_nan=True)
        difference = float(
            torch.where(same, (own - other).abs(), (own - other).abs()).nan_to_num(0).max()
        )
        if near:
            found.output_difference = max(found.output_difference or 0.0, difference / size)
        if not bool(same.all()):
            raise _WrongError(f"{what} differs by {difference / size:.1e} in {name}")


def _same_weights(found: Found, traces: list[Any], inputs: dict[str, Tensor], eager: Eager) -> None:
    """Every layer of every trace against the eager call of the same module."""
    named = [entry["name"] for entry in getattr(traces[0], "not_traced", ())]
    found.not_traced = named
    compared: dict[tuple[str, int], int] = {}
    unknown = 0
    for sample, trace in enumerate(traces):
        places: dict[str, int] = {}
        for layer in trace.layers:
            place = places.get(layer.name, 0)
            places[layer.name] = place + 1
            calls = eager.of(layer.name, layer.heads)
            if place >= len(calls):
                unknown += 1
                continue
            difference = _layer_difference(layer, calls[place], sample, len(traces), inputs)
            compared[layer.name, place] = compared.get((layer.name, place), 0) + 1
            found.difference = max(found.difference or 0.0, difference)
            if difference > WEIGHTS:
                raise _WrongError(
                    f"weights differ by {difference:.1e} in {layer.name} ({layer.kind})"
                )
    found.layers = len(compared)
    missing = [
        path
        for path, calls in eager.calls.items()
        for place in range(len(calls))
        if (path, place) not in compared and not any(_covers(name, path) for name in named)
    ]
    missing += [
        path
        for path in eager.softmaxes
        if not any(_covers(known, path) for known in (*eager.calls, *named))
        and not any(of_layer == path for of_layer, _ in compared)
    ]
    if missing:
        raise _WrongError(f"{len(missing)} layers of eager attention are missing: {missing[0]}")
    if unknown:
        found.notes.append(f"{unknown} layers have no eager weights to compare with")
        if not compared:
            raise _WrongError("no layer has eager weights to compare with")


def _covers(named: str, path: str) -> bool:
    return path == named or path.startswith(named + ".") or named.startswith(path + ".")


def _layer_difference(
    layer: Any, expected: Tensor, sample: int, samples: int, inputs: dict[str, Tensor]
) -> float:
    """How far a layer's weights are from those of an eager call, at most."""
    dense = layer.graph.to_dense().float()
    if len(expected) == samples:
        expected = expected[sample]
    elif samples == 1:
        # Parts of one input, side by side.
        heads, queries, keys = expected.shape[1:]
        whole = expected.new_zeros(heads, len(expected) * queries, len(expected) * keys)
        for part, weights in enumerate(expected):
            rows = slice(part * queries, (part + 1) * queries)
            whole[:, rows, part * keys : (part + 1) * keys] = weights
        expected = whole
    else:
        raise _WrongError(
            f"{layer.name}: a call of a batch of {len(expected)} is shown as that of {samples}"
        )
    if dense.shape != expected.shape:
        cut = _spans(inputs, sample)
        rows = cut if dense.shape[1] != expected.shape[1] else slice(None)
        columns = cut if dense.shape[2] != expected.shape[2] else slice(None)
        expected = expected[:, rows, columns]
    if dense.shape != expected.shape:
        raise _WrongError(
            f"{layer.name}: shape {tuple(dense.shape)}, eager {tuple(expected.shape)} when cut"
        )
    # A query that may look nowhere has no weights in headloom, and even ones in eager attention.
    looks = layer.graph.count.cpu() > 0
    return float(torch.where(looks[..., None], (dense - expected).abs(), 0).max())


def _spans(inputs: dict[str, Tensor], sample: int) -> slice:
    mask = inputs.get("attention_mask")
    if mask is None:
        return slice(None)
    (real,) = mask[sample].nonzero(as_tuple=True)
    return slice(int(real[0]), int(real[-1]) + 1)
