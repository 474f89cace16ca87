"""A page with a model inside, opened from a disk without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.studio.conftest import Studio

import headloom
from headloom.api.page_model import page_pieces
from headloom.studio import page as pages
from headloom.studio.page import collect, export_live_page

TEXT = "the cat sat, naïvely"
#: Weights of a reading as lists.
READ = """async ([text, change]) => {
    const { weights, logits, tokens } = await headloom.read(text, change);
    const lists = weights.map((layer) => layer.map((head) => head.map((row) => [...row])));
    return { weights: lists, logits: [...logits], tokens };
}"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A small GPT-2 of random weights, whose tokens are bytes."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = pre_tokenizers.ByteLevel.alphabet()
    words = {"<|endoftext|>": 0} | {letter: n + 1 for n, letter in enumerate(sorted(letters))}
    tokenizer = Tokenizer(models.BPE(words, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    torch.manual_seed(1)
    config = transformers.GPT2Config(
        vocab_size=len(words), n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=0,
        eos_token_id=0, initializer_range=0.2,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("model")
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|endoftext|>"
    ).save_pretrained(folder)
    return headloom.load(folder)


@pytest.fixture(scope="module")
def pieces(model: Any) -> tuple[Any, dict[str, list[object]]]:
    trace = model.trace("the dog", keep="all", verify=False)
    return trace, page_pieces(model, [("the dog", trace)])


@pytest.fixture(params=["file", "folder"])
def page(
    request: pytest.FixtureRequest, studio: Studio, pieces: Any, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Any:  # fmt: skip
    """The page in a browser, as one file and as a folder of several parts."""
    if request.param == "folder":
        monkeypatch.setattr(pages, "_FOLDER", 1)
        monkeypatch.setattr(pages, "_PART", 100_000)
    trace, parts = pieces
    path = export_live_page(tmp_path / "page.html", collect([trace]), parts)
    if request.param == "folder":
        assert len(list((path / "parts").iterdir())) > 1
        path /= "index.html"
    return studio.open(path.as_uri(), "file:", offline=True)


def test_a_typed_text_as_in_python(page: Any, model: Any) -> None:
    expected = model.trace(TEXT, keep="all", verify=False)
    found = page.evaluate(READ, [TEXT, {}])
    assert found["tokens"]["tokens"] == list(expected.tokens.texts)
    for layer, weights in zip(expected.layers, found["weights"], strict=True):
        np.testing.assert_allclose(weights, layer.graph.to_dense(), atol=1e-5)

    # A longer text goes on from the keys and values of the first.
    longer = page.evaluate(READ, [f"{TEXT} on", {}])
    again = model.trace(f"{TEXT} on", keep="all", verify=False)
    np.testing.assert_allclose(longer["weights"][1], again.layers[1].graph.to_dense(), atol=1e-5)

    # Without a head the page computes what the model does.
    off = page.evaluate(READ, [TEXT, {"off": [[0, 2]]}])
    np.testing.assert_allclose(off["weights"][0], found["weights"][0], atol=1e-6)
    assert np.abs(np.array(off["weights"][1]) - found["weights"][1]).max() > 1e-3
    assert np.abs(np.array(off["logits"]) - found["logits"]).max() > 1e-3


def test_the_views_of_a_typed_text(page: Any, studio: Studio) -> None:
    page.fill("#headloom-ask", TEXT)
    page.get_by_text("21 tokens").first.wait_for()
    for key, shown in (("h", "[data-drawn='8']"), ("m", "canvas"), ("n", ".six .number")):
        page.evaluate("document.activeElement.blur()")
        page.keyboard.press(key)
        page.locator(shown).first.wait_for()

    # The page may ask nobody.
    sent = page.evaluate("fetch('https://example.org').then(() => 'sent', () => 'refused')")
    assert sent == "refused"
    assert all("Content Security Policy" in problem for problem in studio.problems)
    studio.problems.clear()
