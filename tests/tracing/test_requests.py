"""`generate_batch` in `headloom.watch`: a trace a request, against the model in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import headloom

KEEP = 8
SHARED = torch.randint(1, 60, (40,), generator=torch.Generator().manual_seed(0)).tolist()
#: Lengths 27, 38, 3, 41 and 1; the second and fourth share whole pages with others.
PROMPTS = [SHARED[:20] + [7] * 7, [*SHARED[:37], 3], [5, 9, 2], [*SHARED, 8], [4]]
WINDOWS = {
    "use_sliding_window": True, "sliding_window": 6,
    "layer_types": ["full_attention", "sliding_attention"],
}  # fmt: skip


def made(attention: str, kind: str = "Qwen2", **options: Any) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=64, eos_token_id=None, pad_token_id=0,
        initializer_range=0.2, **options,
    )  # fmt: skip
    model = getattr(transformers, f"{kind}ForCausalLM")
    return model._from_config(config, attn_implementation=attention).eval()


def run(model: Any, choices: int = 1, **options: Any) -> dict[str, Any]:
    """Write 6 tokens after each prompt."""
    torch.manual_seed(1)
    generation = transformers.GenerationConfig(
        max_new_tokens=6, do_sample=choices > 1, num_return_sequences=choices, eos_token_id=-1,
        pad_token_id=0,
    )  # fmt: skip
    options = {"num_blocks": 100, "max_batch_tokens": 64, "page_size": 4, **options}
    config = transformers.ContinuousBatchingConfig(**options)
    done = model.generate_batch(PROMPTS, generation, config, progress_bar=False)
    assert all(each.error is None for each in done.values())
    return done  # type: ignore[no-any-return]


def exact(model: Any, ids: list[int]) -> list[tuple[Tensor, Tensor]]:
    """Weights and log-sum-exp of one pass over all tokens, by masks of its own."""
    rows: list[tuple[Tensor, Tensor]] = []

    def attention(layer: Any, q: Tensor, k: Tensor, v: Tensor, _: Any, **keywords: Any) -> Any:
        k, v = (part.repeat_interleave(2, 1) for part in (k, v))
        distance = torch.arange(len(ids))[:, None] - torch.arange(len(ids))
        hidden = (distance < 0) | (distance >= (keywords["sliding_window"] or 1000))
        scores = (q @ k.mT * keywords["scaling"]).masked_fill(hidden, -torch.inf)
        rows.append((scores.softmax(-1)[0], scores.logsumexp(-1)[0]))
        return (scores.softmax(-1) @ v).transpose(1, 2).contiguous(), None

    transformers.AttentionInterface.register("exact", attention)
    model.set_attn_implementation("exact")
    with torch.no_grad():
        model(torch.tensor([ids]))
    return rows


@pytest.mark.parametrize(
    ("attention", "model", "options"),
    [
        # Transformers' function leaves out the soft cap.
        ("eager", {"kind": "Gemma2", "attn_logit_softcapping": 0.1, "head_dim": 8}, {}),
        ("eager", {}, {"max_batch_tokens": 16}),  # parts of prompts
        ("sdpa", WINDOWS, {"max_batch_tokens": 16}),
        ("sdpa", {}, {"max_batch_tokens": 24, "max_requests_per_batch": 2}),  # shared prefixes
        ("sdpa", {}, {"max_batch_tokens": 16, "num_blocks": 14}),  # requests begin again
        ("eager", WINDOWS, {"max_batch_tokens": 16, "choices": 3}),  # children of a request
    ],
)
def test_each_request_is_a_trace(
    attention: str, model: dict[str, Any], options: dict[str, Any]
) -> None:
    watched_model = made(attention, **model)
    plain = run(watched_model, **options)
    with headloom.watch(watched_model, keep=KEEP) as watched:
        done = run(watched_model, **options)
    tokens = [(name, each.generated_tokens) for name, each in done.items()]
    assert tokens == [(name, each.generated_tokens) for name, each in plain.items()]
    assert watched_model.config._attn_implementation == attention
    assert [trace.model["request"] for trace in watched.traces] == list(done)
    double = made("eager", **model).double()
    for trace, request in zip(watched.traces, done.values(), strict=True):
        ids = [*request.prompt_ids, *request.generated_tokens][:-1]
        assert trace.tokens == [f"#{number}" for number in ids]
        generated = [place >= len(request.prompt_ids) for place in range(len(ids))]
        assert trace.positions["tokens"]["generated"] == generated
        for layer, (weights, lse) in zip(trace.layers, exact(double, ids), strict=True):
            graph, best = layer.graph, weights.topk(min(KEEP, len(ids))).values
            kept = weights.gather(2, graph.keys.clamp(min=0).long()).where(graph.keys >= 0, 0)
            for ours, theirs in (
                (graph.weights, kept), (graph.weights[..., : best.shape[2]], best),
                (graph.lse, lse), (graph.entropy, torch.special.entr(weights).sum(-1)),
                (layer.matrix.to_dense(), weights),
            ):  # fmt: skip
                assert float((ours - theirs).abs().max()) < 1e-5
            assert layer.kind == "decoder"
            assert layer.deviation < 1e-5


def test_what_was_computed_before_the_block_is_named() -> None:
    model = made("sdpa")
    generation = transformers.GenerationConfig(max_new_tokens=2, eos_token_id=-1, pad_token_id=0)
    config = transformers.ContinuousBatchingConfig(
        num_blocks=100, max_batch_tokens=64, page_size=4, use_async_batching=False
    )

    def write() -> Any:
        return model.generate_batch(
            PROMPTS[1:3], generation, config, progress_bar=False, persistent_manager=True
        )

    write()
    with (
        pytest.warns(UserWarning, match="first tokens were computed before the block"),
        headloom.watch(model) as watched,
    ):
        write()
    model.destroy_cached_continuous_batching_manager()
    assert [trace.model["request"] for trace in watched.traces] == ["req_3"]
