"""What heads are needed for, in models whose heads are known."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import headloom
from headloom.analysis.effects.ablation import ablate, attention_layers, patch
from headloom.analysis.effects.prediction import next_token_loss, output_change
from headloom.mechanism.multihead import MultiHeadAttention


class CopiesTheFirst(nn.Module):
    """Weights set by hand: head 0 carries the first token to every position, head 1 does nothing.

    The logits are what head 0 gives, so the model predicts the first token everywhere.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layer = MultiHeadAttention(16, 2, bias=False, kind="decoder")
        eye = torch.eye(8)
        with torch.no_grad():
            for linear in (self.layer.w_q, self.layer.w_k, self.layer.w_v, self.layer.w_o):
                linear.weight.zero_()
            # Width 0 to 7: the token, width 8: whether it is the first, width 9: always 1.
            self.layer.w_q.weight[0, 9] = 30
            self.layer.w_k.weight[0, 8] = 30
            self.layer.w_v.weight[:8, :8] = eye
            self.layer.w_v.weight[8:, :8] = 0.01 * eye
            self.layer.w_o.weight[:8, :8] = 10 * eye
            self.layer.w_o.weight[8:, 8:] = eye

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(*tokens.shape, 16)
        state[..., :8] = nn.functional.one_hot(tokens, 8)
        state[:, 0, 8] = 1
        state[..., 9] = 1
        found: torch.Tensor = self.layer(state, mask=headloom.causal())
        return found[..., :8]


TOKENS = torch.tensor([[5, 5, 5, 5, 5]])


@pytest.mark.parametrize("kind", ["zero", "uniform", "mean"])
def test_the_head_that_does_the_work_is_found(kind: Any) -> None:
    model = CopiesTheFirst()
    tokens = torch.tensor([[5, 1, 2, 3, 4], [2, 3, 4, 6, 7]])
    first = tokens[:, :1].expand(-1, 5)

    def loss() -> float:
        logits = model(tokens)
        return float(nn.functional.cross_entropy(logits.flatten(0, 1), first.flatten()))

    found = ablate(model, loss, kind=kind)
    assert found.baseline < 0.01
    worth, nothing = found.effects
    assert worth.heads == ((0, 0),)
    assert worth.change > 0.5
    assert nothing.change == pytest.approx(0, abs=1e-4)
    if kind == "zero":
        assert worth.value == pytest.approx(torch.tensor(8.0).log().item(), abs=1e-3)
    frame = found.to_pandas()
    assert list(frame["change"]) == [worth.change, nothing.change]
    # Nothing has changed for good.
    with torch.no_grad():
        assert loss() == pytest.approx(found.baseline, abs=1e-6)


def test_patching_carries_the_answer_over() -> None:
    model = CopiesTheFirst()
    clean, other = torch.tensor([[5, 1, 2, 3]]), torch.tensor([[6, 1, 2, 3]])

    def difference() -> float:
        logits = model(clean)[0, -1]
        return float(logits[5] - logits[6])

    found = patch(model, difference, lambda: model(other))
    assert found.baseline == pytest.approx(10, abs=1e-4)
    assert found.effects[0].value == pytest.approx(-10, abs=1e-4)
    assert found.effects[1].change == pytest.approx(0, abs=1e-4)
    with pytest.raises(headloom.ShapeError, match="the same number of tokens"):
        patch(model, difference, lambda: model(other[:, :2]))


def test_groups_of_heads_and_their_names() -> None:
    model = CopiesTheFirst()
    assert [layer.heads for layer in attention_layers(model, lambda: model(TOKENS))] == [2]

    def size() -> float:
        return float(model(TOKENS).norm())

    found = ablate(model, size, heads=[(0, 1), [(0, 0), (0, 1)]])
    assert [effect.heads for effect in found.effects] == [((0, 1),), ((0, 0), (0, 1))]
    assert found.effects[1].value == 0
    for wrong in ([(0, 2)], [(1, 0)], [(-1, 0)]):
        with pytest.raises(headloom.InputError, match="no head"):
            ablate(model, size, heads=wrong)
    with pytest.raises(headloom.InputError, match="kind='half'"):
        ablate(model, size, kind="half")  # type: ignore[arg-type]


def test_losses_by_hand() -> None:
    logits = torch.log(torch.tensor([[[0.5, 0.5], [0.25, 0.75], [0.1, 0.9]]]))
    expected = -(torch.tensor(0.5).log() + torch.tensor(0.25).log()) / 2
    assert next_token_loss(logits, torch.tensor([[0, 1, 0]])) == pytest.approx(float(expected))


def test_the_real_encoder(minilm: tuple[Any, Any]) -> None:
    """Without any head of a layer the output changes more than without one, and comes back."""
    model, tokenizer = minilm
    given = dict(tokenizer("the dog did not see the cat", return_tensors="pt"))
    measure = output_change(model, given)
    found = ablate(model, measure, heads=[(5, 11), [(5, head) for head in range(12)]])
    assert found.baseline < 1e-5
    one, all_of_them = found.effects
    assert 0.05 < one.change < all_of_them.change
    with torch.no_grad():
        assert measure() < 1e-5
