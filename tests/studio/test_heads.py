"""The numbers of heads in the studio are those of `trace.heads()`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from headloom.analysis.heads.patterns import SEPARATORS
from headloom.analysis.heads.roles import MEASURES, ROLES
from headloom.api.trace import Trace
from headloom.formats.trace import TraceData
from headloom.studio.collection import WORDS, Example, head_roles
from headloom.studio.page import collect
from headloom.studio.serving import Viewer

BARS = """() => Object.fromEntries([...document.querySelectorAll(".head-panel .bar-row")].map(
    (row) => [...row.querySelectorAll("span")].map((cell) => cell.textContent.trim())
        .filter((text) => text)))"""
SCATTER = """() => {
    const number = (text) => Number(text.textContent.replace("−", "-").replace(",", ""));
    const scale = (anchor, at) => {
        const ticks = [...document.querySelectorAll(
            `.scatter svg text[text-anchor="${anchor}"]:not(.axis-name, .now-label)`)]
            .map((text) => [Number(text.getAttribute(at)) - (at === "y" ? 3.5 : 0), number(text)]);
        const [first, last] = [ticks[0], ticks.at(-1)];
        return (x) => first[1] + (x - first[0]) * (last[1] - first[1]) / (last[0] - first[0]);
    };
    const [x, y] = [scale("middle", "x"), scale("end", "y")];
    return [...document.querySelectorAll(".scatter circle:not(.chosen)")].map(
        (circle) => [x(Number(circle.getAttribute("cx"))), y(Number(circle.getAttribute("cy")))]);
}"""


@pytest.fixture(params=["page", "server"])
def heads_of(
    request: pytest.FixtureRequest, studio: Any, serving: Callable[..., Viewer]
) -> Callable[[Trace, str], Any]:
    """The view of the heads of a trace, once they are measured."""

    def show(trace: Trace, address: str) -> Any:
        collection = collect([trace])
        address = f"#view=heads&{address}"
        if request.param == "page":
            page = studio.file(collection, address)
        else:
            page = studio.served(serving(collection), address)
        page.locator(".head-panel .bar-row").first.wait_for()
        return page

    return show


def test_bars_axes_and_roles_are_those_of_the_library(
    heads_of: Callable[[Trace, str], Any], pair_trace: Trace
) -> None:
    table = pair_trace.heads()
    page = heads_of(pair_trace, "x=previous&y=entropy")
    for number, head in ((0, 0), (1, 2), (2, 3)):
        row = table[(table["layer"] == number) & (table["head"] == head)].iloc[0]
        page.locator(f'[data-cell="{number}.{head}"]').hover()
        page.locator(".head-panel h2", has_text=f"H{head}").wait_for()
        applies = {name: row[name] for name in ROLES if row[name] == row[name]}
        assert page.evaluate(BARS) == {name: f"{value:.3f}" for name, value in applies.items()}
        title = next(role["title"] for role in WORDS["roles"] if role["name"] == row["role"])
        assert title in page.locator(".head-panel h2").inner_text()
        if row["role"] in ROLES:
            sentence = page.locator(".head-panel p").first.inner_text()
            assert f"{row['score']:.3f}" in sentence
            assert f"{row['chance']:.3f} ± {row['chance_sd']:.3f}" in sentence
    points = page.evaluate(SCATTER)
    expected = table[table["previous"].notna()]
    assert len(points) == len(expected) > 0
    for (x, y), (_, row) in zip(points, expected.iterrows(), strict=True):
        assert x == pytest.approx(row["previous"], abs=2e-4)
        assert y == pytest.approx(row["entropy"], abs=2e-3)
    axes = page.locator('select[aria-label="Horizontal measure"] option').all_inner_texts()
    assert axes == [name for name in MEASURES if table[name].notna().any()]


def test_until_heads_are_measured_the_studio_says_so(
    studio: Any,
    serving: Callable[..., Viewer],
    pair_trace: Trace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ready: list[bool] = []

    def slow(trace: TraceData) -> list[list[dict[str, Any]]]:
        while not ready:
            time.sleep(0.02)
        return head_roles(trace)

    collection = collect([pair_trace])
    monkeypatch.setattr("headloom.studio.collection.head_roles", slow)
    page = studio.served(serving(collection), "#view=heads")
    page.locator(".head-panel p", has_text="measuring").wait_for()
    assert page.locator(".sheet .tile").count() == len(pair_trace.heads())
    assert not page.locator(".bar-row").count()
    # No scale is made up: beside the names of the axes that is all the scatter has.
    said = page.locator(".scatter svg text:not(.axis-name)").all_text_contents()
    assert said == ["measuring …"] and not page.locator(".scatter .grid-line").count()
    ready.append(True)
    page.locator(".bar-row").first.wait_for()
    assert page.locator(".scatter .grid-line").count() > 4
    assert "measuring" not in page.locator("main").inner_text()


def test_numbers_are_those_of_the_table(pair_trace: Trace) -> None:
    table = pair_trace.heads().set_index(["layer", "head"])
    for number, layer in enumerate(head_roles(pair_trace)):
        for head, known in enumerate(layer):
            row = table.loc[(number, head)]
            assert known["role"] == row["role"]
            assert known["scores"] == pytest.approx(
                {name: row[name] for name in MEASURES if row[name] == row[name]}, rel=1e-4
            )
            assert set(known["chance"]) == set(known["scores"]) & set(ROLES)


def test_separators_are_the_analysis_list(make_trace: Callable[..., Trace]) -> None:
    tokens = ["[SEP]", "a", "<|eot_id|>", "[PAD]", "b", "</s>"]
    assert {"<|eot_id|>", "</s>"} <= SEPARATORS
    description = Example("text", make_trace(tokens)).description()
    assert description["separators"] == {"tokens": [2, 5]}
