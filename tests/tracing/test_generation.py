"""Generation with a cache: one trace whose rows are those of one pass over the whole text."""

from __future__ import annotations

import gc

import pytest
import torch
from tests.tracing.conftest import SIZES, cached

import headloom
from headloom.api.trace import Trace
from headloom.models.configuration import Architecture
from headloom.models.language_model import LanguageModel
from headloom.tracing.recording import call_file
from headloom.tracing.recording import passes as recording
from headloom.tracing.recording.layer_call import LayerCall

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
        assert torch.allclose(one.graph.dense(), other.graph.dense(), atol=2e-6)
        assert torch.allclose(one.graph.rest, other.graph.rest, atol=2e-6)
        assert torch.allclose(one.graph.lse, other.graph.lse, atol=1e-5)
        assert torch.equal(one.graph.count, other.graph.count)
        assert torch.allclose(one.queries, other.queries, atol=1e-5)
        assert torch.allclose(one.keys, other.keys, atol=1e-5)
        assert torch.allclose(one.value_norms, other.value_norms, atol=1e-5)
        assert one.mask == other.mask
        assert one.no_matrix is None
        assert torch.allclose(one.matrix.dense(), one.graph.dense(), atol=2e-6)


@pytest.mark.parametrize("name", DECODERS)
def test_each_token_adds_the_row_that_one_pass_gives_it(
    family_named, name, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(recording, "TOGETHER", 3)
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
    ids = torch.tensor([[int(token[1:]) for token in grown.tokens]])
    with torch.no_grad():
        own = model.eval().generate(prompt, max_new_tokens=8, do_sample=False)
    assert torch.equal(own, ids)
    assert_equal(grown, headloom.trace(model, ids, keep=headloom.All()))


@pytest.mark.parametrize("name", ["BART", "Marian", "T5", "Whisper"])
def test_a_target_is_generated_from_its_source(family_named, name, monkeypatch) -> None:
    monkeypatch.setattr(recording, "TOGETHER", 2)
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
    monkeypatch.setattr(recording, "TOGETHER", 2)
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
        ids = torch.tensor([[int(token[1:]) for token in trace.tokens]])
        assert_equal(trace, headloom.trace(model, ids, keep=headloom.All()))


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


BEAMS = {"num_beams": 3, "num_return_sequences": 2}


def ids_of(trace: Trace) -> torch.Tensor:
    names = trace.sequences.get("target") or trace.sequences["tokens"]
    return torch.tensor([[int(token[1:]) for token in names]])


@pytest.mark.parametrize(
    "name",
    [
        *(name if name == "GPT-2" else pytest.param(name, marks=pytest.mark.slow)
          for name in DECODERS),
        *("BART", "T5", pytest.param("Marian", marks=pytest.mark.slow)),
    ],
)  # fmt: skip
def test_every_beam_that_is_returned_is_a_trace(family_named, name) -> None:
    """Its rows are those of one pass over its text, and its text that of the model without
    headloom."""
    family = family_named(name)
    model, inputs = family.build(), family.inputs()
    if name in HEADED:
        torch.manual_seed(2)
        model = getattr(transformers, HEADED[name])(model.config).eval()
        for parameter in model.parameters():
            parameter.data += torch.randn_like(parameter) * 0.15
        del inputs["decoder_input_ids"]
    model.generation_config.pad_token_id = 0
    grown = headloom.trace(
        model, inputs, generate={**BEAMS, "max_new_tokens": 6}, keep=headloom.All()
    )
    assert len(grown) == 4
    with torch.no_grad():
        own = model.generate(**inputs, **BEAMS, max_new_tokens=6, do_sample=False)
    for number, trace in enumerate(grown):
        ids, text = ids_of(trace)[0].tolist(), own[number].tolist()
        start = 3 if number > 1 and name in DECODERS else 0
        assert ids == text[start : start + len(ids)]
        # What follows ends the text, or is the token that was not read.
        end = model.generation_config.eos_token_id
        assert len(text) - start - len(ids) == 1 or text[start + len(ids)] == end
        given = {"input_ids": ids_of(trace)}
        if name in HEADED:
            alone = {key: value[[number // 2]] for key, value in inputs.items()}
            given = {**alone, "decoder_input_ids": ids_of(trace)}
        assert_equal(trace, headloom.trace(model, given, keep=headloom.All()))


def test_beams_are_those_of_the_search_that_was_asked_for() -> None:
    """A search that is one token longer ends with other texts."""
    options = {"num_beams": 4, "num_return_sequences": 3, "do_sample": False, "eos_token_id": None}
    settings = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings, **heads)).eval()
    for parameter in model.parameters():
        parameter.data += torch.randn_like(parameter) * 0.15
    options["pad_token_id"] = 0
    others = 0
    for seed in range(4):
        ids = torch.randint(1, 64, (1, 6), generator=torch.Generator().manual_seed(seed))
        traces = headloom.trace(model, ids, generate={**options, "max_new_tokens": 8})
        own = model.generate(ids, **options, max_new_tokens=8)
        longer = model.generate(ids, **options, max_new_tokens=9)
        assert torch.equal(torch.cat([ids_of(trace) for trace in traces]), own[:, :-1])
        others += not torch.equal(own, longer[:, :-1])
    assert others


def test_beams_are_watched_and_the_result_is_left_as_it_is(family_named, tmp_path) -> None:
    model = family_named("Llama").build()
    ids = family_named("Llama").inputs(padded=False)["input_ids"]
    options = {"max_new_tokens": 8, "num_beams": 4, "num_return_sequences": 3, "do_sample": True}
    torch.manual_seed(3)
    own = model.generate(ids, **options, eos_token_id=None)
    torch.manual_seed(3)
    with headloom.watch(model, keep=headloom.All()) as watched:
        found = model.generate(ids, **options, eos_token_id=None)
    assert torch.equal(found, own)
    assert "generate" not in vars(model)
    assert [ids_of(trace)[0].tolist() for trace in watched.traces] == own[:, :-1].tolist()
    for trace in watched.traces:
        assert_equal(trace, headloom.trace(model, ids_of(trace), keep=headloom.All()))
    with pytest.raises(
        headloom.InputError, match="a batch of 3 inputs cannot be saved as one trace"
    ):
        headloom.trace(model, ids, generate={**options, "do_sample": False}, save=tmp_path / "t")


@pytest.mark.parametrize("given", [True, False], ids=["given", "made by the model"])
def test_a_search_of_ones_own_is_a_trace_for_each_row_at_its_end(family_named, given) -> None:
    model = family_named("Qwen3").build()
    cache = transformers.DynamicCache() if given else None
    prompts = torch.tensor([[5, 6], [5, 6], [5, 6] if given else [4, 6]])
    with headloom.watch(model, keep=headloom.All()) as watched, torch.no_grad():
        output = model(input_ids=prompts, use_cache=True, **cached(model, cache))
        if not given:
            cache = output.past_key_values
            cache.reorder_cache(torch.tensor([1, 0, 0]))
        model(input_ids=torch.tensor([[7], [8], [9]]), **cached(model, cache))
        cache.reorder_cache(torch.tensor([2, 0, 1]))
        cache.reorder_cache(torch.tensor([0, 0, 2]))
        model(input_ids=torch.tensor([[10], [11], [12]]), **cached(model, cache))
    assert "reorder_cache" not in vars(cache)
    expected = [[5, 6, 9, 10], [5, 6, 9, 11], [5, 6, 8, 12]]
    assert [ids_of(trace)[0].tolist() for trace in watched.traces] == expected
    for trace in watched.traces:
        assert_equal(trace, headloom.trace(model, ids_of(trace), keep=headloom.All()))
    cache = transformers.DynamicCache()
    with (
        pytest.warns(UserWarning, match="the cache holds other keys"),
        headloom.watch(model) as watched,
        torch.no_grad(),
    ):
        model(input_ids=torch.tensor([[5, 6], [7, 8]]), **cached(model, cache))
        for layer in cache.layers:
            layer.keys = layer.keys.flip(0)
        model(input_ids=torch.tensor([[9], [9]]), **cached(model, cache))
    assert watched.traces == []


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
    assert ids_of(trace)[0].tolist() == [5, 6, 7, 8, 9]
    with torch.no_grad():
        own = model(torch.tensor([[5, 6, 7, 8, 9]]), output_attentions=True).attentions
    for layer, weights in zip(trace.layers, own, strict=True):
        assert (layer.graph.dense() - weights[0]).abs().max() <= 2e-6


def test_a_generation_without_attention_is_refused_in_one_line() -> None:
    config = transformers.MambaConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, state_size=4, pad_token_id=0,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = transformers.MambaForCausalLM(config).eval()
    for options in ({}, {"generate": 3}):
        with pytest.raises(headloom.InputError, match="no attention ran in MambaForCausalLM"):
            headloom.trace(model, torch.tensor([[5, 6, 7, 8]]), **options)


def test_whisper_writes_by_beams(family_named) -> None:
    family = family_named("Whisper")
    torch.manual_seed(1)
    model = transformers.WhisperForConditionalGeneration(family.build().config).eval()
    inputs = family.inputs(padded=False)
    inputs["decoder_input_ids"] = torch.tensor([[1, 5]])
    settings = model.generation_config
    settings.eos_token_id = settings.forced_eos_token_id = None
    settings.max_length = 60
    options = {"num_beams": 3, "decoder_input_ids": inputs["decoder_input_ids"]}
    grown = headloom.trace(
        model, inputs, generate={**options, "max_new_tokens": 6}, keep=headloom.All()
    )
    assert len(grown.sequences["target"]) == 7
    whole = headloom.trace(
        model, {**inputs, "decoder_input_ids": ids_of(grown)}, keep=headloom.All()
    )
    assert_equal(grown, whole)
    own = model.generate(**inputs, num_beams=3, max_new_tokens=7)
    with headloom.watch(model) as watched:
        assert torch.equal(model.generate(**inputs, num_beams=3, max_new_tokens=7), own)
    assert len(watched.traces) == 3


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
        again = torch.tensor([[int(token[1:]) for token in trace.tokens]])
        assert_equal(trace, headloom.trace(model, again, keep=headloom.All()))
    with pytest.raises(headloom.InputError, match="there are 3 traces"):
        _ = watched.trace


def test_no_call_outlives_its_step(family_named, tmp_path) -> None:
    """A call has the keys and values of its step: the whole cache, in every layer."""
    model, inputs = family_named("Llama").build(), family_named("Llama").inputs(padded=False)
    model.generation_config.eos_token_id = None
    alive: list[int] = []

    def count(module, args) -> None:
        alive.append(sum(isinstance(thing, LayerCall) for thing in gc.get_objects()))

    gc.collect()
    gc.disable()
    hook = model.register_forward_pre_hook(count)
    try:
        headloom.trace(model, inputs, generate=6, save=tmp_path / "t", verify=False)
    finally:
        gc.enable()
        hook.remove()
    assert alive == [0] * 7


def test_watch_leaves_gradients_alone(family_named) -> None:
    model = family_named("Llama").build()
    ids = torch.tensor([[5, 6, 7, 8]])
    expected = torch.autograd.grad(model(ids).logits.logsumexp(-1).sum(), model.lm_head.weight)
    with headloom.watch(model) as watched:
        loss = model(ids).logits.logsumexp(-1).sum()
    found = torch.autograd.grad(loss, model.lm_head.weight)
    assert torch.allclose(found[0], expected[0], atol=1e-4)
    assert not watched.trace.layers[0].queries.requires_grad
    assert not watched.trace.layers[0].graph.weights.requires_grad


def test_what_cannot_be_watched_or_generated_says_so(family_named) -> None:
    family = family_named("Llama")
    model, ids = family.build(), torch.tensor([[5, 6, 7, 8]])
    for options, line in (
        (0, "expected a number of tokens"),
        (61, "4 tokens and 61 to generate; LlamaForCausalLM reads 64 at most"),
    ):
        with pytest.raises(headloom.InputError, match=line):
            headloom.trace(model, ids, generate=options)
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
    architecture = Architecture(
        width=16, heads=4, feed_forward=16, decoder_layers=2, positions=positions
    )
    model = LanguageModel(30, architecture).eval()
    grown = headloom.trace(
        model, torch.tensor([3, 4, 5]), generate=5, keep=headloom.All(), save=tmp_path / "t"
    )
    assert grown.positions["tokens"]["generated"] == [False] * 3 + [True] * 5
    ids = torch.tensor([int(token[1:]) for token in grown.tokens])
    assert_equal(grown, headloom.trace(model, ids, keep=headloom.All()))
    with torch.no_grad():
        likeliest = model(ids[None])[0].argmax(-1)
    assert likeliest[2:-1].tolist() == ids[3:].tolist()


def test_a_cache_in_place_that_was_changed_is_named(family_named) -> None:
    """Its tensors are the same at every step: what was changed there must not pass for itself."""
    model = family_named("Qwen3").build()
    ids = torch.arange(20)[None] + 3

    def steps(change: float) -> list[headloom.Trace]:
        cache = transformers.StaticCache(config=model.config, max_cache_len=40)
        with headloom.watch(model, keep=headloom.All()) as watched, torch.no_grad():
            model(input_ids=ids, **cached(model, cache))
            for token in (7, 8, 9):
                model(input_ids=torch.tensor([[token]]), **cached(model, cache))
            cache.layers[0].keys[:, :, 22] += change  # of the last of them
            model(input_ids=torch.tensor([[10]]), **cached(model, cache))
        return list(watched.traces)

    (trace,) = steps(0.0)
    assert len(trace.tokens) == 24
    with pytest.warns(UserWarning, match="the cache holds other keys"):
        assert steps(1.0) == []


def test_headlooms_own_models_are_watched(language_model, translator) -> None:
    ids = torch.tensor([[3, 4, 5, 6]])
    architecture = Architecture(width=16, heads=4, feed_forward=16, decoder_layers=2)
    model = LanguageModel(30, architecture).eval()
    with headloom.watch(model, keep=headloom.All()) as watched, torch.no_grad():
        state = model.start()
        last = model.step(ids, state)
        for _ in range(3):
            last = model.step(last[:, -1].argmax(-1, keepdim=True), state)
        model(ids)
        model(tokens=ids[:, :2])
    assert "step" not in vars(model)
    assert not model._forward_hooks
    assert [len(trace.tokens) for trace in watched.traces] == [7, 4, 2]
    assert watched.traces[0].positions["tokens"]["generated"] == [False] * 4 + [True] * 3
    for trace in watched.traces:
        again = torch.tensor([int(token[1:]) for token in trace.tokens])
        assert_equal(trace, headloom.trace(model, again, keep=headloom.All()))
    inputs = {"source": torch.tensor([[3, 4]]), "target": torch.tensor([[1]])}
    with headloom.watch(translator.eval()) as watched:
        translator(**inputs)
    assert [layer.kind for layer in watched.trace.layers] == ["encoder", "decoder", "cross"]
    with (
        pytest.warns(UserWarning, match="the cache holds other keys"),
        headloom.watch(model),
        torch.no_grad(),
    ):
        state = model.start()
        model.step(torch.tensor([[3, 4], [5, 6]]), state)
        state.reorder(torch.tensor([1, 0]))
        model.step(torch.tensor([[7], [8]]), state)


def test_headlooms_translators_do_not_continue_texts(translator) -> None:
    inputs = {"source": torch.tensor([3, 4]), "target": torch.tensor([1])}
    with pytest.raises(headloom.InputError, match="generate= is for language models"):
        headloom.trace(translator, inputs, generate=3)


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
            prompt,
            max_new_tokens=6,
            do_sample=False,
            output_attentions=True,
            return_dict_in_generate=True,
        )
    assert list(grown.sequences) == ["tokens"]
    assert [int(token[1:]) for token in grown.tokens] == passes.sequences[0, :9].tolist()
    for number, layer in enumerate(grown.layers):
        rows = [weights[number][0] for weights in passes.attentions]
        expected = torch.cat(
            [torch.nn.functional.pad(row, (0, 9 - row.shape[-1])) for row in rows], 1
        )
        assert layer.shape == (4, 9, 9)
        assert torch.allclose(layer.graph.dense(), expected, atol=2e-6)
        assert torch.allclose(layer.matrix.dense(), expected, atol=2e-6)
    assert grown.deviation < 5e-6


def test_a_model_that_reads_its_text_anew_for_every_token_is_refused(
    family_named, monkeypatch
) -> None:
    model = family_named("Llama").build()
    own = type(model).forward

    def without_cache(self, *args, cache=None, past_key_values=None, use_cache=None, **given):
        return own(self, *args, **given, use_cache=False)

    monkeypatch.setattr(type(model), "forward", without_cache)
    with pytest.raises(headloom.InputError, match="reads its whole text anew for every token"):
        headloom.trace(model, torch.tensor([[5, 6, 7, 8]]), generate=3)
    assert model.config._attn_implementation == "eager"


def test_a_second_turn_goes_on_behind_the_end_token_of_the_first(family_named) -> None:
    family = family_named("Llama")
    model = family.build().eval()
    prompt = family.inputs(padded=False)["input_ids"][:1, :6]
    options = {"do_sample": False, "pad_token_id": 0}
    model.generation_config.eos_token_id = None
    first = model.generate(prompt, max_new_tokens=4, **options)
    model.generation_config.eos_token_id = int(first[0, -1])
    options |= cached(model, transformers.DynamicCache(config=model.config))
    with headloom.watch(model) as watched, torch.no_grad():
        said = model.generate(prompt, max_new_tokens=8, **options)
        turn = torch.cat((said, prompt[:, :5]), 1)
        whole = model.generate(turn, max_new_tokens=3, min_new_tokens=3, **options)
    # All but the last token, which nothing has read.
    assert watched.trace.layers[0].shape[1:] == (whole.shape[1] - 1, whole.shape[1] - 1)


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


def test_padding_is_cut_off_where_the_cache_is_of_fixed_size(family_named) -> None:
    family = family_named("Llama")
    model = family.build().eval()
    model.generation_config.eos_token_id = None
    ids = family.inputs(padded=False)["input_ids"][:1, :6]
    padded = torch.cat((torch.zeros(1, 4, dtype=torch.long), ids), 1)
    inputs = {"input_ids": padded, "attention_mask": (torch.arange(10) >= 4).long()[None]}
    options = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 0}
    grown = headloom.trace(model, inputs, generate=options)
    fixed = headloom.trace(model, inputs, generate=options | {"cache_implementation": "static"})
    assert grown.layers[0].shape[1:] == (9, 9)
    assert fixed.layers[0].shape[1:] == (9, 9)
    assert torch.allclose(fixed.layers[0].graph.dense(), grown.layers[0].graph.dense(), atol=2e-6)


@pytest.mark.parametrize("name", ["Llama", "Gemma 2", "BART"])
def test_a_watched_generation_with_a_cache_of_fixed_size_is_verified(family_named, name) -> None:
    family = family_named(name)
    model = family.build().eval()
    if name in HEADED:
        model = getattr(transformers, HEADED[name])(model.config).eval()
    model.generation_config.eos_token_id = None
    ids = family.inputs(padded=False)["input_ids"][:1, :6]
    inputs = {"input_ids": ids}
    if name == "Llama":
        padded = torch.cat((torch.zeros(1, 4, dtype=torch.long), ids), 1)
        inputs = {"input_ids": padded, "attention_mask": (torch.arange(10) >= 4).long()[None]}
    with headloom.watch(model) as watched, torch.no_grad():
        model.generate(
            **inputs, max_new_tokens=3, do_sample=False, pad_token_id=0,
            cache_implementation="static",
        )  # fmt: skip
    assert watched.trace.verification["weights"] < 1e-5


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
        pytest.warns(UserWarning, match="one that is quantised rounds them"),
        headloom.watch(model, verify=False) as watched,
    ):
        for token in torch.arange(3, 12):
            model(token.reshape(1, 1), **cached(model, cache))
    assert watched.traces == []
