"""Whatever runs on a GPU, on one that is pretended: see tests/pretended_device.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.pretended_device import PretendedDevice, marked
from torch import Tensor, nn

import headloom


@pytest.fixture(params=["cuda", "mps"])
def gpu(request: pytest.FixtureRequest) -> PretendedDevice:
    return PretendedDevice(request.param)


def tensors_of(result: Any) -> list[Tensor]:
    """The tensors of a result, of graphs and traces too, in order."""
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, headloom.AttentionGraph):
        names = "scores", "weights", "lse", "entropy", "rest", "count", "received"
        return tensors_of([getattr(result, name) for name in names])
    if isinstance(result, headloom.Trace):
        return tensors_of([layer.graph for layer in result.layers])
    return (
        [x for one in result for x in tensors_of(one)] if isinstance(result, list | tuple) else []
    )


def check(gpu: PretendedDevice, run: Callable[..., Any], *given: Any, comes: bool = True) -> None:
    """A function gives there what it gives on the CPU.

    comes: whether its results stay on the device; a trace's are taken off it.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        expected = tensors_of(run(*given))
    assert expected
    with gpu:
        torch.manual_seed(0)
        found = tensors_of(run(*gpu.place(given)))
        assert [marked(tensor) for tensor in found] == [comes] * len(found)
        found = [tensor.cpu() for tensor in found]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_the_device_is_as_strict_as_one(gpu: PretendedDevice) -> None:
    with gpu:
        there, here = torch.ones(2, device=gpu.device), torch.ones(2)
        assert there.device == gpu.device != here.device
        assert (there * 2).device == gpu.device
        assert there[torch.tensor([0])].device == gpu.device
        assert there.cpu().device == here.device
        with pytest.raises(RuntimeError, match="same device"):
            there + here
        with pytest.raises(TypeError):
            there.numpy()
        if gpu.device.type == "mps":
            with pytest.raises(TypeError):
                there.double()


def parts(*more: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = (2, 4, 70, 16), (2, 2, 70, 16), (2, 2, 70, 16), *more
    return [torch.randn(size, generator=generator) for size in sizes]


CELLS = torch.rand(70, 70, generator=torch.Generator().manual_seed(1)) < 0.5


@pytest.mark.parametrize("function", [headloom.attention, headloom.attend])
@pytest.mark.parametrize(
    "mask",
    [
        lambda: None,
        headloom.causal,
        lambda: headloom.window(4, 3),
        lambda: headloom.causal() & headloom.padding([70, 33]),
        lambda: headloom.window(2, 2) | headloom.padding([3, 4]),
        lambda: headloom.neighbours(CELLS),
        lambda: CELLS,
    ],
    ids=("none", "causal", "window", "padding", "either", "neighbours", "cells"),
)
def test_masks(gpu: PretendedDevice, function: Any, mask: Callable[[], Any]) -> None:
    check(gpu, lambda *given: function(*given, mask=mask()), *parts())


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        (lambda a, b: {"relative": headloom.Shaw(a, b)}, ((5, 16), (5, 16))),
        (lambda a: {"relative": headloom.ALiBi(a)}, ((4,),)),
        (lambda: {"relative": headloom.ALiBi(headloom.alibi_slopes(4))}, ()),
        (lambda a: {"relative": headloom.Buckets(a)}, ((32, 4),)),
        (lambda a: {"score": headloom.Bilinear(a)}, ((4, 16, 16),)),
        (lambda a, b, c: {"score": headloom.Additive(a, b, c)}, ((8, 16), (8, 16), (8,))),
        (lambda a, b: {"sinks": a, "bias": b, "softcap": 3.0}, ((4,), (1, 4, 70, 70))),
        (lambda: {"received": True}, ()),
        (lambda: {"keep": headloom.All()}, ()),
        (lambda: {"backend": "torch"}, ()),
    ],
    ids=[
        "Shaw",
        "ALiBi",
        "slopes",
        "buckets",
        "bilinear",
        "additive",
        "sinks",
        "received",
        "all",
        "torch",
    ],
)
def test_scores_and_positions(gpu: PretendedDevice, options: Any, sizes: Any) -> None:
    check(gpu, lambda *given: headloom.attend(*given[:3], **options(*given[3:])), *parts(*sizes))


def test_rotary_positions(gpu: PretendedDevice) -> None:
    check(gpu, lambda *given: headloom.rotary(given[0], 1000), *parts())


@pytest.mark.parametrize(
    "ask",
    [
        lambda matrix: matrix.to_dense(),
        lambda matrix: matrix.top(3),
        lambda matrix: [matrix.received(), matrix.entropy(), matrix.sum_of_squares()],
        lambda matrix: matrix.mass([0, 5]),
        lambda matrix: matrix.block_summaries(0, 8),
        lambda matrix: matrix.of_head(1).to_dense(),
        lambda matrix: matrix[1, 2:9, 3:30],
    ],
    ids=["dense", "top", "columns", "mass", "summaries", "head", "tile"],
)
def test_the_whole_matrix(gpu: PretendedDevice, ask: Callable[[Any], Any]) -> None:
    def run(queries: Tensor, keys: Tensor, _: Tensor) -> Any:
        return ask(headloom.AttentionMatrix(queries[0], keys[0], mask=headloom.causal()))

    check(gpu, run, *parts())


def test_traces_of_models_made_of_headloom(
    gpu: PretendedDevice, translator: nn.Module, language_model: nn.Module
) -> None:
    source, target = torch.tensor([3, 9, 9, 14, 27]), torch.tensor([1, 8, 30])
    check(
        gpu,
        lambda model, source, target: headloom.trace(model, {"source": source, "target": target}),
        *(translator, source, target),
        comes=False,
    )
    check(
        gpu,
        lambda model, tokens: headloom.trace(model, {"tokens": tokens}, received=True),
        *(language_model, source),
        comes=False,
    )


def test_tables_of_a_device_are_moved_to_a_call_on_the_cpu(gpu: PretendedDevice) -> None:
    queries, keys, values, *tables = parts((5, 16), (5, 16))
    expected = headloom.attention(queries, keys, values, relative=headloom.Shaw(*tables))
    with gpu:
        found = headloom.attention(
            queries, keys, values, relative=headloom.Shaw(*gpu.place(tables))
        )
        assert not marked(found)
    torch.testing.assert_close(found, expected)
