"""A real run, trained by the command line, as `headloom view` serves it to a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cli.conftest import MODEL, TASKS, ran

from headloom.formats.history import History
from headloom.studio.runs import open_collection


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    model = MODEL.replace("heads", "encoder_layers = 1\nheads")
    (folder / "dates.toml").write_text("[task]\n" + TASKS["dates"] + model)
    with pytest.MonkeyPatch.context() as patch:
        # As of a probe of more tokens than edges are kept for.
        patch.setattr("headloom.training.recording.PROBE_EDGES", 4)
        ran("train", folder / "dates.toml", "--run", folder / "dates")
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
    # The space bar opens what it is pressed on, and plays nothing.
    page.locator("summary", has_text="The probe in numbers").focus()
    page.keyboard.press("Space")
    page.locator("details[open]").wait_for()
    assert page.locator("#play").get_attribute("aria-pressed") == "false"

    page.goto(page.url.split("#")[0] + "#view=heads")
    page.locator(".stage .tile").first.wait_for()
    assert page.locator(".stage .tile").count() == 6  # two heads of each of three kinds
    page.keyboard.press("t")
    page.locator(".short-threads").wait_for()
    page.keyboard.press("m")
    page.locator('.stage.matrix[aria-busy="false"]').wait_for()


def test_the_training_says_what_its_pictures_leave_out(
    studio: Any, serving: Any, run: Path
) -> None:
    snapshot = next(iter(History(run / "history")))
    shares: list[float] = []
    for layer in snapshot.layers:
        seen = layer.graph.count > 0
        mass = layer.graph.to_dense().double().sum(-1)
        shares += (torch.where(seen, 1 - mass, 0).sum(-1) / seen.sum(-1)).tolist()
    assert max(shares) > 0.5
    words = [f"{100 * share:.{0 if share >= 0.1 else 1}f}\u00a0% not shown" for share in shares]
    page = studio.served(serving(open_collection(run)), "#view=training&step=0")
    tiles = page.locator(".kinds .tile")
    tiles.first.wait_for()
    names = [layer.name for layer in snapshot.layers]
    for number in range(tiles.count()):
        label = tiles.nth(number).get_attribute("aria-label")
        assert label.endswith(f"; {words[number]}") == (shares[number] > 0.005), names
    missing = [word.removesuffix(" not shown") for word in words]
    largest = missing[shares.index(max(shares))]
    assert f" to {largest} of the mass is not shown." in page.locator(".stage").inner_text()
    assert f"kept edges only: {words[0]}" in page.locator(".panel").inner_text()
    page.keyboard.press("p")
    page.locator("[role=radio][aria-checked=true]", has_text="W_Q").wait_for()
    assert "not shown" not in page.locator(".stage").inner_text()
    # Halfway to an end of the colours is a quarter of the largest entry: roots.
    scale = (
        "entries of W_Q W_Kᵀ in L0 (encoder 0), square-root scale; "
        "0.1 % of entries are beyond its ends"
    )
    assert page.locator(".ramp figcaption").inner_text() == scale
    ticks = page.locator(".ramp svg text")
    texts = [text.replace("−", "-") for text in ticks.all_text_contents()]
    assert (texts[0][:2], texts[-1][:2]) == ("≤ ", "≥ ")
    texts = [text.lstrip("≤≥ ") for text in texts]
    largest = float(texts[-1])
    expected = [-largest, -largest / 4, 0, largest / 4, largest]
    assert largest > 0 and [float(text) for text in texts] == pytest.approx(expected, rel=6e-3)
    places = [float(ticks.nth(n).get_attribute("x")) for n in range(5)]
    assert places == pytest.approx([0, 82.5, 165, 247.5, 330])
