"""A real run, trained by the command line, as `weft view` serves it to a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import weft.cli
from weft.studio.runs import open_collection

RUN = """
[task]
kind = "dates"
train_examples = 200
test_examples = 4

[model]
width = 16
heads = 2
feed_forward = 16
encoder_layers = 1
decoder_layers = 1

[training]
max_steps = 3
batch_tokens = 256
warmup = 2
validate_every = 2
checkpoint_every = 2
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    (folder / "dates.toml").write_text(RUN)
    try:
        weft.cli.main(["train", str(folder / "dates.toml"), "--run", str(folder / "dates")])
    except SystemExit as stop:
        assert not stop.code
    return folder / "dates"


def test_every_view_of_a_run(studio: Any, serving: Any, run: Path) -> None:
    """The probe's heads, threads and matrix, and its training from random matrices on."""
    page = studio.served(serving(open_collection(run)), "#view=training")
    page.locator("#curve").wait_for()
    assert page.locator("#now").inner_text() == "step 0: random matrices"
    at_random = page.locator(".stage").first.screenshot()
    page.keyboard.press("End")
    assert page.locator("#now").inner_text() == "step 3: trained"
    assert page.locator(".stage").first.screenshot() != at_random

    page.goto(page.url.split("#")[0] + "#view=heads")
    page.locator(".stage .tile").first.wait_for()
    assert page.locator(".stage .tile").count() == 6  # two heads of each of three kinds
    page.keyboard.press("t")
    page.locator(".loom").wait_for()
    page.keyboard.press("m")
    page.locator('.stage.matrix[aria-busy="false"]').wait_for()
