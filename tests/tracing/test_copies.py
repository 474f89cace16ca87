"""A training copies and saves its model while headloom looks on; the copies know nothing of it."""

from __future__ import annotations

import copy
import io
import math
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headloom
from headloom.mechanism.mask import Mask
from headloom.models.configuration import Architecture
from headloom.models.language_model import LanguageModel
from headloom.models.transformer import Transformer

INPUTS = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))

pytestmark = pytest.mark.usefixtures("without_fast_paths")


def encoder() -> nn.Module:
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(8, 2, 8, batch_first=True).eval()


def copies(model: nn.Module) -> list[nn.Module]:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    return [copy.deepcopy(model), averaged.module, torch.load(file, weights_only=False)]


@pytest.mark.parametrize("before", [True, False])
def test_a_monitored_model_is_copied_and_saved(tmp_path: Path, before: bool) -> None:
    """Before its first batch, which a hook waits for, and after it."""
    model = encoder()
    expected = model(INPUTS)
    with headloom.monitor(model, tmp_path / "run") as monitor:
        if not before:
            model(INPUTS)
            monitor.step(0.1)
            assert not model._forward_pre_hooks
        for other in copies(model):
            assert torch.equal(other(INPUTS), expected)
        assert (monitor._probe is None) == before  # a copy is not the model that is watched


def test_a_watched_model_is_copied_and_saved() -> None:
    model = encoder()
    with headloom.watch(model) as watched:
        expected = model(INPUTS)
        made = copies(model)
    assert len(watched.traces) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for other in made:
            assert torch.allclose(other(INPUTS), expected, atol=1e-6)
    assert len(watched.traces) == 2
    for other in made:  # and each can be traced
        assert isinstance(headloom.trace(other, INPUTS[:1]), headloom.Trace)


class WithLayer(nn.Module):
    """Somebody's own, of a layer of headloom."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = headloom.MultiHeadAttention(8, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.layer(inputs, mask=headloom.causal())
        return output


def language() -> tuple[nn.Module, Any]:
    architecture = Architecture(width=8, heads=2, feed_forward=8, decoder_layers=2)
    return LanguageModel(20, architecture), torch.tensor([[3, 4, 5, 6]])


def translator() -> tuple[nn.Module, Any]:
    architecture = Architecture(width=8, heads=2, feed_forward=8)
    return Transformer(20, architecture), (torch.tensor([[3, 4, 5]]), torch.tensor([[1, 6]]))


def graph() -> tuple[nn.Module, Any]:
    return headloom.GATConv(8, 4, heads=2), (INPUTS[0], torch.tensor([[0, 1, 2], [1, 2, 3]]))


def llama() -> tuple[nn.Module, Any]:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=20, hidden_size=8, intermediate_size=8, num_hidden_layers=2,
        num_attention_heads=2,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config), torch.tensor([[3, 4, 5, 6]])


@pytest.mark.parametrize(
    "make", [language, translator, graph, llama, lambda: (WithLayer(), INPUTS)]
)
def test_copies_of_every_kind_of_watched_model(make: Callable[[], tuple[nn.Module, Any]]) -> None:
    """They compute, are traced, and generate as the model does that nobody watches."""
    torch.manual_seed(0)
    model, given = make()
    model.eval()
    inputs = given if isinstance(given, tuple) else (given,)

    def result(of: nn.Module) -> Tensor:
        found = of(*inputs)
        output: Tensor = getattr(found, "logits", found)
        return output

    expected = result(model)
    with headloom.watch(model) as watched:
        result(model)
        made = copies(model)
        for other in made:
            assert torch.allclose(result(other), expected, atol=1e-5)
    assert len(watched.traces) in (1, len(INPUTS))
    for other in (model, *made):
        assert torch.allclose(result(other), expected, atol=1e-5)
        if hasattr(other, "generate"):
            texts = [
                each.generate(given, max_new_tokens=3, do_sample=False) for each in (model, other)
            ]
            assert torch.equal(*texts)
        with headloom.watch(other) as again:
            result(other)
        assert again.traces
    assert len(watched.traces) in (1, len(INPUTS))


def test_a_call_in_another_thread_is_said_to_be_one() -> None:
    model = encoder()
    with pytest.warns(UserWarning, match="was called in another thread"), headloom.watch(model):
        thread = threading.Thread(target=model, args=(INPUTS,))
        thread.start()
        thread.join()


class Attends(nn.Module):
    """One layer of torch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.attention(inputs, inputs, inputs)[0]
        return output


