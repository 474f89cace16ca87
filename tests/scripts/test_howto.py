"""The pages of docs/howto: their code is run as it is printed, each in a folder of its own."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from tests.cli.conftest import Command, headloom_main
from tests.tracing.without_torchvision import timm

__all__ = ["headloom_main"]

PAGES = sorted((Path(__file__).parents[2] / "docs" / "howto").glob("*.md"))
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
TEXT = "The dog did not see it."
#: What the extra of a page installs.
NEEDS = {
    "gguf": ("gguf", "accelerate", "matplotlib"), "notebooks": ("anywidget", "matplotlib"),
    "figures": ("matplotlib",), "timm": ("timm", "matplotlib"), "diffusers": ("diffusers",),
    "jax": ("jax",), "mlx": ("mlx.core",), "onnx_runtime": ("onnxruntime", "onnxscript"),
    "live_page": ("onnxruntime", "onnxscript"),
}  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small random language model that knows the pages' words, and small files."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    text = " ".join([TEXT, *(page.read_text("utf-8") for page in PAGES)])
    words = ["[UNK]", *dict.fromkeys(re.findall(r"\w+|[^\w\s]+", text))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path / "path" / "to" / "model"
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[UNK]"
    ).save_pretrained(folder)
    torch.manual_seed(5)
    config = transformers.GPT2Config(
        vocab_size=len(words), n_embd=8, n_layer=2, n_head=2, n_positions=1024,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    (tmp_path / "book.txt").write_text(f"{TEXT} " * 60)
    (tmp_path / "texts.txt").write_text(f"{TEXT}\nThe dog.\n")
    (tmp_path / "dump").mkdir()
    np.savez(tmp_path / "dump/3.npz", q=np.ones((2, 4, 8)), k=np.ones((2, 4, 8)))
    edges = {"layer": [0, 0], "head": [0, 0], "query": [0, 1], "key": [0, 0], "weight": [1, 0.5]}
    pandas.DataFrame(edges).to_parquet(tmp_path / "edges.parquet")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(
    page: Path, place: Path, headloom_main: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in NEEDS.get(page.stem, ()):
        timm() if package == "timm" else pytest.importorskip(package)
    if page.stem == "gguf":
        from tests.tracing.gguf_files import small_llama, write_llama

        write_llama(place / "model.gguf", small_llama(), "Q8_0")
    monkeypatch.setenv("MPLBACKEND", "Agg")
    # The studio waits for a person: it is asked whether it opens.
    served: list[Any] = []
    monkeypatch.setattr(
        "headloom.studio.serving.Viewer.run", lambda viewer: served.append(viewer.close())
    )
    names: dict[str, Any] = {}
    text = page.read_text("utf-8")
    blocks = BLOCK.findall(text.replace("smollm2", "path/to/model"))  # a stand-in
    assert blocks or page.stem in ("index", "vllm")  # whose server scripts/test-vllm runs
    assert len(text) <= 3000 and text.count("\n") <= 60, "a page is short"
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
    for picture in place.glob("*.pdf"):  # "the same bytes every time"
        assert b"/CreationDate" not in picture.read_bytes(), picture.name


def test_every_page_is_in_the_list_and_in_the_navigation() -> None:
    listed = (PAGES[0].parent / "index.md").read_text("utf-8")
    site = (PAGES[0].parents[2] / "mkdocs.yml").read_text("utf-8")
    for page in PAGES:
        assert f"howto/{page.name}" in site
        assert page.stem == "index" or f"({page.name})" in listed
