"""Estimated effects of heads against differences measured by torch's own hooks, and by ablation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headloom
from headloom.analysis.effects.ablation import ablate, patch
from headloom.analysis.effects.estimates import estimate
from headloom.mechanism.multihead import MultiHeadAttention

HEADS, DEPTH = 4, 8
IDS = torch.tensor([[3, 9, 4, 14, 7, 5, 2]])
OTHER = torch.tensor([[3, 11, 4, 14, 1, 5, 2]])
Model = tuple[nn.Module, list[nn.Linear], Callable[[Tensor], Tensor]]
Odd = tuple[nn.Module, list[nn.Linear], Callable[[], Tensor]]


def gpt2() -> Model:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=16, n_embd=32, n_layer=2, n_head=HEADS, n_positions=16, initializer_range=0.3
    )
    model = transformers.GPT2LMHeadModel(config).double().eval()
    into = [block.attn.c_proj for block in model.transformer.h]
    return (
        model,
        into,
        lambda ids: nn.functional.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:]),
    )


def llama() -> Model:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=16, hidden_size=32, intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=HEADS, num_key_value_heads=2, initializer_range=0.3,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).double().eval()
    into = [block.self_attn.o_proj for block in model.model.layers]
    return model, into, lambda ids: model(ids).logits[0, -1] @ torch.eye(16).double()[5]


def bart() -> Model:
    transformers = pytest.importorskip("transformers")
    config = transformers.BartConfig(
        vocab_size=16, d_model=32, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=HEADS, decoder_attention_heads=HEADS, encoder_ffn_dim=8,
        decoder_ffn_dim=8, max_position_embeddings=32, init_std=0.3, dropout=0.0,
        pad_token_id=0, bos_token_id=2, eos_token_id=3, decoder_start_token_id=2,
    )  # fmt: skip
    model = transformers.BartForConditionalGeneration(config).double().eval()
    encoder, decoder = model.model.encoder.layers[0], model.model.decoder.layers[0]
    into = [attention.out_proj for attention in (
        encoder.self_attn, decoder.self_attn, decoder.encoder_attn
    )]  # fmt: skip
    return model, into, lambda ids: model(ids, labels=ids.flip(1)).loss


MODELS = pytest.mark.parametrize("made", [gpt2, llama, bart])


@contextmanager
def mixed(linear: nn.Linear, head: int, share: float, other: Tensor | None, at: Any) -> Iterator:
    """Let W_O read, of one head, (1 - share) of its output and share of another; None: of 0."""
    columns = slice(head * DEPTH, (head + 1) * DEPTH)

    def before(_: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        changed = inputs[0].clone()
        own = changed[:, at, columns]
        given = torch.zeros_like(own) if other is None else other[:, at, columns]
        changed[:, at, columns] = own + share * (given - own)
        return (changed,)

    handle = linear.register_forward_pre_hook(before)
    yield
    handle.remove()


def seen_by(linear: nn.Linear, run: Callable[[], object]) -> Tensor:
    """What W_O reads in a run."""
    seen: list[Tensor] = []
    handle = linear.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    run()
    handle.remove()
    return seen[0]


@MODELS
@pytest.mark.parametrize("kind", ["zero", "mean", "patch"])
def test_estimates_are_the_slopes_of_what_hooks_measure(
    made: Callable[[], Model], kind: Any
) -> None:
    torch.manual_seed(3)
    model, into, measure = made()
    # Llama normalises in float32, whatever its own numbers are.
    step, error = (1e-2, 2e-3) if made is llama else (1e-4, 1e-5)
    source = (lambda: measure(OTHER)) if kind == "patch" else None
    found = estimate(model, lambda: measure(IDS), kind=kind, source=source)
    with torch.no_grad():
        assert found.baseline == pytest.approx(float(measure(IDS)), abs=1e-9)
        for layer, linear in enumerate(into):
            other = None
            if kind == "patch":
                other = seen_by(linear, lambda: measure(OTHER))
            elif kind == "mean":
                own = seen_by(linear, lambda: measure(IDS))
                other = own.mean((0, 1), keepdim=True).expand_as(own)
            for head in range(HEADS):
                for at in (slice(None), 2, -1):
                    values = []
                    for share in (step, -step):
                        with mixed(linear, head, share, other, at):
                            values.append(float(measure(IDS)))
                    slope = (values[0] - values[1]) / (2 * step)
                    effect = found.effects[layer * HEADS + head]
                    estimated = effect.change if isinstance(at, slice) else effect.at[at]
                    assert estimated == pytest.approx(slope, rel=error, abs=error / 10)
                assert sum(effect.at) == pytest.approx(effect.change)
                assert abs(effect.at[effect.most_at or 0]) == max(map(abs, effect.at))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert model.config.use_cache  # type: ignore[union-attr]


@MODELS
def test_what_is_replaced_at_some_positions(made: Callable[[], Model]) -> None:
    """Estimated and measured: at one position as hooks do it, at all of them as without any."""
    torch.manual_seed(4)
    model, into, measure = made()
    run = lambda: measure(IDS)  # noqa: E731
    here = ablate(model, run, positions=[-2])
    with torch.no_grad():
        for effect in here.effects:
            ((layer, head),) = effect.heads
            with mixed(into[layer], head, 1.0, None, -2):
                assert effect.value == pytest.approx(float(measure(IDS)), abs=1e-8)
    everywhere = ablate(model, run, positions=range(IDS.shape[1]))
    for effect, same in zip(everywhere.effects, ablate(model, run).effects, strict=True):
        assert effect.change == pytest.approx(same.change, abs=1e-9)
    at_some = estimate(model, run, positions=[1, -2])
    for effect, whole in zip(at_some.effects, estimate(model, run).effects, strict=True):
        assert effect.change == pytest.approx(whole.at[1] + whole.at[-2])
        assert effect.at[0] == 0
    other = patch(model, run, lambda: measure(OTHER), positions=[0])
    assert all(abs(effect.change) < 1e-8 for effect in other.effects[-HEADS:]) or made is bart
    for call in (estimate, ablate):
        with pytest.raises(
            headloom.InputError, match="no position 7; the input has positions 0 to 6"
        ):
            call(model, run, positions=[7])


def linear_model() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(5)
    return MultiHeadAttention(32, HEADS, kind="decoder"), torch.randn(3, 6, 32)


@pytest.mark.parametrize("kind", ["zero", "mean", "uniform"])
def test_a_measure_that_is_linear_in_the_outputs_is_estimated_exactly(kind: Any) -> None:
    """Of several inputs and several runs; positions are not told apart then."""
    layer, states = linear_model()
    weights = torch.randn(6, 32)

    def measure() -> Tensor:
        runs = [layer(part, mask=headloom.causal()) for part in (states[:2], states[2:])]
        return (torch.cat(runs) * weights).sum()

    groups = [(0, 1), [(0, 0), (0, 3)]]
    found = estimate(layer, measure, kind=kind, heads=groups)
    exact = ablate(layer, measure, kind=kind, heads=groups)
    assert found.estimated and not exact.estimated
    for effect, measured in zip(found.effects, exact.effects, strict=True):
        assert effect.heads == measured.heads and effect.at == () and effect.most_at is None
        assert effect.change == pytest.approx(measured.change, rel=1e-4, abs=1e-4)
    assert "most_at" not in found.to_pandas().columns


def test_what_cannot_be_estimated() -> None:
    layer, states = linear_model()

    def measure(rows: int = 6) -> Tensor:
        found: Tensor = layer(states[:, :rows]).sum()
        return found

    for said, call in {
        'kind="patch" needs source=': lambda: estimate(layer, measure, kind="patch"),
        "need the same number of tokens": lambda: estimate(
            layer, measure, kind="patch", source=lambda: measure(5)
        ),
        "no head 0.4": lambda: estimate(layer, measure, heads=[(0, 4)]),
        "not a tensor with a gradient": lambda: estimate(layer, lambda: measure().detach()),
        "cannot be reached": lambda: estimate(nn.Linear(2, 2), lambda: torch.ones(())),
    }.items():
        with pytest.raises(headloom.HeadloomError, match=said):
            call()
