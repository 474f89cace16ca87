"""The view Paths by relevance: what is on screen against `relevance`, and who can have it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.analysis.effects.test_relevance import positive
from tests.saved_models import save_writer
from tests.studio.test_graph import cells_of
from tests.studio.test_paths import PAINTED, three_digits

from headloom.api import relevance as job
from headloom.api.asking import open_studio
from headloom.api.opening import open_model
from headloom.errors import InputError
from headloom.studio.serving import Viewer

Serving = Callable[..., Viewer]
WORDS = list("abcadab")
#: As lists have them: with its position a word that stands several times.
NAMES = [f"{word} ({n})" if WORDS.count(word) > 1 else word for n, word in enumerate(WORDS)]
TEXT = " ".join(WORDS)
CHOICE = "What is followed"


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 of large random weights over letters."""
    folder = tmp_path_factory.mktemp("models") / "letters"
    return save_writer(folder, width=24, layers=3, heads=4, positions=32, noise=0.1)


def by_hand(folder: Path, output: int) -> tuple[int, list[float]]:
    """The likeliest token after one of the text, and the relevance of each: by the library's own
    dense weights and their gradients.
    """
    transformers = pytest.importorskip("transformers")
    model = transformers.GPT2LMHeadModel.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(TEXT, return_tensors="pt")["input_ids"]
    found = model(input_ids=ids, output_attentions=True)
    logits = found.logits[0, output]
    held = torch.eye(ids.shape[1])
    for weights in found.attentions:
        held = held + positive(weights, logits.max()) @ held
    return int(logits.argmax()), held[output].tolist()


def shown(page: Any) -> list[list[str]]:
    page.locator(".predicted").wait_for()
    rows = page.locator(".panel tbody tr").all_inner_texts()
    return [cells_of(row) for row in rows]


def test_the_panel_says_what_relevance_says(studio: Any, serving: Serving, writer: Path) -> None:
    viewer = serving(open_studio(writer, TEXT))
    page = studio.served(viewer, "#view=paths")
    page.locator(".relevance", has_text="choose “relevance” above").wait_for()
    page.get_by_label(CHOICE).select_option("relevance")
    for output in (6, 4):
        page.locator(".outputs .end").nth(output).click()
        predicted, values = by_hand(writer, output)
        page.locator(".predicted", has_text=f"after “{NAMES[output]}”").wait_for()
        order = sorted(range(7), key=lambda place: -values[place])
        expected = [
            [NAMES[place], three_digits(values[place])] for place in order if values[place] > 0
        ]
        assert shown(page) == expected
        name = open_model(str(writer), predicting=True).tokenizer.convert_ids_to_tokens(predicted)
        assert f"“{name}”" in page.locator(".panel h2").first.inner_text()
        assert page.evaluate(PAINTED) > 200
    assert "flow=relevance" in page.url
    page.get_by_label(CHOICE).select_option("")
    page.locator(".panel th", has_text="rollout").wait_for()


def test_a_long_text_is_refused_before_anything_runs(
    writer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = open_studio(writer, TEXT).asking
    assert reader is not None and reader.relevance is not None
    monkeypatch.setattr(job, "_LONGEST", 6)
    with pytest.raises(InputError, match=r"7 tokens are too many.*6 at most.*headloom relevance"):
        reader.relevance(TEXT, 3)
    monkeypatch.setattr(job, "_LONGEST", 7)
    assert reader.relevance(TEXT, 3).levels.shape[1] == 7
