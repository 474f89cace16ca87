"""Attention modules that ran and were not caught are named, and no others."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from tests.tracing.conftest import PAIR, Family, cached, ids_of
from torch import nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

import headloom

transformers = pytest.importorskip("transformers")

IDS = torch.randint(3, 60, (1, 12), generator=torch.Generator().manual_seed(3))
TARGET = IDS[:, :7]


def small(name: str, **options: Any) -> Any:
    torch.manual_seed(5)
    config = getattr(transformers, f"{name}Config")(**options)
    return getattr(transformers, f"{name}Model")(config).eval()


def long_t5() -> Any:
    return small(
        "LongT5", vocab_size=60, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
        local_radius=3, decoder_start_token_id=1, pad_token_id=0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("model", "layers"),
    [
        (long_t5, 2),
        (lambda: small("PegasusX", **PAIR, block_size=4, num_global_tokens=2), 2),
        (lambda: small("BigBirdPegasus", **PAIR, attention_type="block_sparse", block_size=2,
                       num_random_blocks=1), 2),
    ],
    ids=["LongT5", "PegasusX", "BigBirdPegasus"],
)  # fmt: skip
def test_encoders_that_take_attention_by_themselves_are_named(model, layers) -> None:
    built = model()
    ids = IDS.repeat(1, 4)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trace = headloom.trace(built, {"input_ids": ids, "decoder_input_ids": TARGET})
    assert {layer.kind for layer in trace.layers} == {"decoder", "cross"}
    modules = dict(built.named_modules())
    assert len(trace.not_traced) == layers
    for entry in trace.not_traced:
        assert entry["name"].startswith("encoder.")
        assert type(modules[entry["name"]]).__name__ == entry["class"]
        assert "computes attention itself" in entry["reason"]
    (message,) = [str(w.message) for w in said if "cannot be traced" in str(w.message)]
    assert trace.not_traced[0]["name"] in message
    assert "not traced" in repr(trace)


class Pooler(nn.Module):
    """Attention by hand, in a class whose name does not say so."""

    def __init__(self, how: str, width: int = 32) -> None:
        super().__init__()
        self.how = how
        self.project = nn.Linear(width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        queries, keys = self.project(hidden), hidden
        if self.how == "fused":
            return nn.functional.scaled_dot_product_attention(queries, keys, hidden)
        scores = queries @ keys.mT / 32**0.5
        if self.how == "method":
            return scores.softmax(-1) @ hidden
        weights = torch.softmax(scores.float(), dim=-1).to(hidden.dtype)
        weights = nn.functional.dropout(weights, 0.1, self.training)
        if self.how == "einsum":
            return torch.einsum("bqk,bkd->bqd", weights, hidden)
        return torch.bmm(weights, hidden)


class Gate(nn.Module):
    """A softmax over four experts, which is no attention: each output is scaled and added."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.gate = nn.Linear(width, 4)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(4))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        gates = self.gate(hidden).softmax(-1)
        outputs = [gates[..., i, None] * expert(hidden) for i, expert in enumerate(self.experts)]
        return torch.stack(outputs).sum(0)


@pytest.mark.parametrize("how", ["matmul", "method", "einsum"])
@pytest.mark.parametrize("place", ["mlp", "inside"])
def test_a_module_that_computes_its_own_attention_is_named_whatever_its_class(
    family_named: Callable[[str], Family], how: str, place: str
) -> None:
    """Also inside of a module whose own call was caught."""
    model: Any = family_named("Llama").build()
    layer = model.model.layers[1]
    if place == "mlp":
        layer.mlp, path = Pooler(how), "model.layers.1.mlp"
    else:
        layer.self_attn.o_proj, path = Pooler(how), "model.layers.1.self_attn.o_proj"
    with pytest.warns(UserWarning, match="ran and cannot be traced"):
        trace = headloom.trace(model, IDS)
    assert isinstance(trace, headloom.Trace)
    assert [(entry["name"], entry["class"]) for entry in trace.not_traced] == [(path, "Pooler")]
    assert len(trace.layers) == 2
    with (
        pytest.warns(UserWarning, match="ran and cannot be traced"),
        headloom.watch(model) as watched,
    ):
        model(IDS)
    assert [entry["name"] for entry in watched.trace.not_traced] == [path]
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_gates_and_vocabularies_are_no_attention(family_named: Callable[[str], Family]) -> None:
    # Warnings are errors here.
    model: Any = family_named("Llama").build()
    model.model.layers[0].mlp = Gate()
    model.lm_head.register_forward_hook(lambda module, given, output: output.softmax(-1))
    assert headloom.trace(model, IDS).not_traced == ()
    assert headloom.trace(model, IDS, generate=3).not_traced == ()


class Counting(TorchFunctionMode):
    """Somebody's own mode."""

    calls = 0

    def __torch_function__(self, func, types, args=(), kwargs=None) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("entered", "left"), [(1, 9), (2, 3), (3, 4), (3, 9), (4, 6), (8, 9)])
def test_modes_of_others_and_hooks_are_left_alone(family_named, entered: int, left: int) -> None:
    """Whichever passes somebody's own mode is around; it must be left in its turn."""
    model: Any = family_named("Llama").build()
    token, cache, mode = IDS, transformers.DynamicCache(), Counting()
    with headloom.watch(model) as watched, torch.no_grad(), ExitStack() as stack:
        for number in range(1, 11):
            if number == entered:
                stack.enter_context(mode)
            logits = model(token, **cached(model, cache), use_cache=True).logits
            token = logits[:, -1:].argmax(-1)
            if number == left:
                stack.close()
                assert mode.calls
                mode.calls = 0
    assert not mode.calls
    assert not _get_current_function_mode_stack()
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())
    one = headloom.trace(model, ids_of(watched.trace), keep=headloom.Top(4))
    for grown, whole in zip(watched.trace.layers, one.layers, strict=True):
        assert torch.allclose(grown.graph.weights[..., :4], whole.graph.weights, atol=2e-6)
