"""A page with a model inside: it reads, switches heads off, and guides through its attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.slow import slow
from tests.studio.test_looks import CUT, axe_findings

import headloom
from headloom.analysis.effects.ablation import ablate

TEXT = "de: 17. März 2024"
READ = """([text, change]) => headloom.read(text, change).then((read) => ({
    ...read, logits: [...read.logits], lse: [],
    weights: read.weights.map((heads) => heads.map((rows) => rows.map((row) => [...row]))),
}))"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A translator of dates that has learned a little."""
    config = {
        "task": {"kind": "dates", "train_examples": 400, "test_examples": 4},
        "model": {"width": 32, "heads": 2, "feed_forward": 32, "encoder_layers": 1,
                  "decoder_layers": 1, "dropout": 0.0, "positions": "learned", "max_length": 48},
        "training": {"max_steps": 40, "batch_tokens": 512, "warmup": 5, "validate_every": 40,
                     "checkpoint_every": 40},
    }  # fmt: skip
    return headloom.load(headloom.train(config, run=tmp_path_factory.mktemp("live") / "run").path)


@pytest.fixture(scope="module")
def html(run: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "page.html"
    headloom.export(run, html=path, live=True)
    return path.read_text("utf-8")


def type_text(page: Any, text: str = TEXT) -> None:
    page.locator("#headloom-ask").fill(text)
    page.locator(".stage:not([aria-busy=true])").wait_for()


def test_a_typed_text_has_the_weights_of_a_trace(studio: Any, run: Any, html: str) -> None:
    page = studio.file(html)
    read = page.evaluate(READ, [TEXT, {}])
    trace = run.trace(TEXT, target=read["output"], keep="all")
    assert [layer.name for layer in trace.layers] == read["layers"]
    assert read["tokens"] == {name: list(of) for name, of in trace.sequences.items()}
    for layer, weights in zip(trace.layers, read["weights"], strict=True):
        np.testing.assert_allclose(weights, layer.graph.to_dense(), atol=1e-4)
    # The guide is open, and shows what the model makes of a text that is typed.
    type_text(page)
    page.locator(".answer", has_text=read["output"]).wait_for()
    # Where the text is taken away, the last one stays.
    page.locator("#headloom-ask").fill("")
    page.wait_for_url(lambda url: "text=" not in url)
    assert page.locator(".answer").inner_text() == read["output"]
    assert page.locator("#headloom-ask").input_value() == ""


def test_a_head_that_is_off_is_ablated(studio: Any, run: Any, html: str) -> None:
    page = studio.file(html, "#view=model")
    type_text(page)
    whole = page.evaluate(READ, [TEXT, {}])
    switch = page.locator(".switches [role=group]").nth(2).locator("button").nth(1)
    assert switch.get_attribute("aria-pressed") == "true"
    switch.focus()
    page.keyboard.press("Enter")
    page.locator("section", has_text="Change of the prediction").last.wait_for()
    page.wait_for_url(lambda url: "off=2.1" in url)
    change = {"off": [[2, 1]], "target": whole["output"]}
    read = page.evaluate(READ, [TEXT, change])

    module, ids = run.module, list(run._ids(TEXT, whole["output"]).values())
    found: list[torch.Tensor] = []

    def measure() -> float:
        found.append(module(*ids)[0, -1])
        return 0.0

    ablate(module, measure, heads=[(2, 1)])
    np.testing.assert_allclose(read["logits"], found[-1].detach(), atol=1e-3)
    assert np.abs(np.subtract(read["logits"], whole["logits"])).max() > 1e-2
    # Every view shows the model without it, and one button brings it back.
    page.keyboard.press("h")
    page.get_by_role("button", name="Switch all on").click()
    page.locator(".model-line").wait_for(state="detached")
    page.wait_for_url(lambda url: "off=" not in url)


def test_it_writes_token_by_token(studio: Any, html: str) -> None:
    page = studio.file(html, "#view=model")
    type_text(page)
    written = page.get_by_role("group", name="Generated tokens").locator("button")
    page.locator(".generate input[type=range]").fill("1.5")
    page.get_by_role("button", name="Generate").click()
    page.get_by_role("button", name="Generate").wait_for()
    first = written.all_inner_texts()
    options = {"temperature": 1.5, "seed": 1, "tokens": 40}
    text = page.evaluate("([text, how]) => headloom.generate(text, how)", [TEXT, options])
    assert first and "".join(first).replace("␣", " ").replace("◌", "") == text
    written.first.click()
    assert written.first.get_attribute("aria-pressed") == "true"


def test_the_guide_from_start_to_end(studio: Any, html: str) -> None:
    page = studio.file(html)
    type_text(page)
    trained = page.locator(".answer").inner_text()
    for step in range(1, 3):
        page.keyboard.press("Tab")  # out of the box, whose arrows are its own
        page.get_by_role("button", name="Next").click()
        page.locator(f"nav [aria-current=step]:text-is('{step + 1}')").wait_for()
    slider = page.locator(".early input")
    answers = []
    for key in ("Home", "End"):
        slider.press(key)
        words = "step 0" if key == "Home" else "trained"
        page.locator(".early output", has_text=words).wait_for()
        page.wait_for_timeout(1500)
        answers.append(page.locator(".answer").inner_text())
    assert answers[0] != answers[1] == trained

    page.get_by_role("button", name="Next").click()
    page.get_by_role("button", name="Next").click()
    cells = page.locator(".ledger tbody tr").last.locator("td").all_inner_texts()
    assert cells[2] == "1.0000"  # the sum of the weights
    page.get_by_role("button", name="Next").click()
    page.locator(".value-row.sum").wait_for()
    page.get_by_role("button", name="Next").click()
    page.locator(".links button", has_text="Matrix").click()
    page.locator('.stage.matrix[aria-busy="false"]').wait_for()
    page.go_back()
    page.locator(".stage.guide h2", has_text="Your turn").wait_for()


@pytest.mark.parametrize("theme", ["light", *slow("dark")])
def test_every_step_on_a_phone(studio: Any, html: str, theme: str) -> None:
    page = studio.file(html, theme=theme, width=390, touch=True)
    type_text(page)
    for view in [*(f"guide&guide={step}" for step in range(7)), "model", "model&off=2.1"]:
        page.evaluate("view => { location.hash = `#view=${view}&text=de`; }", view)
        page.locator(f"main .stage.{view.split('&')[0]}:not([aria-busy=true])").wait_for()
        page.wait_for_timeout(500)
        assert axe_findings(page) == [], view
        assert page.evaluate(CUT) == [], view
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, view
