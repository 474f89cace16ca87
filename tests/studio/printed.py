"""Figures as a person gets them, and whether they can be printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

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


def words(path: Path) -> str:
    """All texts of a figure as one: where its lines end depends on the fonts that are here."""
    return " ".join(" ".join(texts(path)).split())


#: Texts of a figure that is open: size in points, place on the page.
PRINTED = """() => {
    const svg = document.documentElement;
    const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
    return [...svg.querySelectorAll("text")].map((text) => {
        const box = text.getBoundingClientRect();
        return [text.textContent, text.getAttribute("font-size") * scale * 0.75,
            box.left, box.top, box.right, box.bottom, text.hasAttribute("transform")];
    });
}"""


def crowded(printed: list[Any]) -> list[str]:
    """Texts that lie on each other; the heights of letters are half of those of their boxes."""
    found = []
    for place, (one, _, left, top, right, bottom, _) in enumerate(printed):
        for other, _, left2, top2, right2, bottom2, _ in printed[place + 1 :]:
            across = min(right, right2) - max(left, left2)
            down = min(bottom, bottom2) - max(top, top2)
            if across > 1 and down > 0.5 * min(bottom - top, bottom2 - top2):
                found.append(f"{one} on {other}")
    return found


def check_print(studio, path: Path, width: int) -> None:
    """As wide as was asked for, in millimetres; letters of 7 points or more, apart and inside."""
    root = ElementTree.parse(path).getroot()
    assert root.get("width") == f"{width}mm"
    high = float(root.get("height").removesuffix("mm"))
    box = [float(part) for part in root.get("viewBox").split()]
    assert high / width == pytest.approx(box[3] / box[2], rel=0.01)
    page = studio.open(path.as_uri(), "file:")
    printed = page.evaluate(PRINTED)
    assert len(printed) > 8
    assert min(size for _, size, *_ in printed) >= 7
    edge = width * 96 / 25.4 + 0.5
    outside = [
        text
        for text, _, left, top, right, bottom, _ in printed
        if left < 0 or right > edge or top < 0 or bottom > high * 96 / 25.4 + 0.5
    ]
    assert outside == []
    # Names that stand upright are closer than their boxes say.
    assert crowded([text for text in printed if not text[6]]) == []
