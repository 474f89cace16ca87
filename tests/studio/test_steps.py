"""A walk through attention in a browser: words that are no markup, light, dark, no network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import headloom


def test_hostile_words_stay_words(studio: Any, tmp_path: Path, hostile_tokens: list[str]) -> None:
    walk = headloom.steps(hostile_tokens, kind="decoder", positions="none")
    path = tmp_path / "walk.html"
    walk.page(path)
    page = studio.open(path.as_uri(), "file:", offline=True)
    names = page.locator("table").first.locator("th[scope=row]").all_inner_texts()
    assert len(names) == len(hostile_tokens)
    assert names[0] == "<script>a…"
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 0
    cells = page.locator("td.hidden").all_inner_texts()
    length = len(hostile_tokens)
    assert len(cells) == 2 * length * (length - 1) // 2 and set(cells) == {"−∞"}


def test_a_page_fits_its_window_and_follows_its_theme(studio: Any, tmp_path: Path) -> None:
    path = tmp_path / "walk.html"
    headloom.steps(kind="cross").page(path)
    grounds = []
    for theme in ("light", "dark"):
        page = studio.open(path.as_uri(), "file:", theme=theme, width=420)
        grounds.append(
            page.evaluate(
                "getComputedStyle(document.querySelector('.headloom-steps')).backgroundColor"
            )
        )
        inside = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        assert page.evaluate(inside), theme
    assert grounds == ["rgb(255, 255, 255)", "rgb(16, 19, 23)"]
