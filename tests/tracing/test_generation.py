"""Generation with a cache: one trace whose rows are those of one pass over the whole text."""

from __future__ import annotations

import pytest
import torch
from tests.tracing.conftest import SIZES, assert_dense, cached, ids_of

import headloom
from headloom.api.trace import Trace
from headloom.models.language_model import LanguageModel
from headloom.tracing.recording import joining
from headloom.tracing.recording import passes as call_file

transformers = pytest.importorskip("transformers")

HEADED = {
    "BART": "BartForConditionalGeneration",
    "Marian": "MarianMTModel",
    "T5": "T5ForConditionalGeneration",
    "Whisper": "WhisperForConditionalGeneration",
}
DECODERS = ["GPT-2", "Llama", "Qwen3", "Mistral", "Gemma 2", "GPT-NeoX", "gpt-oss"]


def assert_equal(grown: Trace, whole: Trace) -> None:
    """Weights equal to 2e-6 and everything else of the layers too."""
    assert grown.tokens == whole.tokens
    for one, other in zip(grown.layers, whole.layers, strict=True):
        assert (one.name, one.kind, one.index, one.shape) == (
            other.name, other.kind, other.index, other.shape,
        )  # fmt: skip
        assert torch.allclose(one.graph.to_dense(), other.graph.to_dense(), atol=2e-6)
        assert torch.allclose(one.graph.rest, other.graph.rest, atol=2e-6)
        assert torch.allclose(one.graph.lse, other.graph.lse, atol=1e-5)
        assert torch.equal(one.graph.count, other.graph.count)
        assert torch.allclose(one.queries, other.queries, atol=1e-5)
        assert torch.allclose(one.keys, other.keys, atol=1e-5)
        assert torch.allclose(one.value_norms, other.value_norms, atol=1e-5)
        assert one.mask == other.mask
        assert one.no_matrix is None
        assert torch.allclose(one.matrix.to_dense(), one.graph.to_dense(), atol=2e-6)


