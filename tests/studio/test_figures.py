"""Figures that people publish: what the export of each view holds."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from weft.studio.page import collect

SVG = "{http://www.w3.org/2000/svg}"


def exported(page: Any, folder: Path, kind: str, width: str = "175", theme: str = "light") -> Path:
    """The file that a person gets who presses e, chooses and saves."""
    page.keyboard.press("e")
    page.locator(f".export input[value={kind}]").check()
    page.locator(f'.export input[value="{width}"]').check()
    page.locator(f".export input[value={theme}]").check()
    with page.expect_download() as waiting:
        page.locator(".export .primary").click()
    page.locator(".export .primary").wait_for(state="hidden")  # keys belong to the page again
    path = folder / waiting.value.suggested_filename
    waiting.value.save_as(path)
    return path


def texts(path: Path) -> list[str]:
    return [element.text or "" for element in ElementTree.parse(path).iter(f"{SVG}text")]


@pytest.fixture
def page(studio, pair_trace, history_of):
    collection = collect([pair_trace], "a pair", history=history_of(pair_trace))
    page = studio.file(collection)
    page.locator(".stage .tile").first.wait_for()
    return page


def test_every_view_as_svg_with_text_as_text(page, pair_trace, tmp_path) -> None:
    path = exported(page, tmp_path, "svg", "85")
    root = ElementTree.parse(path).getroot()
    assert root.get("width") == "85mm"
    assert float(root.get("height").removesuffix("mm")) > 10
    assert len(list(root.iter(f"{SVG}image"))) == 12
    found = texts(path)
    assert {"Every head", "L0", "H3"} <= set(found)
    assert any(text.startswith("a pair ·") and "weft" in text for text in found)

    page.keyboard.press("t")
    page.locator(".loom").wait_for()
    page.locator(".queries .word").nth(1).click()
    path = exported(page, tmp_path, "svg")
    found = texts(path)
    assert [text for text in found if text in pair_trace.layers[0].query_tokens]
    assert len(list(ElementTree.parse(path).iter(f"{SVG}path"))) > 10
    assert "queries: who looks" in " ".join(found)

    page.keyboard.press("m")
    page.locator(".stage.matrix canvas").wait_for()
    page.wait_for_timeout(200)
    path = exported(page, tmp_path, "svg")
    assert len(list(ElementTree.parse(path).iter(f"{SVG}image"))) == 1
    assert {"queries ↓", "keys →"} <= set(texts(path))

    page.keyboard.press("r")
    page.locator("#curve").wait_for()
    path = exported(page, tmp_path, "svg")
    assert any("step 0: random matrices" in text for text in texts(path))


def test_png_has_twice_the_pixels_and_the_theme(page, tmp_path) -> None:
    sizes = {}
    for theme in ("light", "dark"):
        content = exported(page, tmp_path, "png", "screen", theme).read_bytes()
        assert content[:8] == b"\x89PNG\r\n\x1a\n"
        sizes[theme] = struct.unpack(">II", content[16:24])
    svg = ElementTree.parse(exported(page, tmp_path, "svg", "screen")).getroot()
    assert sizes["light"] == sizes["dark"]
    assert sizes["light"] == pytest.approx(
        [2 * float(svg.get("width")), 2 * float(svg.get("height"))], abs=1.5
    )


def test_hostile_tokens_in_a_figure(studio, make_trace, hostile_tokens, tmp_path) -> None:
    page = studio.file(collect([make_trace(hostile_tokens)]), "#view=threads&query=0&lock=1")
    page.locator(".loom").wait_for()
    path = exported(page, tmp_path, "svg")
    root = ElementTree.parse(path).getroot()  # well-formed, whatever the tokens are
    assert not list(root.iter(f"{SVG}script"))
    assert "<script>alert(1)</script>"[:23] in " ".join(texts(path))
    assert not any(name.startswith("on") for element in root.iter() for name in element.attrib)


def test_a_key_pressed_while_the_dialog_closes_is_not_lost(page) -> None:
    page.keyboard.press("e")
    press = """() => {
        const button = document.querySelector(".export .primary");
        button.focus();
        if (%s) button.closest("dialog").close();
        button.dispatchEvent(new KeyboardEvent("keydown", { key: "t", bubbles: true }));
    }"""
    page.evaluate(press % "false")
    assert not page.locator(".loom").count()
    page.evaluate(press % "true")
    page.locator(".loom").wait_for()
