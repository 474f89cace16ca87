"""A token through all layers, and the strongest paths between two: against NumPy, by hand."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from tests.studio.test_graph import NAMES, cells_of, dense_trace, weights_of

from headloom.api.trace import Trace
from headloom.formats.trace import TraceLayer
from headloom.studio.page import collect

Array = np.ndarray[Any, Any]
LAYERS, TOKENS = 3, 7
#: How many pixels of the diagram are painted.
PAINTED = """() => {
    const canvas = document.querySelector(".stage.paths canvas");
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let count = 0;
    for (let n = 3; n < data.length; n += 4) count += data[n] > 40;
    return count;
}"""


def stacked(all_weights: list[Array], causal: bool, keep: int | None = None) -> Trace:
    """A trace of several layers of weights."""
    traces = [dense_trace(weights, causal, keep) for weights in all_weights]
    layers = [
        TraceLayer(**{**vars(one.layers[0]), "name": f"layers.{n}", "index": n})
        for n, one in enumerate(traces)
    ]
    return Trace({"tokens": traces[0].tokens}, tuple(layers), {"name": "by hand"})


def steps_of(all_weights: list[Array]) -> list[Array]:
    return [np.eye(weights.shape[1]) / 2 + weights.mean(0) / 2 for weights in all_weights]


def every_path(steps: list[Array], start: int, end: int) -> list[tuple[float, tuple[int, ...]]]:
    """Each path from an output to an input with its product, the largest first."""
    found = []
    for between in itertools.product(range(len(steps[0])), repeat=len(steps) - 1):
        path = (start, *between, end)
        ends = zip(steps[::-1], itertools.pairwise(path), strict=True)
        found.append((float(np.prod([step[pair] for step, pair in ends])), path))
    return sorted(found, reverse=True)


def three_digits(number: float) -> str:
    """As the page writes it."""
    if number >= 1e-3:
        return f"{float(f'{number:.3g}'):#.3g}".rstrip(".")
    return f"{number:.1e}".replace("e-0", "e-").replace("-", "−")


def ready(page: Any) -> str:
    page.locator('.stage.paths:not([aria-busy="true"])').wait_for()
    page.locator(".carried").wait_for()
    page.wait_for_timeout(150)
    return page.locator(".panel").inner_text().replace("\u00a0", " ")


def products(page: Any) -> list[str]:
    page.locator(".strongest .path").first.wait_for()
    return page.locator(".strongest .product").all_inner_texts()


def written(path: tuple[int, ...]) -> str:
    """A path as the panel has it: each token with the levels at which the path stays there."""
    levels = [*(f"L{n}" for n in reversed(range(len(path) - 1))), "input"]
    parts = []
    for place, group in itertools.groupby(zip(path, levels, strict=True), key=lambda one: one[0]):
        names = [name for _, name in group]
        span = names[0] if len(names) == 1 else f"{names[0]}–{names[-1]}"
        parts.append(f"{NAMES[place]} {span}")
    return " ← ".join(parts)


@pytest.mark.parametrize("causal", [pytest.param(False, marks=pytest.mark.slow), True])
def test_two_clicks_give_the_strongest_paths(studio: Any, causal: bool) -> None:
    weights = [weights_of(seed, 12, causal)[:, :TOKENS, :TOKENS] for seed in range(LAYERS)]
    weights = [of / of.sum(-1, keepdims=True) for of in weights]
    collection = collect([stacked(weights, causal)])
    page = studio.file(collection, "#view=paths&output=3")
    ready(page)
    start, end = 5, 1
    page.locator(".outputs .end").nth(start).click()
    page.locator(".panel h2", has_text=f"“{NAMES[start]}”").wait_for()
    said = ready(page)
    steps = steps_of(weights)
    rollout = steps[2] @ steps[1] @ steps[0]
    order = np.argsort(-rollout[start])
    rows = page.locator(".panel tbody tr").all_inner_texts()
    count = int((rollout[start] > 0).sum())
    assert [cells_of(row) for row in rows] == [
        [NAMES[place], three_digits(rollout[start, place])] for place in order[:count]
    ]
    assert "the residual connection" in said
    page.locator(".inputs .end").nth(end).click()
    expected = every_path(steps, start, end)[:8]
    assert products(page) == [three_digits(product) for product, _ in expected]
    found = page.locator(".strongest .steps").all_inner_texts()
    assert [" ".join(text.split()) for text in found] == [written(path) for _, path in expected]
    said = ready(page)
    assert f"Rollout (all paths together): {three_digits(rollout[start, end])}." in said
    share = sum(product for product, _ in expected) / rollout[start, end]
    assert f"The 8 below hold {100 * share:.0f} % of it." in said
    assert "output=5" in page.url and "input=1" in page.url


def test_between_two_sequences(studio: Any, pair_trace: Trace) -> None:
    encoder, decoder, cross = (
        layer.graph.to_dense().double().mean(0).numpy() for layer in pair_trace.layers
    )
    # 7 of the source, then 4 of the target; the encoder changes the source alone.
    steps = []
    for own, other, mean in ((0, 0, encoder), (7, 7, decoder), (7, 0, cross)):
        step = np.eye(11)
        rows = slice(own, own + len(mean))
        step[rows] *= 0.5
        step[rows, other : other + mean.shape[1]] += mean / 2
        steps.append(step)
    page = studio.file(collect([pair_trace]), "#view=paths&output=3&input=6")
    expected = every_path(steps, 7 + 3, 6)[:8]
    assert products(page) == [three_digits(product) for product, _ in expected if product > 0]
    assert page.locator(".inputs .end").count() == 7
    assert page.locator(".outputs .end").count() == 4
    assert page.locator(".level").all_inner_texts() == ["input", "L0", "L1", "L2"]
    page.locator(".stage select").select_option("decoder")
    ready(page)
    assert page.locator(".both").count() == page.locator(".own .end").count() == 0
    assert page.locator(".inputs .end").count() == page.locator(".outputs .end").count() == 4
