"""Relevance at each level: against gradients of dense weights, and against `relevance` itself."""

from __future__ import annotations

import pytest
import torch
from tests.analysis.effects.test_relevance import CASES, IDS, build, positive

from headloom.analysis.effects.relevance import relevance
from headloom.analysis.effects.relevance_levels import relevance_levels

pytest.importorskip("transformers")


@pytest.mark.parametrize("case", ["decoder", "grouped", "classifier"])
def test_levels_and_edges(case: str) -> None:
    model = build(*CASES[case])
    output = model(input_ids=IDS, output_attentions=True)
    classifies = output.logits.ndim == 2
    score = output.logits[0, 1] if classifies else output.logits[0, 4, 11]
    target, row = (1, 0) if classifies else (11, 4)
    found = relevance_levels(model, {"input_ids": IDS}, target, position=4)
    weighed = [positive(weights, score).double() for weights in output.attentions]
    held = torch.eye(7, dtype=torch.float64)[row]
    expected = [held]
    for A in reversed(weighed):
        held = held @ (torch.eye(7) + A)
        expected.insert(0, held)
    assert torch.allclose(found.levels.double(), torch.stack(expected), rtol=1e-4, atol=1e-6)
    for number, added in enumerate(found.added()):
        by_hand = expected[number + 1][:, None] * weighed[number]
        assert torch.allclose(added.double(), by_hand, rtol=1e-4, atol=1e-6)
        grown = expected[number] - expected[number + 1]
        assert torch.allclose(added.double().sum(0), grown, rtol=1e-4, atol=1e-6)
    whole = relevance(model, {"input_ids": IDS}, target, position=4)[0]
    assert torch.allclose(found.levels[0], whole, rtol=1e-5, atol=1e-7)
    assert float(found.levels[0].sum()) > 1.001


@pytest.mark.parametrize("share", [0.0, 0.4, 0.8, 1.0])
def test_it_can_be_ended_at_any_moment(share: float) -> None:
    """Forward, on the way back, and between the levels; the model is left as it was."""
    model = build(*CASES["decoder"])
    parameters = [parameter.requires_grad for parameter in model.parameters()]
    calls, last = 0, 10**9

    class EndedError(Exception):
        pass

    def between() -> None:
        nonlocal calls
        calls += 1
        if calls > last:
            raise EndedError

    def levels() -> torch.Tensor:
        return relevance_levels(model, {"input_ids": IDS}, 11, between=between).levels

    whole = levels()
    # Every module that runs, some of them twice.
    assert calls > sum(1 for _ in model.modules())
    calls, last = 0, int(share * (calls - 1))
    with pytest.raises(EndedError):
        levels()
    assert calls == last + 1
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert [parameter.requires_grad for parameter in model.parameters()] == parameters
    assert torch.equal(relevance_levels(model, {"input_ids": IDS}, 11).levels, whole)