@pytest.mark.parametrize("name", DECODERS)
def test_each_token_adds_the_row_that_one_pass_gives_it(
    family_named, name, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(joining, "STEPS", 3)
    monkeypatch.setattr(call_file, "LARGE", 1)
    family = family_named(name)
    model = family.build()
    prompt = family.inputs(padded=False)["input_ids"][:, :4]
    model.generation_config.eos_token_id = None
    model.train()
    grown = headloom.trace(
        model, {"input_ids": prompt}, generate=8, keep=headloom.All(), save=tmp_path / "t"
    )
    assert model.training
    assert len(grown.tokens) == 12
    assert grown.positions["tokens"]["generated"] == [False] * 4 + [True] * 8
    assert grown.deviation < 5e-6
    ids = ids_of(grown)
    with torch.no_grad():
        own = model.eval().generate(prompt, max_new_tokens=8, do_sample=False)
    assert torch.equal(own, ids)
    assert_equal(grown, headloom.trace(model, ids, keep=headloom.All()))


@pytest.mark.parametrize("name", ["BART", "Marian", "T5", "Whisper"])
def test_a_target_is_generated_from_its_source(family_named, name, monkeypatch) -> None:
    monkeypatch.setattr(joining, "STEPS", 2)
    family = family_named(name)
    model = getattr(transformers, HEADED[name])(family.build().config).eval()
    inputs = family.inputs(padded=False)
    del inputs["decoder_input_ids"]
    model.generation_config.eos_token_id = None
    model.generation_config.forced_eos_token_id = None
    options = {"max_new_tokens": 6}
    if name == "Whisper":
        options["decoder_input_ids"] = inputs["decoder_input_ids"] = torch.tensor([[1, 5]])
        model.generation_config.max_length = 60
    grown = headloom.trace(model, inputs, generate=options, keep=headloom.All())
    target = torch.tensor([[int(token[1:]) for token in grown.sequences["target"]]])
    assert target.shape[1] >= 7
    whole = headloom.trace(model, {**inputs, "decoder_input_ids": target}, keep=headloom.All())
    kinds = [layer.kind for layer in grown.layers]
    assert kinds == [layer.kind for layer in whole.layers]
    assert_equal(grown, whole)


@pytest.mark.parametrize("as_options", [False, True])
def test_a_batch_padded_on_the_left_and_ended_early(family_named, monkeypatch, as_options) -> None:
    monkeypatch.setattr(joining, "STEPS", 2)
    family = family_named("Llama")
    model, inputs = family.build(), family.inputs()
    model.generation_config.eos_token_id = None
    free = headloom.trace(model, inputs, generate=6, keep=headloom.All())
    assert [len(trace.tokens) for trace in free] == [18, 15]
    # The third token that the first text gets is said to end texts: its trace stops before it.
    end = int(free[0].tokens[14][1:])
    other = [int(token[1:]) for token in free[1].tokens[9:]]
    options: dict[str, int] = {}
    if as_options:
        options = {"eos_token_id": end, "pad_token_id": 0}
    else:
        model.generation_config.eos_token_id = end
        model.generation_config.pad_token_id = 0
    ended = headloom.trace(
        model, inputs, generate={"max_new_tokens": 6, **options}, keep=headloom.All()
    )
    first = [int(token[1:]) for token in free[0].tokens[12:]].index(end)
    assert len(ended[0].tokens) == 12 + first
    if end not in other:
        assert ended[1].tokens == free[1].tokens
    for trace in ended:
        assert_equal(trace, headloom.trace(model, ids_of(trace), keep=headloom.All()))


@pytest.mark.parametrize("large", [1, call_file.LARGE])
def test_a_trace_without_queries_holds_the_same(family_named, tmp_path, monkeypatch, large) -> None:
    """Steps are joined while it goes on, queries are let go, and layers written one by one."""
    monkeypatch.setattr(call_file, "LARGE", large)
    family = family_named("Gemma 2")
    model, prompt = family.build(), family.inputs(padded=False)["input_ids"][:, :4]
    model.generation_config.eos_token_id = None
    whole = headloom.trace(model, prompt, generate=40)
    bare = headloom.trace(
        model, prompt, generate=40, queries_keys=False, save=tmp_path / "t", verify=False
    )
    assert [layer.name for layer in bare.layers] == [layer.name for layer in whole.layers]
    for one, other in zip(bare.layers, whole.layers, strict=True):
        assert one.queries is None and one.shape == (4, 44, 44) and one.mask == other.mask
        for name in ("keys", "weights", "lse", "rest", "count"):
            assert torch.equal(getattr(one.graph, name), getattr(other.graph, name)), name
        assert torch.equal(one.value_norms, other.value_norms)
        assert one.no_matrix is not None and "queries" in one.no_matrix
    assert bare.positions == whole.positions and bare.tokens == whole.tokens
    assert [path.name for path in tmp_path.iterdir()] == ["t"]
    with pytest.raises(headloom.DataError, match="exists already"):
        headloom.trace(model, prompt, generate=2, save=tmp_path / "t")


@pytest.mark.filterwarnings("ignore:.*past_key_values.*:FutureWarning")
@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_a_cache_is_known_by_either_of_its_names(family_named, name: str) -> None:
    model = family_named("Llama").build()
    if name == "cache" and name not in cached(model, None):
        pytest.skip("this version of Transformers does not know the name")
    cache = transformers.DynamicCache()
    with headloom.watch(model, keep=headloom.All()) as watched, torch.no_grad():
        for tokens in ([5, 6, 7], [8], [9]):
            model(input_ids=torch.tensor([tokens]), **{name: cache})
    (trace,) = watched.traces
    assert trace.tokens == ["#5", "#6", "#7", "#8", "#9"]
    with torch.no_grad():
        own = model(torch.tensor([[5, 6, 7, 8, 9]]), output_attentions=True).attentions
    assert_dense(trace.layers, own)


def test_watch_makes_a_trace_of_every_text(family_named) -> None:
    family = family_named("GPT-2")
    model = family.build("sdpa")
    ids = family.inputs(padded=False)["input_ids"]
    with headloom.watch(model, keep=headloom.All()) as watched, torch.no_grad():
        model.generate(ids[:, :3], max_new_tokens=5, do_sample=False, eos_token_id=None)
        model(ids)
        model(input_ids=ids[:, :5])
    assert model.config._attn_implementation == "sdpa"
    assert not model._forward_pre_hooks
    assert not model._forward_hooks
    assert [len(trace.tokens) for trace in watched.traces] == [7, 12, 5]
    assert "generated" in watched.traces[0].positions["tokens"]
    assert "tokens" not in watched.traces[1].positions
    for trace in watched.traces:
        assert_equal(trace, headloom.trace(model, ids_of(trace), keep=headloom.All()))
    with pytest.raises(headloom.InputError, match="there are 3 traces"):
        _ = watched.trace


def test_what_cannot_be_watched_or_generated_says_so(family_named) -> None:
    family = family_named("Llama")
    model, ids = family.build(), torch.tensor([[5, 6, 7, 8]])
    for options, line in (
        (0, "generate is 0; expected a whole number"),
        (61, "4 tokens and 61 to generate; LlamaForCausalLM reads 64 at most"),
        ({"num_beams": 2}, "a beam search reorders its rows"),
        ({"max_length": 12}, "max_new_tokens"),
        ({"max_new_tokens": True}, "generate"),
        ({"no": 1}, "generate"),
        (True, "generate"),
        (1.5, "generate is 1.5"),
        ("3", "generate is '3'"),
    ):
        with pytest.raises(headloom.InputError, match=line) as error:
            headloom.trace(model, ids, generate=options)
        assert "\n" not in str(error.value)
    bert = family_named("BERT").build()
    with pytest.raises(headloom.InputError, match="BertModel does not generate"):
        headloom.trace(bert, ids, generate=3)
    with (
        pytest.raises(headloom.InputError, match="in training mode"),
        headloom.watch(family.build().train()),
    ):
        pass


@pytest.mark.parametrize(
    "positions", ["sinusoidal", "shaw", "shaw-keys", "alibi", "buckets", "rotary"]
)
def test_headlooms_own_language_model_continues_a_text(positions, tmp_path) -> None:
    torch.manual_seed(4)
    model = LanguageModel(
        30, width=16, heads=4, feed_forward=16, layers=2, positions=positions
    ).eval()
    grown = headloom.trace(
        model, torch.tensor([3, 4, 5]), generate=5, keep=headloom.All(), save=tmp_path / "t"
    )
    assert grown.positions["tokens"]["generated"] == [False] * 3 + [True] * 5
    ids = ids_of(grown)
    assert_equal(grown, headloom.trace(model, ids, keep=headloom.All()))
    with torch.no_grad():
        likeliest = model(ids)[0].argmax(-1)
    assert likeliest[2:-1].tolist() == ids[0, 3:].tolist()


@pytest.mark.parametrize(
    ("model_class", "config_class"),
    [
        ("BertLMHeadModel", "BertConfig"),
        ("RobertaForCausalLM", "RobertaConfig"),
        ("ElectraForCausalLM", "ElectraConfig"),
    ],
)
def test_an_encoder_that_writes_has_the_rows_of_its_passes(model_class, config_class) -> None:
    """Its prompt looks at all of itself, each later token at all before it: by eager attention."""
    torch.manual_seed(7)
    config = getattr(transformers, config_class)(**SIZES)
    model = getattr(transformers, model_class)._from_config(config, attn_implementation="eager")
    model.eval().generation_config.eos_token_id = None
    prompt = torch.tensor([[5, 6, 7, 8]])
    grown = headloom.trace(model, prompt, generate=5, keep=headloom.All())
    with torch.no_grad():
        passes = model.generate(
            prompt, max_new_tokens=6, do_sample=False, output_attentions=True,
            return_dict_in_generate=True,
        )  # fmt: skip
    assert list(grown.sequences) == ["tokens"]
    assert torch.equal(ids_of(grown), passes.sequences[:, :9])
    for number, layer in enumerate(grown.layers):
        rows = [weights[number][0] for weights in passes.attentions]
        expected = torch.cat(
            [torch.nn.functional.pad(row, (0, 9 - row.shape[-1])) for row in rows], 1
        )
        assert layer.shape == (4, 9, 9)
        assert torch.allclose(layer.graph.to_dense(), expected, atol=2e-6)
        assert torch.allclose(layer.matrix.to_dense(), expected, atol=2e-6)
    assert grown.deviation < 5e-6


def test_a_model_that_reads_its_text_anew_for_every_token_is_refused(
    family_named, monkeypatch
) -> None:
    model = family_named("Llama").build()
    own = type(model).forward

    def without_cache(self, *args, cache=None, past_key_values=None, use_cache=None, **given):
        return own(self, *args, **given, use_cache=False)

    monkeypatch.setattr(type(model), "forward", without_cache)
    with pytest.raises(headloom.InputError, match="reads the whole text again for every token"):
        headloom.trace(model, torch.tensor([[5, 6, 7, 8]]), generate=3)
    assert model.config._attn_implementation == "eager"


def test_a_prompt_that_is_read_in_parts_is_all_prompt(family_named) -> None:
    family = family_named("Llama")
    model = family.build().eval()
    model.generation_config.eos_token_id = None
    prompt = family.inputs(padded=False)["input_ids"][:1, :8]
    options = {"max_new_tokens": 4, "do_sample": False}
    whole = headloom.trace(model, {"input_ids": prompt}, generate=options)
    parts = headloom.trace(
        model, {"input_ids": prompt}, generate=options | {"prefill_chunk_size": 3}
    )
    assert parts.positions["tokens"]["generated"] == whole.positions["tokens"]["generated"]
    assert_equal(parts, whole)


def test_a_cache_that_rounds_its_keys_is_named(family_named) -> None:
    """Rows of earlier passes looked at other keys than those that the cache holds in the end."""

    class Rounded(transformers.cache_utils.QuantizedLayer):
        def __init__(self) -> None:
            super().__init__(axis_key=0, axis_value=0, residual_length=4)

        def _quantize(self, tensor: torch.Tensor, axis: int) -> torch.Tensor:
            return (tensor * 4).round() / 4

        def _dequantize(self, tensor: torch.Tensor) -> torch.Tensor:
            return tensor

    model = family_named("Llama").build()
    cache = transformers.cache_utils.Cache(layers=[Rounded(), Rounded()])
    with (
        torch.no_grad(),
        pytest.warns(UserWarning, match="rotated, quantized or filled"),
        headloom.watch(model, verify=False) as watched,
    ):
        for token in torch.arange(3, 12):
            model(token.reshape(1, 1), **cached(model, cache))
    assert watched.traces == []
