"""Numbers of the threads are those of the dense formula in float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

import headloom
from headloom.api.trace import Trace
from headloom.studio.page import collect
from headloom.studio.serving import Viewer

Known = Callable[..., tuple[Trace, torch.Tensor]]
LENGTH, KEPT = 40, 8
#: Numbers stand with two digits.
ROUNDED = 0.0051


@pytest.fixture
def shown(
    studio: Any, serving: Callable[..., Viewer], known_trace: Known
) -> Callable[[str, bool], tuple[Any, torch.Tensor, torch.Tensor]]:
    """A function that shows the threads of a trace of 40 tokens and 8 edges a row.

    Returns: the page, the weights, the norms of the values.
    """

    def show(address: str, queries_keys: bool) -> tuple[Any, torch.Tensor, torch.Tensor]:
        trace, weights = known_trace(LENGTH, queries_keys=queries_keys)
        norms = torch.rand(3, LENGTH, generator=torch.Generator().manual_seed(1)) * 9 + 0.1
        (layer,) = trace.layers
        layer = dataclasses.replace(layer, data=dataclasses.replace(layer.data, value_norms=norms))
        collection = collect([dataclasses.replace(trace, layers=(layer,))])
        page = studio.served(serving(collection), f"#view=threads&{address}")
        page.locator(".short-threads .word").first.wait_for()
        page.wait_for_load_state("networkidle")
        page.wait_for_timeout(300)
        return page, weights, norms.double()

    return show


def compare(texts: list[str], expected: torch.Tensor) -> None:
    """Whether numbers are there, however small they are."""
    assert len(texts) == len(expected)
    assert any(texts)
    for text, value in zip(texts, expected.tolist(), strict=True):
        assert bool(text) == (value > 0)
        number = 0 if text in ("", "<.01") else float(text.replace("−", "-"))
        assert abs(value - number) < ROUNDED


@pytest.mark.parametrize("values", [False, True])
def test_bars_are_the_column_sums(shown: Any, values: bool) -> None:
    page, weights, norms = shown(f"heads=0.1&values={int(values)}", True)
    shares = weights
    if values:
        shares = weights * norms[:, None] / (weights @ norms[..., None])
    expected = shares[:2].mean((0, 1))
    compare(page.locator(".keys-column .number").all_inner_texts(), expected)
    bars = page.locator(".keys-column .word").evaluate_all(
        "words => words.map(word => parseFloat(word.querySelector('i')?.style.width ?? '0'))"
    )
    wide = (80 * expected / expected.max()).clamp(min=1.5)
    assert (torch.tensor(bars).double() - wide).abs().max() < 0.01


@pytest.mark.parametrize("kept", [6, 3])
def test_what_a_sink_takes_is_on_no_edge(studio: Any, kept: int) -> None:
    generator = torch.Generator().manual_seed(0)
    queries, keys = torch.randn(2, 1, 2, 6, 8, generator=generator)
    sinks = torch.tensor([1.0, 0.0])
    trace = headloom.from_queries_keys(
        queries, keys, sinks=sinks, keep=headloom.Top(kept), tokens=list("abcdef")
    )
    powers = (queries[0, 0, 2].double() @ keys[0, 0].double().T / 8**0.5).exp()
    weights = powers / (powers.sum() + sinks[0].double().exp())
    page = studio.file(collect([trace]), "#view=threads&query=2&lock=1&share=1")
    page.locator(".panel tbody tr").first.wait_for()
    said = page.locator(".panel").inner_text().replace("\u00a0", " ")
    taken = 100 * float(1 - weights.sum())
    weaker = 100 * float(weights.sum() - weights.topk(kept).values.sum())
    assert f" {taken:.0f} % is on a sink that is not a key." in said
    assert (f"{weaker:.0f} % is on weaker edges." in said) == (kept == 3)
