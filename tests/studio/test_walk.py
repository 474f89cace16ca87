"""From every layer and example to every other, in every view: what is shown is that of the link."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import permutations
from typing import Any

import networkx
import pytest
import torch
from tests.analysis.test_patch_map import grid_trace
from tests.conftest import LanguageModel, Translator
from tests.slow import slow

import headloom
from headloom.api.trace import Trace
from headloom.studio.collection import Collection
from headloom.studio.page import collect

#: All that the stage and the panel show: words, what is chosen in lists, marks and pictures.
#: null: something is on its way.
SHOWN = """() => {
    const main = document.querySelector("main");
    if (!main || main.querySelector('[aria-busy="true"], .skeleton, canvas.waiting')) return null;
    const chosen = [...main.querySelectorAll("select")].map((list) => list.value);
    const pictures = [...main.querySelectorAll("canvas")].map((canvas) => canvas.toDataURL());
    const marks = main.querySelectorAll("svg *").length;
    return [main.innerText.replace(/\\s+/g, " "), chosen, marks, pictures];
}"""
#: Follows links in the page that is open. The first that does not come to show what is expected,
#: with what it shows and what is expected; null: all do.
WALK = f"""async (steps) => {{
    const shown = {SHOWN};
    for (const [link, expected] of steps) {{
        location.hash = link;
        for (let tries = 0; JSON.stringify(shown()) !== JSON.stringify(expected); tries++) {{
            if (tries === 3000) return [link, shown(), expected];
            await new Promise((done) => setTimeout(done, 10));
        }}
    }}
    return null;
}}"""
VIEWS = (
    "heads", "threads", "matrix", "neuron", "image", "texts", "graph", "paths", "compare",
    "training",
)  # fmt: skip

NAMES = ["pair", "other pair", "long", "image"]


def settled(page: Any) -> Any:
    """What is shown once it stays."""
    before = None
    for _ in range(400):
        shown = page.evaluate(SHOWN)
        if shown is not None and shown == before:
            return shown
        before = shown
        page.wait_for_timeout(50)
    raise AssertionError(page.locator("body").inner_text())


@pytest.fixture
def collection(
    translator: Translator, language_model: LanguageModel, history_of: Callable[..., Any]
) -> Collection:
    """Layers of 2 to 9 queries and keys, of 70, and of the patches of an image; and a training."""

    def traced(model: torch.nn.Module, inputs: Any) -> Trace:
        trace = headloom.trace(model, inputs)
        assert isinstance(trace, Trace)
        return trace

    def pair(source: int, target: int) -> Trace:
        lengths = {"source": source, "target": target}
        return traced(translator, {name: torch.arange(1, n + 1) for name, n in lengths.items()})

    traces = [pair(7, 4), pair(2, 9), traced(language_model, torch.arange(70) % 40 + 1)]
    made = collect([*traces, grid_trace()], names=NAMES, history=history_of(traces[0]))
    for example in made.examples:
        example.heads(wait=True)
    return made


@pytest.mark.parametrize("walked", ["from view to view", *slow(*VIEWS)])
def test_every_change_shows_what_its_link_shows(
    studio: Any, serving: Callable[..., Any], collection: Collection, walked: str
) -> None:
    """The links in an order in which each follows each other once; every second has a token that
    was chosen.
    """
    places = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 2), (2, 1), (3, 0)]
    views = [walked] * len(places) if walked in VIEWS else VIEWS
    links = [
        f"#view={view}&example={NAMES[example]}&layer={layer}" + "&query=1&key=1" * (n % 2)
        for n, (view, (example, layer)) in enumerate(zip(views, places * 2, strict=False))
    ]
    viewer = serving(collection)
    expected = {}
    for link in links:
        page = studio.served(viewer, link)
        expected[link] = settled(page)
        page.close()
    # Else the walk could not tell one layer from another.
    if walked != "paths":
        several = [json.dumps(expected[link]) for link in links[:3]]
        assert len({*several}) == len(several)
    graph = networkx.DiGraph(permutations(links, 2))
    steps = [other for _, other in networkx.eulerian_circuit(graph, links[0])]
    assert len(steps) == len(links) * (len(links) - 1)
    page = studio.served(viewer, links[0])
    settled(page)
    assert page.evaluate(WALK, [[link, expected[link]] for link in steps]) is None
