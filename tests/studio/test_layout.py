"""What the place that the studio has does to it: phones, narrow windows, paper, forced colours."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.slow import slow
from tests.studio.windows import until, widths

import headloom
from headloom.api.trace import Trace
from headloom.formats.trace import LayerInMemory, TraceLayer
from headloom.studio.page import collect, page_html

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


def colours(page: Any, selector: str, number: int = 0) -> set[tuple[int, ...]]:
    """The colours of an element on the screen."""
    box = page.locator(selector).nth(number).bounding_box()
    picture = Image.open(io.BytesIO(page.screenshot(clip=box))).convert("RGB")
    return {tuple(colour) for colour in np.asarray(picture).reshape(-1, 3).tolist()}


def strip_colour(page: Any, number: int) -> tuple[int, ...]:
    """The colour of the strip under a head among all heads, on the screen."""
    box = page.locator(".stage .tile").nth(number).bounding_box()
    clip = {"x": box["x"] + 4, "y": box["y"] + box["width"] + 4, "width": 2, "height": 1}
    pixels = np.asarray(Image.open(io.BytesIO(page.screenshot(clip=clip))).convert("RGB"))
    return tuple(pixels[0, 0].tolist())


@pytest.fixture(scope="module")
def two_texts(minilm_trace) -> str:
    return page_html(collect([minilm_trace, minilm_trace]))


@widths(360, 768, 1024, 1440)
def test_nothing_is_cut_in_any_view(studio, two_texts, pair_trace, history_of, width) -> None:
    run = collect([pair_trace], history=history_of(pair_trace), summary={"exact": "99 %"})
    for collection, views in (
        (
            two_texts,
            ("heads", "heads&order=role", "threads", "matrix", "graph", "paths"),
        ),
        (run, ("heads", "threads&layer=2&query=1&lock=1", "training")),
    ):
        page = studio.file(collection, width=width)
        for view in views:
            page.evaluate("view => { location.hash = `#view=${view}`; }", view)
            page.locator(f".stage.{view.split('&')[0]}").wait_for()
            page.wait_for_timeout(200)
            assert page.evaluate(CUT) == [], view
            assert page.evaluate("document.documentElement.scrollWidth") <= width, view


def test_the_page_of_a_run_has_room_for_what_it_came_to(studio, pair_trace, history_of) -> None:
    """As the demonstration's: a long example, three facts of the run, and those of the text."""
    facts = {
        "exactly right": "97.8% of held-out dates",
        "training": "104 s, 600 steps",
        "model": "719,104 parameters",
    }
    names = ["de: Sonntag, 17. März 2024 → 2024-03-17", "another"]
    collection = collect(
        [pair_trace] * 2, names=names, history=history_of(pair_trace), summary=facts
    )
    page = studio.file(collection, width=1280)
    page.locator(".chooser .facts").wait_for()
    cut = "all => all.filter(e => e.scrollWidth > e.clientWidth).map(e => e.innerText)"
    assert page.locator(".chooser :is(.fact, .facts)").evaluate_all(cut) == []
    assert page.locator(".chooser select").bounding_box()["width"] > 250
    first, second = (part.bounding_box() for part in page.locator(".chooser kbd").all())
    assert first["y"] == second["y"]


def test_what_is_known_of_a_text_is_not_cut_where_there_are_many_views(
    studio, serving, minilm_trace, history_of
) -> None:
    """At 1280 pixels: two traces on a server, of which there are nine views, and a run."""
    traces = serving(collect([minilm_trace, minilm_trace]))
    run = serving(collect([minilm_trace], "a run", history=history_of(minilm_trace)))
    for viewer, views in (traces, 9), (run, 8):
        page = studio.served(viewer, "#view=threads&layer=1")
        page.locator(".short-threads").wait_for()
        assert page.locator("header nav a").count() == views
        facts = page.locator(".facts")
        assert " tokens · 6 layers × 12 heads · " in facts.inner_text()
        for part in (facts, page.locator("h1"), page.locator("header")):
            assert part.evaluate("of => of.scrollWidth <= of.clientWidth"), part


def test_scores_stand_under_the_tiles_at_1024_pixels(studio, minilm_page) -> None:
    page = studio.file(minilm_page, width=1024)
    page.locator(".stage .tile small").nth(71).wait_for()
    captions = page.locator(".stage .tile small").all_inner_texts()
    scores = [text for text in captions if "." in text or text.split()[-1:] == ["1"]]
    assert len(scores) > 40


@pytest.mark.parametrize("width", [360, 1280, *slow(390, 800)])
def test_a_share_that_has_no_room_under_a_tile_is_not_cut(studio, width) -> None:
    names = [f"t{place}" for place in range(300)]
    queries, keys = torch.randn(2, 10, 300, 8, generator=torch.Generator().manual_seed(1))
    _, graph = headloom.attend(queries, keys, keys, mask=headloom.causal(), keep=headloom.Top(2))
    layers = tuple(
        TraceLayer(
            name=f"{index}", kind="decoder", index=index, shape=(10, 300, 300),
            queries_from="tokens", keys_from="tokens", query_tokens=names, key_tokens=names,
            scale=8**-0.5, data=LayerInMemory(graph), mask="causal",
        )
        for index in range(2)
    )  # fmt: skip
    page = studio.file(collect([Trace({"tokens": names}, layers)]), width=width)
    page.locator(".sheet > canvas:not(.waiting)").wait_for()
    assert page.evaluate(CUT) == []
    assert "of the mass is not shown" in page.locator(".stage.heads .partial").first.inner_text()
    assert "not shown" in page.locator(".stage .tile").first.get_attribute("aria-label")


