"""Tokens of a byte-level vocabulary, in a browser: what they say, not how they are spelled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tracing.test_names import byte_level

import headloom
from headloom.api.trace import Trace
from headloom.formats.tokens import shown
from headloom.studio.page import collect

TEXT = "the price of 東京\nis naïve 👩‍🚀 東"


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Of a small model of GPT-2's kind, as it is opened again."""
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=byte_level())
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer), n_embd=16, n_layer=1, n_head=2, n_positions=128
    )
    torch.manual_seed(0)
    path: Path = tmp_path_factory.mktemp("names") / "t.loom"
    headloom.trace(transformers.GPT2Model(config).eval(), TEXT, tokenizer=tokenizer, save=path)
    return headloom.open(path)


def test_every_view_shows_the_texts(studio: Any, trace: Trace) -> None:
    assert any("Ġ" in token for token in trace.tokens)
    words = [text for text in shown(trace.tokens) if text.startswith(" ") and text.isalpha()]
    for view in ("threads", "matrix", "heads"):
        page = studio.file(collect([trace]), f"#view={view}&query=8&lock=1")
        page.locator("main").first.wait_for()
        page.wait_for_timeout(300)
        content = page.locator("body").inner_text()
        assert not set("ĠĊæåÃ") & set(content)
        assert all(word.strip() in content for word in words)


def test_pieces_of_one_character(studio: Any, trace: Trace) -> None:
    """Each says of which character it is, and which of its parts."""
    page = studio.file(collect([trace]), "#view=threads&query=8&lock=1")
    page.locator("bdi").first.wait_for()
    words = page.locator(".keys-column bdi").all_inner_texts()
    assert [word for word in words if "🚀" in word] == ["🚀¹⁄₄", "🚀²⁄₄", "🚀³⁄₄", "🚀⁴⁄₄"]
    assert "⏎" in words


def test_a_long_text_is_read_on(studio: Any, tmp_path: Path) -> None:
    """A character stands once; the pieces that share it are small numbers after it."""
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=byte_level())
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer), n_embd=16, n_layer=1, n_head=2, n_positions=1024
    )
    model = transformers.GPT2Model(config).eval()
    page = studio.file(
        collect([headloom.trace(model, 12 * f"{TEXT}\n", tokenizer=tokenizer)]), "#view=threads"
    )
    page.locator(".chunk bdi").first.wait_for()
    words = page.locator(".chunk bdi").all_inner_texts()
    place = words.index("🚀")
    assert words[place : place + 4] == ["🚀", "₂", "₃", "₄"]
    assert "price" in words
    assert "naïve" in words
