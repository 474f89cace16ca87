"""Every view, for every eye and in every width: axe-core finds nothing, and nothing is cut off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headloom.api.trace import Trace
from headloom.studio.page import collect

pytestmark = pytest.mark.slow

AXE = Path(__file__).parents[2] / "studio" / "node_modules" / "axe-core" / "axe.min.js"
LONG = (
    "The river had been rising for three days when the bank of the river flooded. The clerk at the"
    " bank closed the doors, carried the ledgers upstairs and waited. In the evening the water"
    " reached the first step; by midnight it had taken the whole square. Nobody in the town could"
    " remember a spring like this."
)
#: Of two real sentences, the short one first, and of a training.
VIEWS = (
    "heads&layer=4&head=3",
    "heads&order=entropy&colour=entropy",
    "threads&layer=4&head=3&heads=0.3.8&query=10&lock=1&sinks=1",
    "threads&example=1&layer=1&head=7&query=12&lock=1&share=1",
    "matrix&example=1&layer=1&head=7&query=12&key=11&window=4,0,24",
    "graph&example=1&layer=1&mean=1&mass=0.5&layout=circle",
    "graph&example=1&layer=1&head=7&query=12&lock=1&layout=line",
    "paths&output=10&input=2",
    "training&layer=1&head=2&step=1",
    "training&picture=product&step=1",
)
#: What is cut off sideways, or stands out of the window.
CUT = """() => {
    const wide = document.documentElement.clientWidth;
    const boxes = "main, header, .panel, .stage, button, p, h2, label, select, input, output, kbd";
    const beyond = [...document.querySelectorAll(`.studio :is(${boxes}, .word, .token)`)]
        .filter((of) => of.checkVisibility() && !of.closest(".unseen, .skip, dialog"))
        .map((of) => [of, of.getBoundingClientRect()])
        .filter(([, box]) => box.right > wide + 1 || box.left < -1)
        .map(([of]) => of);
    const texts = ".tile small, .bar-row span, .number, .keys span, .choice button";
    const cut = [...document.querySelectorAll(texts)].filter((of) => of.checkVisibility())
        .filter((of) => of.clientWidth && of.scrollWidth > of.clientWidth + 1);
    return [...beyond, ...cut].map((of) => `${of.className} ${of.textContent.trim().slice(0, 40)}`);
}"""


def axe_findings(page: Any) -> list[str]:
    """What axe-core calls serious or critical, contrasts of text among it."""
    if not AXE.exists():
        pytest.skip("needs axe-core: npm ci in studio/ (scripts/studio does it)")
    page.evaluate(AXE.read_text("utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{finding['id']}: {finding['nodes'][0]['html'][:120]}"
        for finding in found["violations"]
        if finding["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1440])
def test_every_view(
    studio: Any, minilm: Callable[..., Trace], minilm_trace: Trace, history_of: Any, theme: str,
    width: int,
) -> None:  # fmt: skip
    traces = [minilm_trace, minilm(LONG)]
    made = collect(traces, names=["short", "long"], history=history_of(minilm_trace))
    page = studio.file(made, theme=theme, width=width)
    for view in VIEWS:
        page.evaluate("view => { location.hash = `#view=${view}`; }", view)
        page.locator(f"main:not([aria-busy]) .stage.{view.split('&')[0]}").wait_for()
        page.wait_for_timeout(250)
        assert axe_findings(page) == [], view
        assert page.evaluate(CUT) == [], view
        assert page.evaluate("document.documentElement.scrollWidth") <= width, view
    for name, key in {"help": "?", "export": "e"}.items():
        page.keyboard.press(key)
        page.locator(f"dialog.{name}[open]").wait_for()
        assert axe_findings(page) == []
        page.keyboard.press("Escape")
