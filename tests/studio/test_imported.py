"""Traces of arrays and of edge lists in the studio: what is not known is not shown as known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.slow import slow

import headloom
from headloom.formats.trace import TraceData
from headloom.mechanism.masks import causal
from headloom.studio.page import collect
from headloom.studio.serving import Viewer
from headloom.tracing.given_edges import from_edges

TOKENS = ["the", "old", "dog", "saw", "the", "young", "cat", "and", "it", "saw", "the", "dog"]
#: What each view shows once it is there.
VIEWS = {"heads": ".head-panel .bar-row", "threads": "text=young", "matrix": "canvas"}


def arrays() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    random = np.random.default_rng(3)
    queries, keys = random.normal(size=(2, 2, 4, len(TOKENS), 8)).astype(np.float32) * 1.5
    return queries, keys


def of_arrays() -> TraceData:
    """Queries and keys: all is there."""
    return headloom.from_queries_keys(*arrays(), mask=headloom.causal(), tokens=TOKENS)


def of_weights() -> TraceData:
    """Weights alone, as Transformers returns them."""
    trace = headloom.from_queries_keys(*arrays(), mask=headloom.causal(), keep=headloom.All())
    weights = tuple(layer.graph.dense()[None] for layer in trace.layers)
    return headloom.from_weights(weights, tokens=TOKENS, keep=headloom.Top(4))


def of_edges() -> TraceData:
    """The three strongest edges of every row, and nothing else."""
    trace = headloom.from_queries_keys(*arrays(), mask=headloom.causal(), keep=headloom.Top(3))
    table = trace.to_pandas()
    columns = {name: table[name].to_numpy() for name in ("layer", "head", "query", "key")}
    columns |= {name: table[name].to_numpy(np.float64) for name in ("weight",)}
    made = from_edges(columns, mask=causal(), tokens=TOKENS, strongest=True)
    return headloom.Trace.of(made)


MADE: dict[str, Callable[[], TraceData]] = {
    "arrays": of_arrays, "weights": of_weights, "edges": of_edges,
}  # fmt: skip


@pytest.mark.parametrize("name", ["edges", *slow("arrays", "weights")])
def test_an_imported_trace_opens_in_every_view(
    studio: Any, serving: Callable[..., Viewer], tmp_path: Path, name: str
) -> None:
    MADE[name]().save(tmp_path / "t.loom")
    collection = collect([headloom.open(tmp_path / "t.loom")])
    viewer = serving(collection)
    for view, there in VIEWS.items():
        page = studio.served(viewer, f"#view={view}&layer=1&head=2&query=7")
        page.set_default_timeout(20_000)
        page.locator(there).first.wait_for()
        text = page.inner_text("body")
        assert "NaN" not in text
        assert "undefined" not in text
        page.screenshot(path=str(tmp_path / f"{name}-{view}.png"))
    assert studio.problems == []


def test_the_weights_of_a_row_are_those_that_were_given(studio: Any) -> None:
    trace = of_weights()
    page = studio.file(collect([trace]), "#view=threads&layer=1&head=2&query=7")
    page.get_by_text("young").first.wait_for()
    strongest = trace.layers[1].graph[2, 7]
    weights = torch.tensor([float(weight) for weight in strongest.weights])
    assert bool((weights.diff() <= 0).all())
    text = page.inner_text("body")
    assert f"{100 * float(weights[0]):.0f}" in text or f"{float(weights[0]):.2f}" in text
