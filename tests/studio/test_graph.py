"""A head, or a layer's mean, as a graph: what is drawn, what it holds, and what is not shown."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.analysis.dense_layer import layer_of_weights
from tests.slow import slow

from headloom.api.trace import Trace
from headloom.formats.trace import TraceLayer
from headloom.studio.page import collect

SENTENCE = "the animal did not cross the street because it was too tired"
WORDS = SENTENCE.split()
#: As lists have them: with its position a word that stands twice.
NAMES = [f"{word} ({n})" if WORDS.count(word) > 1 else word for n, word in enumerate(WORDS)]


def cells_of(row: str) -> list[str]:
    """The cells of a row of a table, as text."""
    return [" ".join(cell.split()) for cell in row.split("\t")]


#: How many pixels of the edges' canvas are painted.
PAINTED = """() => {
    const canvas = document.querySelector(".graph-sheet canvas");
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let count = 0;
    for (let n = 3; n < data.length; n += 4) count += data[n] > 40;
    return count;
}"""


def weights_of(seed: int, length: int, causal: bool, heads: int = 3) -> np.ndarray[Any, Any]:
    scores = np.random.default_rng(seed).normal(0, 2, (heads, length, length))
    if causal:
        scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def dense_trace(weights: np.ndarray[Any, Any], causal: bool, keep: int | None = None) -> Trace:
    mask = "causal" if causal else "all"
    tokens = WORDS[: weights.shape[1]]
    layer = layer_of_weights(torch.from_numpy(weights), tokens, mask=mask, keep=keep)
    layer = TraceLayer(**{**vars(layer), "mask": mask})
    return Trace({"tokens": tokens}, (layer,), {"name": "by hand"})


def fewest(weights: np.ndarray[Any, Any], share: float) -> tuple[int, float]:
    """How many of the strongest edges hold a share of the mass, and what they hold."""
    edges = np.sort(weights[weights > 0].ravel())[::-1]
    sums = edges.cumsum()
    count = int((sums < share * len(weights) - 1e-6).sum()) + 1
    return count, float(sums[count - 1] / len(weights))


def ready(page: Any) -> str:
    """What the panel says, once the graph is there."""
    page.locator('.stage.graph:not([aria-busy="true"])').wait_for()
    page.locator(".drawn-mass").wait_for()
    page.wait_for_timeout(150)
    return page.locator(".panel").inner_text().replace("\u00a0", " ")


def under_the_pointer(page: Any, token: int, other: int) -> str:
    """What is said of the edge between two tokens on a line, where its arc is furthest right."""
    ends = [page.locator(".node circle").nth(n).bounding_box() for n in (token, other)]
    middle = sum(box["y"] + box["height"] / 2 for box in ends) / 2
    right = page.locator(".graph-sheet").bounding_box()
    for x in range(int(ends[0]["x"]) + 24, int(right["x"] + right["width"]), 5):
        page.mouse.move(x, middle)
        page.wait_for_timeout(15)
        if page.locator(".tip").count():
            return page.locator(".tip").inner_text()
    return ""


@pytest.mark.parametrize(("causal", "share"), [(True, 0.7), *slow((False, 0.3))])
def test_the_fewest_edges_that_hold_the_mass(studio: Any, causal: bool, share: float) -> None:
    weights = weights_of(3, 12, causal)
    page = studio.file(collect([dense_trace(weights, causal)]), f"#view=graph&head=1&mass={share}")
    said = ready(page)
    count, held = fewest(weights[1], share)
    total = 12 * 13 // 2 if causal else 144
    assert f"{count} of {total} kept edges hold {100 * held:.0f} % of the mass." in said
    assert f"Not drawn: {100 - 100 * held:.0f} %." in said
    assert ("no edge leads forward; a loop is" in said) == causal
    assert ("No mask:" in said) == (not causal)
    strongest = page.locator(".panel tbody tr").first.inner_text()
    query, key = np.unravel_index(weights[1].argmax(), (12, 12))
    assert cells_of(strongest) == [f"{NAMES[query]} → {NAMES[key]}", f"{weights[1].max():.4f}"]


def test_a_hover_names_an_edge_and_a_click_its_neighbours(studio: Any) -> None:
    weights = weights_of(11, 12, True)
    page = studio.file(collect([dense_trace(weights, True)]), "#view=graph&layout=line&mass=0.05")
    ready(page)
    blank = page.evaluate(PAINTED)
    page.locator(".node text").nth(9).click()
    page.locator(".neighbours").wait_for()
    said = ready(page)
    row, column = weights[0][9], weights[0][:, 9]
    held = max(row.max(), column.max()) / (row.sum() + column.sum() - row[9])
    assert f"1 edge drawn, holding {100 * held:.0f} % of the mass of its kept edges." in said
    assert f"It receives {column.sum():.2f} from all queries." in said
    rows = page.locator(".neighbours table").first.locator("tbody tr").all_inner_texts()
    order = np.argsort(-row)[:5]
    assert [cells_of(text)[:2] for text in rows[:5]] == [
        [NAMES[key], f"{row[key]:.4f}"] for key in order
    ]
    assert page.locator(".node.apart").count() > 5
    assert page.evaluate(PAINTED) != blank
    # At a twentieth of its mass the strongest edge at the token stands alone.
    ends = [(9, int(row.argmax())), (int(column.argmax()), 9)]
    query, key = max(ends, key=lambda one: weights[0][one])
    said = under_the_pointer(page, query, key)
    assert said == f"“{WORDS[query]}” → “{WORDS[key]}”: {weights[0][query, key]:.4f}"
    page.keyboard.press("Escape")
    page.locator(".neighbours").wait_for(state="detached")
    page.keyboard.press("Escape")
    page.locator(".stage.heads").wait_for()