@pytest.mark.parametrize("length", [5, 12])
def test_weights_that_are_no_numbers_are_said_to_be_that(tmp_path: Path, length: int) -> None:
    """torch's attention on the CPU gives 0 for them where keys are few: no fault of a trace."""
    model, inputs = Attends(), torch.randn(1, length, 8)
    with headloom.monitor(model, tmp_path / "run", every=1, budget=None) as monitor:
        model(inputs)
        monitor.step(0.1)
        with torch.no_grad():
            model.attention.in_proj_weight[:8] = math.nan
        with pytest.warns(UserWarning, match="infinite or NaN"):
            monitor.step(0.1)
    assert len(monitor.warnings) == 1
    with pytest.warns(UserWarning, match=r"not numbers \(NaN\)"):
        trace = headloom.trace(model, inputs, verify=False)
    assert isinstance(trace, headloom.Trace) and trace.layers[0].graph.lse.isnan().all()


def test_values_that_are_no_numbers_are_not_called_scores() -> None:
    """Their rows have weights as any others: these are verified."""
    model, inputs = Attends(), torch.randn(1, 12, 8)
    with torch.no_grad():
        model.attention.in_proj_weight[16:] = math.nan
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        trace = headloom.trace(model, inputs, keep=headloom.All())
    said = " ".join(str(warning.message) for warning in told)
    assert "the output of layer attention is not a number (NaN)" in said
    assert "scores of layer" not in said
    assert isinstance(trace, headloom.Trace) and trace.layers[0].graph.lse.isfinite().all()


class WithOwnMask(nn.Module):
    """A layer of headloom with a mask of somebody's own."""

    def __init__(self, mask: Mask) -> None:
        super().__init__()
        self.mask = mask
        self.layer = headloom.MultiHeadAttention(8, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.layer(inputs, mask=self.mask)
        return output


class ByHead(Mask):
    """(heads, rows, keys): head 1 sees every second of the keys of head 0."""

    def block(self, rows: range, keys: int, device: torch.device) -> Tensor:
        back = torch.arange(rows.start, rows.stop)[:, None] - torch.arange(keys)
        return torch.stack([(back >= 0) & (back % (head + 1) == 0) for head in range(2)])


class Flat(Mask):
    """(rows, keys)."""

    def block(self, rows: range, keys: int, device: torch.device) -> Tensor:
        return torch.arange(keys) <= torch.arange(rows.start, rows.stop)[:, None]


@pytest.mark.parametrize("mask", [ByHead(), Flat()], ids=["by head", "flat"])
def test_a_mask_of_ones_own_of_fewer_dimensions(mask: Mask) -> None:
    torch.manual_seed(0)
    model, inputs = WithOwnMask(mask), torch.randn(1, 9, 8)
    trace = headloom.trace(model, inputs, keep=headloom.All())
    assert isinstance(trace, headloom.Trace)
    (layer,) = trace.layers
    projected = (
        linear(inputs).view(1, 9, 2, 4).transpose(1, 2).double()
        for linear in (model.layer.w_q, model.layer.w_k)
    )
    queries, keys = projected
    allowed = mask.dense(9, 9).expand(1, 2, 9, 9)
    scores = (queries @ keys.mT / 2).masked_fill(~allowed, -math.inf)
    expected = scores.softmax(-1)[0].detach()
    assert torch.allclose(layer.graph.dense().double(), expected, atol=1e-6)
    if isinstance(mask, Flat):
        assert layer.mask == "causal"
        assert torch.allclose(layer.matrix.dense().double(), expected, atol=1e-6)
    else:
        assert layer.matrix is None and "not side by side" in layer.no_matrix
    again: Any = headloom.from_queries_keys(queries[0].float(), keys[0].float(), mask=mask)
    assert again.layers[0].mask == layer.mask


def test_a_graph_that_is_not_the_formulas_ends_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of headloom's own layers too: here with a mask that is lost on its way to the kernels."""
    from headloom.mechanism import attention_layer

    own = attention_layer.attend

    def without(*given: Any, **options: Any) -> Any:
        return own(*given, **{**options, "mask": None})

    monkeypatch.setattr(attention_layer, "attend", without)
    model = WithOwnMask(headloom.causal())
    with pytest.raises(
        headloom.VerificationError, match=r"differ by .* from the formula in float64"
    ):
        headloom.trace(model, torch.randn(1, 9, 8))
    wrong = headloom.trace(model, torch.randn(1, 9, 8), verify=False)
    assert (
        isinstance(wrong, headloom.Trace) and wrong.deviation is not None and wrong.deviation > 0.1
    )


def test_products_that_cancel_are_no_fault() -> None:
    """Keys with a large part in common that no query has: float32 rounds it, not what is left."""
    torch.manual_seed(1)
    model = WithLayer()
    with torch.no_grad():
        common = model.layer.w_k.bias.copy_(torch.randn(8) * 1e5)
        for head in (slice(0, 4), slice(4, 8)):
            own = common[head]
            weight = model.layer.w_q.weight[head]
            weight -= torch.outer(own, own @ weight) / (own @ own)
        model.layer.w_q.bias.zero_()
        model.layer.w_q.weight *= 3
        model.layer.w_k.weight *= 3
    for length in (10, 100):
        trace = headloom.trace(model, torch.randn(1, length, 8))
        assert isinstance(trace, headloom.Trace)
