"""What the tests of any module share: weights in float64 without headloom, and a model
unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

import headloom

TOLERANCE = 2e-6


@contextmanager
def outputs(model: nn.Module, ends: tuple[str, ...]) -> Iterator[dict[str, list[Tensor]]]:
    """What the modules gave whose paths end so, while the block runs, by their paths."""
    seen: dict[str, list[Tensor]] = {}
    hooks = [
        module.register_forward_hook(
            lambda _, __, output, path=path: seen.setdefault(path, []).append(output.detach())
        )
        for path, module in model.named_modules()
        if path.endswith(ends)
    ]
    yield seen
    for hook in hooks:
        hook.remove()


def by_heads(tensor: Tensor, heads: int) -> Tensor:
    """(batch, positions, width) as (batch, heads, positions, depth) in float64."""
    return tensor.double().unflatten(-1, (heads, -1)).transpose(1, 2)


def weights_of(queries: Tensor, keys: Tensor, added: Tensor | float = 0.0) -> Tensor:
    """softmax(Q K^T / sqrt(depth) + added), in float64."""
    keys = keys.repeat_interleave(queries.shape[1] // keys.shape[1], 1)
    return (queries @ keys.mT / queries.shape[-1] ** 0.5 + added).softmax(-1)


def dense(layer: headloom.TraceLayer) -> Tensor:
    """The weights of a layer's kept edges in their places, 0 elsewhere: (heads, queries, keys)."""
    graph = layer.graph
    places = graph.keys.long()
    whole = torch.zeros(graph.shape, dtype=torch.float64)
    kept = torch.where(places >= 0, graph.weights.double(), 0)
    return whole.scatter_add(-1, places.clamp(min=0), kept)


def traced(model: nn.Module, inputs: Any, **options: Any) -> headloom.Trace:
    trace = headloom.trace(model, inputs, keep=headloom.All(), **options)
    assert isinstance(trace, headloom.Trace)
    return trace


def run(model: nn.Module, inputs: Any) -> Any:
    with torch.no_grad():
        if isinstance(inputs, dict):
            return model(**inputs)
        return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def first_tensor(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else first_tensor(output[0])


def check_unchanged(model: nn.Module, inputs: Any) -> None:
    """Trace and watch a model: afterwards it gives the same bits, and holds nothing of headloom."""
    before = first_tensor(run(model, inputs)).clone()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    attributes = [dict(vars(module)) for module in model.modules()]
    headloom.trace(model, inputs)
    with headloom.watch(model) as watched:
        during = first_tensor(run(model, inputs))
    assert watched.traces
    torch.testing.assert_close(during, before, atol=1e-5, rtol=1e-5)
    assert torch.equal(first_tensor(run(model, inputs)), before)
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    for module, own in zip(model.modules(), attributes, strict=True):
        assert not module._forward_hooks and not module._forward_pre_hooks
        assert vars(module).keys() == own.keys()
    assert not torch._C._is_torch_function_mode_enabled()


def assert_weights(trace: headloom.Trace, expected: dict[str, Tensor]) -> None:
    """Hold every layer against (heads, queries, keys) of its path."""
    assert [layer.name for layer in trace.layers] == list(expected)
    for layer in trace.layers:
        difference = (dense(layer) - expected[layer.name]).abs().max()
        assert difference <= TOLERANCE, (layer.name, float(difference))
        assert layer.deviation is not None and layer.deviation <= TOLERANCE


def of_projections(
    model: nn.Module, inputs: Any, names: tuple[str, str], inside: str = ""
) -> dict[str, Tensor]:
    """The weights of layers that have a projection for queries and one for keys.

    inside: the part of such a layer in which its attention runs.
    """
    with outputs(model, names) as seen:
        run(model, inputs)
    expected = {}
    for path in [path for path in seen if path.endswith(names[0])]:
        layer = path.removesuffix(f".{names[0]}")
        module = model.get_submodule(layer)
        heads = module.heads
        queries = by_heads(seen[path][0], heads)
        keys = by_heads(seen[f"{layer}.{names[1]}"][0], getattr(module, "kv_heads", heads))
        causal = getattr(module, "causal", False)
        shape = queries.shape[2], keys.shape[2]
        ahead = torch.full(shape, -torch.inf).triu(1) if causal else torch.zeros(shape)
        expected[layer + inside] = weights_of(queries, keys, ahead.double())[0]
    return expected


def encoder(batch_first: bool = True) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=batch_first)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=batch_first).eval()
