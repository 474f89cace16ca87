"""A training that `headloom.monitor` watches, as `headloom view` serves it to a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import headloom
from headloom.api.view import open_studio
from headloom.errors import DataError
from headloom.formats.run import Reports
from headloom.studio.runs import open_collection

transformers = pytest.importorskip("transformers", reason="needs Transformers")


def watch(folder: Path, **options: Any) -> None:
    """Five steps of a GPT-2 of random weights, of which the last makes scores explode."""
    torch.manual_seed(1)
    config = transformers.GPT2Config(
        vocab_size=20, n_positions=16, n_embd=12, n_layer=2, n_head=3, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    probe = {"input_ids": torch.arange(8)[None]}
    with headloom.monitor(model, folder, probe=probe, every=1, **options) as monitor:
        for step in range(1, 6):
            with torch.no_grad():
                attention = model.transformer.h[1].attn.c_attn.weight
                attention[:, :24] *= 1.2 if step < 5 else 400
            if step < 5:
                monitor.step(2.0 - step / 4)
            else:
                with pytest.warns(UserWarning) as told:
                    monitor.step(9.0)
                assert "scores explode" in str(told[-1].message)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watched") / "run"
    watch(folder)
    return folder


def test_every_view_of_a_watched_training(studio: Any, serving: Any, watched: Path) -> None:
    page = studio.served(serving(open_studio(watched)), "#view=training&layer=1&head=2")
    page.locator("#curve").wait_for()
    assert page.locator("#now").inner_text() == "step 0: before training"
    panel = page.locator(".panel")
    assert "when monitoring began" in panel.inner_text()
    assert "GPT2LMHeadModel" in panel.inner_text()
    alarms = page.locator(".alarms li").all_inner_texts()
    assert any(text.startswith("step 5: transformer.h.1.attn: scores expl") for text in alarms)

    reports = Reports(watched / "measures.jsonl", "measures").read()
    for step, keys in ((0, "Home"), (5, "End")):
        page.keyboard.press(keys)
        measures = reports[step]["layers"]["transformer.h.1.attn"]
        texts = page.locator(".sparks .number").all_inner_texts()[:3]
        numbers = [float(text.replace("−", "-").replace(",", "")) for text in texts]
        expected = [measures[name][2] for name in ("entropy", "largest_score", "first_token")]
        assert numbers == pytest.approx(expected, rel=1e-2)
    assert page.locator("#now").inner_text() == "step 5: trained"
    said = [
        text.splitlines() for text in page.locator(".sparks > span:not(.number)").all_inner_texts()
    ]
    assert [name for name, *_ in said] == [
        "entropy (nats)", "largest score", "on the first token", "|W_Q W_Kᵀ|", "effective rank",
        "symmetry",
    ]  # fmt: skip
    # Names stand below each other, so do curves and the steps below them.
    for selector, count in (("> span:not(.number)", 6), ("svg", 6), (".along", 2)):
        places = [one.bounding_box() for one in page.locator(f".sparks {selector}").all()]
        assert len(places) == count
        assert len({round(place["x"]) for place in places}) == 1
        assert places == sorted(places, key=lambda place: place["y"])
    along, curves = (page.locator(f".sparks {of}").first.bounding_box() for of in (".along", "svg"))
    assert along["width"] == pytest.approx(curves["width"], abs=1)
    assert page.locator(".along span").all_inner_texts() == ["step 0", "5"] * 2
    page.goto(page.url.split("#")[0] + "#view=heads")
    page.locator(".stage .tile").first.wait_for()
    assert page.locator(".stage .tile").count() == 6
    assert page.locator(".ask").count() == 0  # no model is open that would read a text


def test_measures_that_are_damaged(tmp_path: Path) -> None:
    watch(tmp_path / "run")
    file = tmp_path / "run" / "measures.jsonl"
    file.write_text('{"step": 0, "layers": {}}\n' + file.read_text())
    with pytest.raises(DataError, match=r"measures\.jsonl: these measures are damaged"):
        open_collection(tmp_path / "run")
