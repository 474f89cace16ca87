"""Rows of a running model, against the weights of its own eager attention in float64."""

from __future__ import annotations

from threading import Thread
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import headloom

HEADS = [(1, 2), ("decoder", 2, 0)]


def llama(attention: str = "eager", **options: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=64, eos_token_id=None, pad_token_id=0, **options,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM._from_config(config, attn_implementation=attention)
    return model.eval()


def weights(ids: Tensor, mask: Tensor | None = None) -> tuple[Tensor, ...]:
    """Weights of the eager model in float64."""
    with torch.no_grad():
        return llama().double()(ids, attention_mask=mask, output_attentions=True).attentions  # type: ignore[no-any-return]


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_row_is_there_before_the_next_token(attention: str, cache: str | None) -> None:
    model, ids = llama(attention), torch.randint(1, 60, (1, 6))
    options = {"max_new_tokens": 5, "do_sample": False, "cache_implementation": cache}
    read = []

    class Look(transformers.LogitsProcessor):
        def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
            read.append([live.rows[head] for head in HEADS])
            return scores

    plain = model.generate(ids, **options)
    before = [dict(module.__dict__) for module in model.modules()], repr(model.config)
    with headloom.live(model, HEADS, history=2) as live:
        written = model.generate(ids, logits_processor=[Look()], **options)
    assert torch.equal(plain, written)
    after = [dict(module.__dict__) for module in model.modules()], repr(model.config)
    assert str(before) == str(after)
    expected = weights(written)
    assert len(read) == 5
    for step, rows in enumerate(read):
        for row, (layer, head) in zip(rows, ((1, 2), (2, 0)), strict=True):
            right = expected[layer][:, head, 5 + step, : 6 + step]
            assert float((row[:, : 6 + step] - right).abs().max()) < 1e-6
            assert not row[:, 6 + step :].any()
    assert [
        torch.equal(row, rows[0]) for row, rows in zip(live.history[1, 2], read[-2:], strict=True)
    ]


def test_padding_windows_and_beams() -> None:
    ids = torch.tensor([[5, 6, 7, 8, 9], [0, 0, 7, 8, 9]])
    mask = (ids != 0).long()
    with headloom.live(model := llama("sdpa"), [(0, 3)]) as live:
        model.generate(ids, attention_mask=mask, max_new_tokens=1, do_sample=False)
    row, right = live.rows[0, 3], weights(ids, mask)[0][:, 3, -1]
    assert float((row - right).abs().max()) < 1e-6 and not row[1, :2].any()
    with headloom.live(model, [(0, 3)]) as live:
        model.generate(ids, attention_mask=mask, max_new_tokens=3, num_beams=3, do_sample=False)
    assert live.rows[0, 3].shape == (6, 7)


def test_an_encoder_decoder() -> None:
    torch.manual_seed(0)
    config = transformers.BartConfig(
        vocab_size=64, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=32, decoder_ffn_dim=32,
    )  # fmt: skip
    model = transformers.BartForConditionalGeneration._from_config(
        config, attn_implementation="eager"
    ).eval()
    ids, named = torch.randint(4, 60, (1, 7)), [("cross", 1, 0), (5, 0), (0, 1)]
    with headloom.live(model, named) as live, torch.no_grad():
        out = model(input_ids=ids, output_attentions=True)
    cross = out.cross_attentions[1][:, 0, -1]
    assert float((live.rows["cross", 1, 0] - cross).abs().max()) < 1e-6
    assert torch.equal(live.rows["cross", 1, 0], live.rows[5, 0])
    assert float((live.rows[0, 1] - out.encoder_attentions[0][:, 1, -1]).abs().max()) < 1e-6


def test_other_modules() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 16, batch_first=True)
    model, x = (
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(),
        torch.randn(2, 5, 16),
    )
    with headloom.live(model, [("layers.0.self_attn", 1)]) as live:
        model(x)
    right = model.layers[0].self_attn(x, x, x, average_attn_weights=False)[1][:, 1, -1].detach()
    assert float((live.rows["layers.0.self_attn", 1] - right).abs().max()) < 1e-6
    for positions in ("rotary", "alibi", "shaw", "buckets"):
        own = headloom.LanguageModel(
            vocab_size=16, width=32, heads=4, layers=2, positions=positions
        )
        own.eval()
        ids = torch.randint(0, 16, (1, 7))
        plain = own(ids)
        with headloom.live(own, [(1, 1)]) as live:
            assert torch.equal(own(ids), plain)
        right = headloom.trace(own, ids, keep="all")[1, 1].weights[-1]
        assert float((live.rows[1, 1][0] - right).abs().max()) < 1e-6, positions


def test_a_second_thread_beside_a_pass_is_left_out() -> None:
    model, ids = llama("sdpa"), torch.randint(1, 60, (1, 6))
    other = Thread(target=lambda: model(ids[:, :3]))

    def beside(*_: object) -> None:
        if not other.ident:
            other.start()
            other.join()

    model.model.layers[0].register_forward_hook(beside)
    with pytest.warns(UserWarning, match="two threads"), headloom.live(model, HEADS) as live:
        model(ids)
    assert [len(rows) for rows in live.history.values()] == [1, 1]
    for row, (layer, head) in zip(live.rows.values(), ((1, 2), (2, 0)), strict=True):
        assert float((row - weights(ids)[layer][:, head, -1]).abs().max()) < 1e-6


def test_what_cannot_be_named() -> None:
    model, ids = llama("sdpa"), torch.randint(1, 60, (1, 6))
    with (
        pytest.raises(headloom.InputError, match=r"has the heads 0 to 3"),
        headloom.live(model, [(1, 9)]),
    ):
        model(ids)
    with (
        pytest.raises(headloom.InputError, match=r"expected \(layer, head\)"),
        headloom.live(model, [3]),
    ):
        pass
    with (
        pytest.warns(UserWarning, match=r"no row of \(7, 0\); 3 layers ran"),
        headloom.live(model, [(7, 0)]),
    ):
        model(ids)
    with headloom.live(model, [(1, 1)]) as live:
        with pytest.raises(headloom.InputError, match="nothing ran"):
            live.rows[1, 1]
        model(ids)
        with pytest.raises(headloom.InputError, match=r"the layers model\.layers\.0\.self_attn, "):
            live.rows[2, 2]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_requests_that_are_packed_in_one_row(attention: str) -> None:
    """Continuous batching: a row for each request, as the request has it alone."""
    model, texts = llama(attention), [[9, 5, 6, 7], [8, 9], [7, 3]]
    options = transformers.GenerationConfig(
        max_new_tokens=1, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    batches = transformers.ContinuousBatchingConfig(num_blocks=8, max_batch_tokens=4)

    def run() -> dict[str, Any]:
        done = model.generate_batch(texts, options, batches, progress_bar=False)
        return {name: (each.generated_tokens, each.error) for name, each in done.items()}

    plain = run()
    with headloom.live(model, [("decoder", 1, 2)]) as live:
        assert run() == plain
    # The first pass reads 4 tokens of one text, the second 2 of two.
    rows = [row for rows in live.history["decoder", 1, 2] for row in rows]
    for row, text in zip(rows, texts, strict=True):
        right = weights(torch.tensor([text]))[1][0, 2, -1]
        assert float((row - right).abs().max()) < 1e-6