@pytest.mark.parametrize("order", ["layer", "role"])
def test_the_line_around_a_picture_is_whole(studio, minilm_page, order) -> None:
    page = studio.file(minilm_page, f"#order={order}&layer=2&head=4")
    page.locator(".sheet > canvas:not(.waiting)").wait_for()
    canvas = page.locator(".sheet > canvas").bounding_box()
    stage = page.locator(".stage.heads").bounding_box()
    for tile in page.locator(".stage .tile").all()[::11]:
        box = tile.bounding_box()
        assert canvas["x"] <= box["x"] - 1 and canvas["y"] <= box["y"] - 1
        assert box["x"] + box["width"] + 1 <= canvas["x"] + canvas["width"]
        # The frame of the head that is chosen too.
        assert stage["x"] <= box["x"] - 4
        assert box["x"] + box["width"] + 4 <= stage["x"] + stage["width"]


def test_a_page_that_is_on_its_way_says_so(studio, serving, pair_trace) -> None:
    viewer = serving(collect([pair_trace, pair_trace]))
    page = studio.open("about:blank", viewer.address)
    held = []
    page.route("**/studio.js", lambda route: held.append(route))
    page.goto(viewer.address, wait_until="commit")
    page.get_by_text("Opening the studio …").wait_for()
    page.route("**/api/open", lambda route: held.append(route))
    until(page, lambda: bool(held))
    held.pop().continue_()
    page.get_by_text("Reading the trace …").wait_for()
    assert page.get_by_text("Opening the studio …").count() == 0
    # Tabs that come with the traces, as Texts, would move the others.
    views = page.get_by_label("Views", exact=True)
    assert not views.is_visible()
    until(page, lambda: bool(held))
    held.pop().continue_()
    page.get_by_role("link", name="Texts").wait_for()


def test_the_slider_of_a_training_on_a_phone(studio, pair_trace, history_of) -> None:
    page = studio.file(
        collect([pair_trace], history=history_of(pair_trace)), "#view=training", width=360
    )
    slider = page.locator(".time input[type=range]")
    slider.wait_for()
    box = slider.bounding_box()
    assert box["width"] > 150
    page.mouse.click(box["x"] + box["width"] - 4, box["y"] + box["height"] / 2)
    page.locator("#now", has_text="step 500: trained").wait_for()
    assert page.locator("#now").bounding_box()["x"] >= 0


def test_strips_bars_and_shades_where_the_system_chooses_colours(studio, minilm_page) -> None:
    page = studio.file(minilm_page, "#view=heads&layer=4&head=3")
    page.emulate_media(forced_colors="active")
    page.locator(".stage .tile small").nth(71).wait_for()
    of_role = {strip_colour(page, number) for number in (0, 2, 20, 24)}
    assert len(of_role) >= 3  # broad, previous, next, first
    assert len(colours(page, ".panel .bar-row > .bar", 3)) > 2
    page.evaluate("location.hash = '#view=threads&layer=4&head=3&query=3&lock=1'")
    page.locator(".keys-column .word i").first.wait_for()
    ground = next(iter(colours(page, ".short-threads .ends > span:nth-child(2)")))
    assert colours(page, ".keys-column .word i") != {ground}
    assert colours(page, ".rail .tile .strip", 0) != colours(page, ".rail .tile .strip", 1)


def test_shades_of_flowing_text_where_the_system_chooses_colours(studio, make_trace) -> None:
    page = studio.file(collect([make_trace(["word"] * 80)]), "#view=threads&query=9&lock=1&share=1")
    page.emulate_media(forced_colors="active")
    page.locator("bdi.seen[data-place]").first.wait_for()
    grounds = page.locator("bdi.seen[data-place]").evaluate_all(
        "words => words.map((word) => getComputedStyle(word).backgroundColor)"
    )
    assert len(set(grounds)) > 5


@pytest.mark.parametrize(
    "view", ["heads", "paths", *slow("threads", "matrix", "graph", "training")]
)
def test_on_paper_nothing_is_cut(studio, pair_trace, history_of, view: str) -> None:
    page = studio.file(
        collect([pair_trace], history=history_of(pair_trace)), f"#view={view}&query=1&lock=1"
    )
    page.locator(f".stage.{view}").wait_for()
    page.emulate_media(media="print")
    hidden = """() => [...document.querySelectorAll(".studio, .studio main, .stage, .panel, .rail")]
        .filter((of) => of.scrollHeight > of.clientHeight + 1
            && getComputedStyle(of).overflowY !== "visible")
        .map((of) => of.className)"""
    assert page.evaluate(hidden) == []
    assert not page.locator(".panel .keys").is_visible()
    assert not page.locator(".studio > header button", has_text="Export").is_visible()
    # Charts take a moment to follow the paper's width.
    below = """() => document.querySelector(".panel").getBoundingClientRect().top
        >= document.querySelector(".stage").getBoundingClientRect().bottom - 0.5"""
    until(page, lambda: page.evaluate(below))
    assert page.pdf(print_background=False).count(b"/Type /Page\n") >= 1


def test_heads_beside_each_other_are_level(studio, minilm_page) -> None:
    page = studio.file(minilm_page, "#view=threads&layer=2")
    page.locator(".rail .tile").nth(5).wait_for()
    # As of heads whose exact picture is still on its way: their names have more lines.
    page.evaluate("document.querySelectorAll('.rail .tile small')[0].style.paddingTop = '30px'")
    tops = page.evaluate(
        "[...document.querySelectorAll('.rail .tile .picture')].map(one => "
        "one.getBoundingClientRect().top)"
    )
    assert tops[0] == tops[1] != tops[2] == tops[3]
