"""Outputs of `generate`, held against one eager pass in float64 over the whole text."""

from __future__ import annotations

from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import headloom

tf = pytest.importorskip("transformers")

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64,
         "num_key_value_heads": 2, "intermediate_size": 32, "initializer_range": 0.6,
         "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}  # fmt: skip
T5 = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 4,
      "decoder_start_token_id": 0, "eos_token_id": 63}  # fmt: skip
PADDED = torch.tensor([[5, 9, 33, 12, 40, 7], [0, 0, 21, 8, 3, 30]])


def model_of(name="LlamaForCausalLM", sizes=SIZES, **options) -> Any:
    torch.manual_seed(3)
    config = getattr(tf, name).config_class(**{**sizes, **options})
    return getattr(tf, name)._from_config(config, attn_implementation="eager").eval()


def generated(model, ids, **options) -> Any:
    return model.generate(ids, attention_mask=(ids != 0).long(), return_dict_in_generate=True,
                          max_new_tokens=7, output_attentions=True, **options)  # fmt: skip


def traces_of(weights, **options) -> Any:
    made = headloom.from_weights(weights, keep="all", **options)
    return made if isinstance(made, list) else [made]


def check(model, trace, text, **source) -> None:
    """Hold the tokens and the weights of a trace against the model over the text alone."""
    texts = {"target": text, "source": source["input_ids"]} if source else {"tokens": text}
    named = {name: [f"#{number}" for number in ids.tolist()] for name, ids in texts.items()}
    assert trace.sequences == named
    inputs = {("decoder_" if source else "") + "input_ids": text} | source
    inputs = {name: ids[None] for name, ids in inputs.items()}
    eager = deepcopy(model).double()(**inputs, output_attentions=True)
    for kind in ("encoder", "decoder", "cross"):
        layers = [layer for layer in trace.layers if layer.kind == kind]
        expected = eager.get(f"{kind}_attentions", eager.get("attentions" * (kind == "decoder")))
        assert len(layers) == len(expected or ())
        for layer, right in zip(layers, expected or (), strict=True):
            torch.testing.assert_close(layer.graph.to_dense().double(), right[0], atol=2e-5, rtol=0)


@pytest.mark.parametrize(
    ("name", "sizes", "options"),
    [
        ("Llama", {}, {"do_sample": True}),
        ("Llama", {}, {"use_cache": False}),
        ("Llama", {}, {"prompt_lookup_num_tokens": 2}),
        ("Mistral", {"sliding_window": 4}, {}),
        ("Mistral", {"sliding_window": 8}, {"cache_implementation": "static"}),
    ],
)
def test_a_generation_is_one_trace_of_the_whole_text(name, sizes, options) -> None:
    model = model_of(f"{name}ForCausalLM", **sizes)
    out = generated(model, PADDED[:1], **options)
    check(model, *traces_of(out), out.sequences[0, :-1])
    check(model, *traces_of(out.attentions, tokens=out.sequences), out.sequences[0, :-1])


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_a_batch_padded_on_the_left_is_a_list_of_causal_traces(cache) -> None:
    model = model_of()
    end = int(generated(model, PADDED).sequences[1, 8])
    out = generated(model, PADDED, eos_token_id=end, cache_implementation=cache)
    before = out.attentions[0][0].clone()
    names = SimpleNamespace(pad_token_id=0, id_to_token=lambda number: f"#{number}")
    first, second = traces_of(out, tokenizer=names)
    check(model, first, out.sequences[0, :-1])
    check(model, second, out.sequences[1, 2:8])  # it ends before the other
    assert {layer.mask for layer in first.layers + second.layers} == {"causal"}
    assert torch.equal(before, out.attentions[0][0])  # the caller's own
    prompts = model(PADDED, attention_mask=(PADDED != 0).long(), output_attentions=True)
    for trace, text, pads in zip(traces_of(prompts, tokens=PADDED), PADDED, (0, 2), strict=True):
        check(model, trace, text[pads:])


def test_rows_follow_the_beams_that_were_chosen() -> None:
    model, ends = model_of(), [*range(0, 64, 9)]
    out = generated(model, PADDED, num_beams=3, num_return_sequences=2, eos_token_id=ends)
    assert (out.beam_indices >= 0).sum(1).tolist() == [7, 3, 7, 6]
    assert out.beam_indices[0].unique().tolist() == [0, 1, 2]
    for trace, text, start, end in zip(
        traces_of(out), out.sequences, (0, 0, 2, 2), (12, 8, 12, 11), strict=True
    ):
        check(model, trace, text[start:end])
    out.beam_indices = None
    with pytest.raises(headloom.InputError, match=r"beams without beam_indices.*output_scores"):
        headloom.from_weights(out)
    with pytest.raises(headloom.InputError, match="the same prompt, as in beam search"):
        headloom.from_weights(out.attentions)


@pytest.mark.parametrize("beams", [1, 2])
def test_an_encoder_decoder_has_its_source_its_target_and_between(beams) -> None:
    model = model_of("T5ForConditionalGeneration", T5)
    sources = torch.tensor([[5, 9, 33, 12, 40], [21, 8, 3, 0, 0]])
    out = generated(model, sources, num_beams=beams)
    traces = traces_of(out, tokens={"source": sources})
    for trace, source, text in zip(traces, sources, out.sequences, strict=True):
        check(model, trace, text[:-1], input_ids=source[source != 0])
    if beams == 1:
        (trace, _) = traces_of(out.cross_attentions)
        assert [(layer.kind, layer.shape) for layer in trace.layers] == [("cross", (4, 7, 5))] * 2


def test_later_steps_alone_and_what_is_no_generation() -> None:
    out = generated(model_of(), PADDED[:1])
    step = headloom.from_weights(out.attentions[3], tokens=list("abcdefghi"))
    assert [(layer.kind, *layer.query_tokens) for layer in step.layers] == [("decoder", "i")] * 2
    later = headloom.from_weights(out.attentions[2:])
    assert [(layer.kind, layer.shape) for layer in later.layers] == [("decoder", (4, 5, 12))] * 2
    assert later.layers[0].query_tokens[0] == "position 7"
    for order in (slice(1, None, -1), slice(None, None, -1), slice(None, None, 2)):
        with pytest.raises(headloom.InputError, match="expected the steps of one generation, in"):
            headloom.from_weights(out.attentions[order])
    out.attentions = None
    with pytest.raises(headloom.InputError, match=r'without attentions.*"eager"'):
        headloom.from_weights(out)
