"""Relevance against gradients of dense weights, as eager attention of the library has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.tracing.conftest import FAMILIES, GROUPED, PAIR, SIZES
from torch import Tensor, nn

import headloom
from headloom.analysis import weights as of_layers
from headloom.analysis.effects.relevance import relevance
from headloom.mechanism.attention_layer import PositionSizes
from headloom.mechanism.multihead import MultiHeadAttention
from headloom.mechanism.watching import Recorder, watching

transformers = pytest.importorskip("transformers")

IDS = torch.tensor([[1, 7, 9, 7, 14, 22, 5]])
OPTIONS = {family.name: family.options for family in FAMILIES}


def build(name: str, config: str, options: dict) -> nn.Module:
    torch.manual_seed(5)
    settings = getattr(transformers, config)(**options)
    model = getattr(transformers, name)._from_config(settings, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def positive(weights: Tensor, score: Tensor) -> Tensor:
    """mean over heads of max(0, gradient * weights), from a dense matrix in the graph."""
    (slope,) = torch.autograd.grad(score, weights, retain_graph=True)
    return (slope * weights)[0].clamp(min=0).mean(0).detach()


CASES = {
    "classifier": ("BertForSequenceClassification", "BertConfig", SIZES),
    "decoder": ("GPT2LMHeadModel", "GPT2Config", {**OPTIONS["GPT-2"], "n_layer": 3}),
    "grouped": ("LlamaForCausalLM", "LlamaConfig", GROUPED),
    "soft cap": ("Gemma2ForCausalLM", "Gemma2Config", OPTIONS["Gemma 2"]),
}


@pytest.mark.parametrize("case", CASES)
def test_one_sequence(case) -> None:
    model = build(*CASES[case])
    output = model(input_ids=IDS, output_attentions=True)
    classifies = output.logits.ndim == 2
    score = output.logits[0, 1] if classifies else output.logits[0, 4, 11]
    expected = torch.eye(7)
    for weights in output.attentions:
        expected = expected + positive(weights, score) @ expected
    target, row = (1, 0) if classifies else (11, 4)
    found = relevance(model, {"input_ids": IDS}, target, position=4)
    assert torch.allclose(found[0], expected[row], rtol=1e-4, atol=1e-6)
    assert float((expected - torch.eye(7)).abs().max()) > 1e-3
    several = relevance(model, {"input_ids": IDS}, target, position=4, rows=[0, 2, -1])
    assert torch.allclose(several, expected[[0, 2, 6]], rtol=1e-4, atol=1e-6)
    row_of_numpy: Any = np.int64(2)
    alone = relevance(model, {"input_ids": IDS}, target, position=4, rows=row_of_numpy)
    assert torch.equal(alone[0], several[1])
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(("name", "options"), [("Bart", PAIR), ("T5", OPTIONS["T5"])])
def test_two_sequences(name, options) -> None:
    model = build(f"{name}ForConditionalGeneration", f"{name}Config", options)
    target = torch.tensor([[1, 12, 30, 8]])
    inputs = {"input_ids": IDS, "decoder_input_ids": target}
    output = model(**inputs, output_attentions=True, use_cache=False)
    score = output.logits[0, 3, 9]

    def normalized(R: Tensor) -> Tensor:
        added = R - torch.eye(len(R))
        sums = added.sum(1, keepdim=True)
        return torch.eye(len(R)) + torch.where(sums > 0, added / sums, 0)

    R_s, R_t, R_ts = torch.eye(7), torch.eye(4), torch.zeros(4, 7)
    for weights in output.encoder_attentions:
        R_s = R_s + positive(weights, score) @ R_s
    for own, cross in zip(output.decoder_attentions, output.cross_attentions, strict=True):
        A = positive(own, score)
        R_t, R_ts = R_t + A @ R_t, R_ts + A @ R_ts
        R_ts = R_ts + normalized(R_t).T @ positive(cross, score) @ normalized(R_s)
    found = relevance(model, inputs, 9, rows=range(4))
    assert float(R_ts.max()) > 1e-3
    assert torch.allclose(found, R_ts, rtol=1e-3, atol=1e-6)


def test_blocks_are_computed_again_and_left_as_they_were() -> None:
    model = build(*CASES["decoder"])
    runs: list[int] = []
    for number, block in enumerate(model.transformer.h):
        block.attn.register_forward_hook(lambda *_, number=number: runs.append(number))
    own = model.transformer.h[1].forward
    vars(model.transformer.h[1])["forward"] = own
    relevance(model, {"input_ids": IDS}, 3)
    assert runs == [0, 1, 2, 2, 1, 0]
    assert ["forward" in vars(block) for block in model.transformer.h] == [False, True, False]
    assert vars(model.transformer.h[1])["forward"] is own
    with pytest.raises(ZeroDivisionError):
        relevance(model, {"input_ids": IDS}, lambda _: 1 / 0)
    assert ["forward" in vars(block) for block in model.transformer.h] == [False, True, False]
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("relative", ["none", "shaw", "alibi", "buckets", "rotary"])
@pytest.mark.parametrize("mask", [None, headloom.causal(), headloom.window(2, 1)])
def test_each_way_of_scoring_against_dense_gradients(relative, mask, monkeypatch) -> None:
    """A of one layer, some rows at a time, against autograd through a dense softmax."""
    monkeypatch.setattr(of_layers, "CELLS", 60)
    torch.manual_seed(4)
    layer = MultiHeadAttention(
        16, 4, kv_heads=2, relative=relative, positions=PositionSizes(clip=2)
    ).double()
    states = torch.randn(1, 7, 16, dtype=torch.float64) * 3

    class One(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, states: Tensor) -> Tensor:
            return self.layer(states, mask=mask)

    found = relevance(One(), states, 5, position=6, rows=range(7))
    with watching(layer, recorder := Recorder(layer, headloom.All())), torch.no_grad():
        layer(states, mask=mask)
    ((_, _, seen),) = recorder.calls
    dense, values = seen.caught[0].requires_grad_(), seen.values[0].repeat_interleave(2, 0)
    output = dense @ values
    if relative == "shaw":
        distance = (torch.arange(7)[None] - torch.arange(7)[:, None]).clamp(-2, 2) + 2
        output = output + torch.einsum("hij,ijd->hid", dense, layer.value_table[distance])
    logit = layer.w_o(output.transpose(0, 1).flatten(1))[6, 5]
    (slope,) = torch.autograd.grad(logit, dense)
    expected = (dense * slope).clamp(min=0).mean(0).detach()
    assert float(expected.max()) > 1e-3
    assert torch.allclose(found, torch.eye(7) + expected, rtol=1e-6, atol=1e-9)


def test_what_cannot_be_asked(minilm) -> None:
    model = build(*CASES["decoder"])
    for said, call in {
        "has no logits": lambda: relevance(minilm[0], minilm[1]("a dog", return_tensors="pt")),
        "batch of 2": lambda: relevance(model, {"input_ids": IDS.repeat(2, 1)}),
        "rows": lambda: relevance(model, {"input_ids": IDS}, 0, rows=7),
        "65 tokens": lambda: relevance(model, torch.ones(1, 65, dtype=torch.long)),
        "cannot be reached": lambda: relevance(nn.Linear(2, 2), torch.ones(1, 2)),
    }.items():
        with pytest.raises(headloom.InputError, match=said):
            call()
