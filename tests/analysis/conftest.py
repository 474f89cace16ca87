"""A real encoder, one sentence that it reads, and the dense weights that its library gives."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import headloom
from headloom.api.trace import Trace
from headloom.mechanism.graph import AttentionGraph
from headloom.mechanism.matrix.attention_matrix import AttentionMatrix

TEXT = "the quick brown fox jumps over the lazy dog because the dog did not see it ."


@pytest.fixture(scope="session")
def minilm(minilm_folder: Path) -> tuple[Any, Any]:
    """The model and its tokenizer."""
    from headloom.tracing.pretrained import load_pretrained

    return load_pretrained(minilm_folder)


@pytest.fixture(scope="session")
def minilm_trace(minilm: tuple[Any, Any]) -> Trace:
    """All edges of the sentence."""
    return headloom.trace(minilm[0], TEXT, tokenizer=minilm[1], keep=headloom.All())


@pytest.fixture(scope="session")
def minilm_top(minilm: tuple[Any, Any]) -> Trace:
    """The four strongest edges of every query of the sentence."""
    return headloom.trace(minilm[0], TEXT, tokenizer=minilm[1], keep=headloom.Top(4))


@pytest.fixture(scope="session")
def minilm_weights(minilm_folder: Path, minilm: tuple[Any, Any]) -> list[Tensor]:
    """(heads, queries, keys) of each layer, from eager attention: headloom has no part in it."""
    import transformers

    eager = transformers.AutoModel.from_pretrained(minilm_folder, attn_implementation="eager")
    with torch.no_grad():
        given = eager.eval()(**minilm[1](TEXT, return_tensors="pt"), output_attentions=True)
    return [weights[0] for weights in given.attentions]


@dataclass(frozen=True, eq=False)
class Case:
    """A layer three times: as an operator, as kept edges, and dense in float64."""

    matrix: AttentionMatrix
    graph: AttentionGraph
    dense: Tensor


@pytest.fixture(params=["plain", "causal", "window", "sinks", "sharp"])
def case(request: pytest.FixtureRequest) -> Case:
    """Random layers of 3 heads and 60 positions, of which the 8 strongest edges are kept."""
    generator = torch.Generator().manual_seed(17)
    queries, keys = torch.randn(2, 3, 60, 8, generator=generator)
    if request.param == "sharp":
        queries = 4 * queries
    mask = {"causal": headloom.causal(), "window": headloom.window(6, 2)}.get(request.param)
    sinks = torch.tensor([0.5, 2.0, -1.0]) if request.param == "sinks" else None
    options: dict[str, Any] = {"mask": mask, "sinks": sinks}
    _, graph = headloom.attend(queries, keys, keys, keep=headloom.Top(8), **options)
    doubled = {**options, "sinks": None if sinks is None else sinks.double()}
    _, dense = headloom.attend(
        queries.double(), keys.double(), keys.double(), keep=headloom.All(), **doubled
    )
    return Case(AttentionMatrix(queries, keys, **options), graph, dense)
