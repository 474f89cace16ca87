"""Figures of views as a person gets them: what is on the screen, its text as text."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import Image

from headloom.studio.page import collect

SVG = "{http://www.w3.org/2000/svg}"
#: A view, and words that its figure has.
VIEWS = {
    "heads": ["All heads", "H0", "L0"],
    "threads&layer=1&query=2&lock=1": ["L1 (decoder 0) H0", "queries: tokens that look"],
    "matrix&layer=2&head=1": ["L2 (cross 0) H1", "keys →", "weight, square-root scale"],
    "graph": ["L0 (encoder 0) H0"],
    "paths": ["input", "L2"],
    "training&step=1": ["The probe's attention, step 500: trained", "H0"],
}


def exported(page: Any, folder: Path, **choices: str) -> Path:
    """The file that a person gets who presses e, chooses and saves."""
    page.keyboard.press("e")
    for value in choices.values():
        page.locator(f'.export input[value="{value}"]').check()
    with page.expect_download() as waiting:
        page.locator(".export .primary").click()
    page.locator(".export .primary").wait_for(state="hidden")  # keys belong to the page again
    path = folder / waiting.value.suggested_filename
    waiting.value.save_as(path)
    return path


def test_every_view(
    studio: Any, pair_trace: Any, history_of: Any, hostile_tokens: list[str], tmp_path: Path
) -> None:
    made = collect([pair_trace], "pair", history=history_of(pair_trace))
    page = studio.file(made)
    names = set()
    for view, words in VIEWS.items():
        page.evaluate("view => { location.hash = `#view=${view}`; }", view)
        page.locator(f"main:not([aria-busy]) .stage.{view.split('&')[0]}").wait_for()
        page.wait_for_timeout(200)
        width = "85" if view == "heads" else "175"
        path = exported(page, tmp_path, width=width, theme="dark" if view == "paths" else "light")
        names.add(path.name)
        root = ElementTree.parse(path).getroot()
        assert root.get("width") == f"{width}mm"
        texts = [element.text or "" for element in root.iter(f"{SVG}text")]
        assert set(words) <= set(texts), view
        assert any("headloom" in text for text in texts[-2:])
        # 7 points of a figure of so many millimetres.
        scale = int(width) / 25.4 * 72 / float(root.get("viewBox", "").split()[2])
        sizes = [
            float(element.get("font-size", "99").removesuffix("px"))
            for element in root.iter(f"{SVG}text")
        ]
        assert min(sizes) * scale > 6.5, view
    assert len(names) == len(VIEWS)
    # The page is as it was.
    assert page.locator(".as-figure").count() == 0


def test_a_picture_of_dots_says_how_many_an_inch(
    studio: Any, pair_trace: Any, tmp_path: Path
) -> None:
    page = studio.file(collect([pair_trace], "pair"), "#view=matrix")
    page.locator('.stage.matrix[aria-busy="false"]').wait_for()
    path = exported(page, tmp_path, kind="png", width="85")
    with Image.open(io.BytesIO(path.read_bytes())) as image:
        assert image.info["dpi"][0] == pytest.approx(300, abs=1)
        assert image.width == pytest.approx(85 / 25.4 * 300, abs=4)


def test_hostile_tokens(
    studio: Any, make_trace: Any, hostile_tokens: list[str], tmp_path: Path
) -> None:
    page = studio.file(collect([make_trace(hostile_tokens)]), "#view=threads")
    page.locator(".short-threads .word").first.wait_for()
    root = ElementTree.parse(exported(page, tmp_path)).getroot()
    assert not list(root.iter("script")) and not list(root.iter(f"{SVG}script"))
    assert any("<script>" in (element.text or "") for element in root.iter(f"{SVG}text"))
