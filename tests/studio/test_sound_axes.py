"""A sound in the studio: axes and cells of its positions are in seconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.studio.printed import check_print, exported, texts
from tests.studio.windows import until

import headloom
from headloom.studio.page import collect
from headloom.studio.serving import Viewer

#: Notes what is written on canvases from now on: text, place, how it is aligned.
WRITTEN = """() => {
    window.written = [];
    const of = CanvasRenderingContext2D.prototype, before = of.fillText;
    of.fillText = function (text, x, y, ...rest) {
        written.push([text, x, y, this.textAlign]);
        return before.call(this, text, x, y, ...rest);
    };
}"""


def test_axes_and_cells_are_in_seconds(
    studio: Any, serving: Callable[..., Viewer], tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    from tests.tracing.test_sound import whisper

    # 600 frames of 10 ms make 300 positions of 20 ms.
    inputs = {
        "input_features": torch.randn(1, 80, 600),
        "decoder_input_ids": torch.tensor([[1, 5]]),
    }
    trace = headloom.trace(whisper(600), inputs, keep=headloom.Top(8))
    viewer = serving(collect([trace]))
    page = studio.served(viewer, "#view=matrix&layer=0&head=1&query=100&key=50&lock=1")
    page.locator('.stage.matrix[aria-busy="false"]').wait_for()
    page.locator(".cell-value", has_text="row 100, 2.00 s; column 50, 1.00 s").wait_for()
    page.locator(".panel", has_text="rows 0–299 (0.00 s to 5.98 s)").wait_for()
    page.evaluate(WRITTEN)
    page.keyboard.press("l")
    # Not by the page's own waiting, which its policy of content forbids.
    until(page, lambda: page.evaluate("written.length > 10"))
    written = page.evaluate("written")
    seconds = [f"{second} s" for second in range(6)]
    down = {text: y for text, _, y, align in written if align == "right" and text in seconds}
    across = {text: x for text, x, _, align in written if align == "center" and text in seconds}
    assert list(down) == list(across) == seconds
    # A second is 50 cells on both axes, and the ticks are as far apart.
    zoom = (across["5 s"] - across["0 s"]) / 250
    for places in (down, across):
        at = [places[text] - places["0 s"] for text in seconds]
        assert at == pytest.approx([50 * zoom * n for n in range(6)], abs=0.01)
    for width in (85, 175):
        path = exported(page, tmp_path, "svg", str(width))
        check_print(studio, path, width)
        said = set(texts(path))
        assert said >= {"2 s", "4 s"} or said >= {"2.0 s", "4.0 s"}
    # In a page too, and nowhere else: the target has tokens.
    page = studio.file(collect([trace]), "#view=matrix&layer=3&head=0&query=1&key=50&lock=1")
    page.locator(".cell-value", has_text="row 1; column 50, 1.00 s").wait_for()
