"""Thousands of heads: all on one screen, each of them exact, reached by pointer and keyboard."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from tests.analysis.test_overview import block_means
from tests.slow import slow
from tests.studio.sheet import sheet_dots

import headloom
from headloom.api.trace import Trace
from headloom.studio.collection import Example
from headloom.studio.page import collect
from headloom.studio.serving import Viewer

pytestmark = pytest.mark.slow

LAYERS, HEADS, TOKENS = 40, 32, 6


def crowd_of(count: int, heads: int) -> Trace:
    """Layers of heads; head h of layer n looks at key (n + h) % 6 above all."""
    queries = torch.zeros(count, heads, TOKENS, TOKENS)
    for number, head in product(range(count), range(heads)):
        queries[number, head, :, (number + head) % TOKENS] = 9
    keys = torch.eye(TOKENS).expand_as(queries)
    return headloom.from_queries_keys(
        queries, keys, keep=headloom.Top(TOKENS), kind="encoder", queries_keys=False
    )


@pytest.mark.parametrize("length", [70, 100, 480])
def test_small_pictures_are_block_means(
    known_trace: Callable[..., tuple[Trace, torch.Tensor]],
    monkeypatch: pytest.MonkeyPatch,
    length: int,
) -> None:
    monkeypatch.setattr("headloom.studio.overviews._MANY_DOTS", 0)
    trace, weights = known_trace(length)
    content = Example("known", trace).overviews.means(0)
    size = -(-length // 32)
    expected = size * np.stack([block_means(of_head, size, size) for of_head in weights])
    shades = np.frombuffer(content, np.uint8).reshape(expected.shape)
    exact = 255 * expected.clip(0, 1) ** 0.25
    exact[exact < 1.5] = 0  # the shade 1 is of what is no number
    assert np.abs(shades - exact).max() <= 0.51


@pytest.mark.parametrize("where", ["page", "server"])
@pytest.mark.parametrize(("layers", "heads"), [(10, 8), *slow((LAYERS, HEADS))])
def test_all_on_one_screen(
    studio: Any,
    serving: Callable[..., Viewer],
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    layers: int,
    heads: int,
) -> None:
    monkeypatch.setattr("headloom.studio.overviews._MANY_DOTS", 0)
    collection = collect([crowd_of(layers, heads)])
    page = studio.file(collection) if where == "page" else studio.served(serving(collection))
    page.locator(".sheet > canvas:not(.waiting)").wait_for()
    page.locator(".head-panel .bar-row").first.wait_for()
    stage = page.locator(".stage.heads").evaluate(
        "of => [of.scrollHeight - of.clientHeight, of.scrollWidth - of.clientWidth]"
    )
    assert max(stage) <= 1
    tiles = page.locator(".sheet .tile")
    assert tiles.count() == layers * heads
    # A button with a name for each head, one of which Tab reaches.
    names = tiles.evaluate_all("all => all.map((tile) => tile.ariaLabel.split(':')[0])")
    assert names == [f"L{layer} H{head}" for layer in range(layers) for head in range(heads)]
    assert tiles.evaluate_all("all => all.filter((tile) => tile.tabIndex === 0).length") == 1
    low, right = layers - 1, heads - 1
    for layer, head in ((0, 0), (layers // 2, 5), (low, right)):
        places = sheet_dots(page, layer, head, TOKENS, TOKENS).astype(int).sum(-1)
        assert set(places.argmin(-1)) == {(layer + head) % TOKENS}  # light: dark is much
    page.locator(f'[data-cell="{low - 2}.7"]').hover()
    page.locator(".head-panel h2", has_text=f"L{low - 2} H7").wait_for()
    assert page.locator(".head-panel .large canvas").count() == 1
    page.locator(f'[data-cell="{low}.{right - 1}"]').focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowUp")
    page.locator(f'[data-cell="{low - 1}.{right}"][aria-current="true"]').wait_for()
    assert page.evaluate("document.activeElement.dataset.cell") == f"{low - 1}.{right}"
    page.keyboard.press("Enter")
    page.locator(".short-threads").wait_for()
    page.locator(".panel h2", has_text=f"L{low - 1} H{right}").wait_for()
