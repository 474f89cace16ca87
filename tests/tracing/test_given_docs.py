"""The Python of docs/arrays.md runs as it stands, and its traces are what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import headloom

DOCS = Path(__file__).parents[2] / "docs" / "arrays.md"


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    exec(compile(blocks[0], str(DOCS), "exec"), names)
    trace = headloom.open("mine.loom")
    assert [layer.kind for layer in trace.layers] == ["decoder"] * 6
    assert trace.layers[0].shape == (12, 9, 9)
    assert trace.model["given"] == "queries and keys"
    exec(compile(blocks[1], str(DOCS), "exec"), names)
    given = names["attentions"]
    for layer, weights in zip(names["trace"].layers, given, strict=True):
        assert torch.equal(layer.graph.dense(), weights[0])
    assert names["trace"].tokens[0] == "[CLS]"
    exec(compile("import headloom\n" + blocks[2], str(DOCS), "exec"), names)
    assert names["trace"].layers[0].graph.dense()[0].tolist() == [[1, 0], [0.25, 0.75]]
