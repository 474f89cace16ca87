"""A layer that differs from the model's own attention is an error, wherever in the text it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.tracing.conftest import Family

import headloom
from headloom.tracing.recording import session as recorder

#: Tokens that the model reads twice, and how many there are.
PREFIX, LONG = 16, 40


@pytest.fixture
def model(family_named: Callable[[str], Family]) -> torch.nn.Module:
    """A small decoder on its fused attention, which returns no weights to compare with."""
    return family_named("GPT-2").build("sdpa")


def sabotaged(monkeypatch: pytest.MonkeyPatch, wrong: Callable[..., Any]) -> None:
    right = recorder.attend
    monkeypatch.setattr(recorder, "attend", lambda *args, **kwargs: wrong(right, *args, **kwargs))


def without_mask(right: Callable[..., Any], queries: torch.Tensor, *args: Any, **named: Any) -> Any:
    if queries.shape[2] > PREFIX:
        named["mask"] = None
    return right(queries, *args, **named)


def heads_exchanged(right: Callable[..., Any], *args: Any, **named: Any) -> Any:
    output, graph = right(*args, **named)
    return output, replace(graph, weights=graph.weights.flip(1))


def keys_moved(right: Callable[..., Any], *args: Any, **named: Any) -> Any:
    output, graph = right(*args, **named)
    return output, replace(graph, keys=torch.where(graph.keys > 0, graph.keys - 1, graph.keys))


@pytest.mark.parametrize("wrong", [without_mask, heads_exchanged, keys_moved])
def test_what_only_the_rows_show_is_an_error(
    model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch, wrong: Callable[..., Any]
) -> None:
    ids = torch.randint(3, 50, (1, LONG))
    headloom.trace(model, ids, verify=PREFIX)
    sabotaged(monkeypatch, wrong)
    with pytest.raises(headloom.VerificationError, match=r"of layer .* from what the model's own"):
        headloom.trace(model, ids, verify=PREFIX)
    trace = headloom.trace(model, ids, verify=False)
    assert isinstance(trace, headloom.Trace)
    assert trace.deviation is not None
    assert trace.deviation > 1e-3


@pytest.mark.filterwarnings("ignore:trace")
@pytest.mark.parametrize("verify", [None, False])
def test_a_layer_whose_scores_are_all_nan_has_no_deviation(verify) -> None:
    class Broken(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.MultiheadAttention(8, 2, batch_first=True)
            self.second = torch.nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x, x, x, need_weights=False)[0] * torch.nan
            return self.second(x, x, x, need_weights=False)[0]

    first, second = headloom.trace(Broken().eval(), torch.randn(1, 4, 8), verify=verify).layers
    assert first.deviation is not None and first.deviation < 1e-5
    assert second.deviation is None
