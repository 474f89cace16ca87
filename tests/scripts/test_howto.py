"""The pages of docs/howto: their code is run as it is printed, in one folder after the other."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cli.conftest import Command, headloom_main

__all__ = ["headloom_main"]

PAGES = sorted((Path(__file__).parents[2] / "docs" / "howto").glob("*.md"))
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
TEXT = "The dog did not see it."
#: What the extra of a page installs.
NEEDS = {
    "gguf": ("gguf", "accelerate"), "notebooks": ("anywidget", "pandas"),
    "figures": ("matplotlib",), "generation": (), "long_texts": (), "index": (),
}  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small model that writes, the same as a GGUF file, and a text."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["[UNK]", *dict.fromkeys(re.findall(r"\w+|[^\w\s]", TEXT))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path / "path" / "to" / "model"
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]"
    ).save_pretrained(folder)
    torch.manual_seed(5)
    config = transformers.GPT2Config(
        vocab_size=len(words), n_embd=8, n_layer=2, n_head=2, n_positions=1024,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    (tmp_path / "book.txt").write_text(f"{TEXT} " * 60)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(
    page: Path, place: Path, headloom_main: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in NEEDS[page.stem]:
        pytest.importorskip(package)
    if page.stem == "gguf":
        from tests.tracing.gguf_files import small_llama, write_llama

        write_llama(place / "model.gguf", small_llama(), "Q8_0")
    if page.stem == "figures":
        from matplotlib import pyplot

        pyplot.switch_backend("Agg")
    # The studio waits for a person: it is asked whether it opens.
    served: list[Any] = []
    monkeypatch.setattr(
        "headloom.studio.serving.Viewer.run", lambda viewer: served.append(viewer.close())
    )
    names: dict[str, Any] = {}
    blocks = BLOCK.findall(page.read_text("utf-8"))
    assert blocks or page.stem == "index"
    viewed = 0
    for language, code in blocks:
        if language == "python":
            exec(compile(code, str(page), "exec"), names)
            continue
        for line in code.splitlines():
            program, *words = shlex.split(line.removeprefix("$ "))
            assert program == "headloom", line
            viewed += words[0] == "view"
            done = headloom_main(*words)
            assert done.code == 0, f"{line}\n{done.err}"
            assert "is now" not in done.err, f"{line}: an old name"
    assert len(served) == viewed
    for picture in place.glob("*.pdf"):  # "The same trace gives the same bytes"
        assert b"/CreationDate" not in picture.read_bytes(), picture.name


def test_every_page_is_in_the_list_and_in_the_navigation() -> None:
    listed = (PAGES[0].parent / "index.md").read_text("utf-8")
    site = (PAGES[0].parents[2] / "mkdocs.yml").read_text("utf-8")
    for page in PAGES:
        assert f"howto/{page.name}" in site
        assert page.stem == "index" or f"({page.name})" in listed
