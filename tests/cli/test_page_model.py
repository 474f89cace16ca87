"""The model of a page: its graphs in ONNX Runtime against the models themselves."""

import base64
import zlib
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from onnx_ir import serde
from scipy.special import softmax
from tests.slow import slow
from torch import nn

import headloom
from headloom.analysis.effects.ablation import ablate
from headloom.api import page_model
from headloom.api.page_graphs import PageGraph, page_graphs
from headloom.api.page_model import Stored

TOKENS = 7
#: Digits of base 85 of a page, and those of Python's base64 module.
OURS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%,()*+-;.=/?@^_`{|}~"
THEIRS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"


def outputs_of(
    graph: PageGraph, ids: torch.Tensor, gates: np.ndarray
) -> tuple[dict[str, np.ndarray], onnxruntime.InferenceSession]:  # fmt: skip
    """Return the outputs of a graph on a whole text by name, and its session."""
    content = serde.serialize_model(graph.to_onnx()).SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    feed = {"input_ids": ids.numpy(), "gates": gates.astype(np.float32)}
    for number, call in enumerate(graph.calls):
        for part, like in (("keys", call.keys), ("values", call.values)):
            none = np.zeros((1, like.shape[1], 0, like.shape[3]), np.float32)
            feed[f"past_{part}.{number}"] = none
    names = graph.names[1]
    return dict(zip(names, session.run(names, feed), strict=True)), session


def language_model(positions: str) -> nn.Module:
    torch.manual_seed(1)
    return headloom.LanguageModel(
        vocabulary=40, width=32, heads=4, kv_heads=2, layers=2, feed_forward=64,
        positions=positions, max_length=64,
    ).eval()  # fmt: skip


@pytest.mark.parametrize("positions", ["shaw", *slow("rotary", "learned", "buckets")])
def test_a_language_model_step_by_step(positions: str) -> None:
    model = language_model(positions)
    (graph,) = page_graphs(model)
    ids = torch.randint(0, 40, (1, TOKENS))
    found, session = outputs_of(graph, ids, np.ones((2, 4)))
    with torch.no_grad():
        expected = model(ids)
    np.testing.assert_allclose(found["logits"][0, 0], expected[0, -1], atol=1e-5)

    # One more token with the keys and values of the first ones.
    past = {f"past_{name}": found[name] for name in found if name.startswith(("keys", "values"))}
    feed = {"input_ids": np.array([[3]]), "gates": np.ones((2, 4), np.float32), **past}
    with torch.no_grad():
        expected = model(torch.cat((ids, torch.tensor([[3]])), 1))
    np.testing.assert_allclose(session.run(["logits"], feed)[0][0, 0], expected[0, -1], atol=1e-5)


@pytest.mark.parametrize("kind", ["gemma", *slow("llama", "gpt2")])
def test_a_model_of_transformers_with_eager_weights(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    sizes = {
        "vocab_size": 40, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    if kind == "llama":
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
    elif kind == "gemma":
        config = transformers.Gemma2Config(**sizes, head_dim=8, sliding_window=3)
        model = transformers.Gemma2ForCausalLM(config)
    else:
        config = transformers.GPT2Config(
            vocab_size=40, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=1,
            eos_token_id=2,
        )  # fmt: skip
        model = transformers.GPT2LMHeadModel(config)
    model.eval()
    before = model.config._attn_implementation
    (graph,) = page_graphs(model)
    ids = torch.randint(0, 40, (1, TOKENS))
    found, _ = outputs_of(graph, ids, np.ones((2, 4)))
    assert model.config._attn_implementation == before

    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(ids, output_attentions=True)
    np.testing.assert_allclose(found["logits"][0, 0], expected.logits[0, -1], atol=1e-5)
    ahead = np.arange(TOKENS) - np.arange(TOKENS)[:, None]
    for number, call in enumerate(graph.calls):
        keys = found[f"keys.{number}"][0]
        keys = keys.repeat(4 // len(keys), 0)
        scores = call.scale * found[f"queries.{number}"][0] @ keys.transpose(0, 2, 1)
        if call.softcap:
            scores = call.softcap * np.tanh(scores / call.softcap)
        hidden = (ahead > 0) | (ahead <= -(call.window or 99))
        weights = softmax(np.where(hidden, -np.inf, scores), -1)
        np.testing.assert_allclose(weights, expected.attentions[number][0], atol=1e-6)


def test_a_head_that_is_switched_off_is_ablated() -> None:
    model = language_model("rotary")
    (graph,) = page_graphs(model)
    ids = torch.randint(0, 40, (1, TOKENS))
    gates = np.ones((2, 4))
    gates[1, 2] = 0
    found, _ = outputs_of(graph, ids, gates)
    ablated = ablate(model, lambda: float(model(ids)[0, -1, 5]), heads=[(1, 2)])
    assert found["logits"][0, 0, 5] == pytest.approx(ablated.effects[0].value, abs=1e-5)


def test_weights_in_8_bits() -> None:
    numbers = np.random.default_rng(1).standard_normal((64, 192)).astype(np.float32)
    stored = Stored(8)
    stored.add("bias", numbers[0])
    rounded = stored.add("matrix", numbers)
    bias, matrix = stored.table
    assert (bias["bits"], matrix["bits"]) == (32, 8)
    # A divisor of the row, up to 128, shares a scale: half a step of it is the largest error.
    assert matrix["rows"] == 64 * 2
    steps = np.abs(numbers.reshape(-1, 96)).max(1) / 127
    assert (np.abs(rounded - numbers).reshape(-1, 96).max(1) <= steps / 2 * (1 + 1e-5)).all()

    packed = dict(stored.pieces("model"))["model/bytes/0"][1]
    whole = zlib.decompress(base64.b85decode(packed.translate(str.maketrans(OURS, THEIRS))))
    again = np.frombuffer(whole, np.int8).reshape(-1, 96) * stored.floats[1][:, None]
    np.testing.assert_array_equal(again.reshape(numbers.shape), rounded)


@pytest.mark.slow
def test_wrong_weights_are_no_page_of_8_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = page_model._weights
    monkeypatch.setattr(page_model, "_weights", lambda *call: right(*call)[::-1])
    with pytest.raises(headloom.VerificationError, match="Nothing was written"):
        headloom.export("minilm", live=True, html=tmp_path / "x.html", bits=8)
    assert list(tmp_path.iterdir()) == []


def test_what_a_page_cannot_have(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    with pytest.raises(headloom.HeadloomError, match="not supported"):
        page_graphs(nn.Linear(2, 2))
    config = transformers.ModernBertConfig(
        vocab_size=40, hidden_size=32, intermediate_size=64, num_hidden_layers=3,
        num_attention_heads=4, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1,
        sep_token_id=2,
    )  # fmt: skip
    with pytest.raises(headloom.InputError, match="sees later ones too"):
        page_graphs(transformers.ModernBertModel(config))
    with pytest.raises(headloom.HeadloomError, match="html"):
        headloom.export("minilm", live=True)
    page, picture = tmp_path / "x.html", tmp_path / "x.png"
    with pytest.raises(headloom.HeadloomError, match="one page"):
        headloom.export("minilm", live=True, html=page, picture=picture)


def test_only_a_page_of_headloom_is_replaced(tmp_path: Path) -> None:
    from headloom.studio.page import _not_a_page

    folder = tmp_path / "page"
    (folder / "parts").mkdir(parents=True)
    (folder / "index.html").write_text("<p>mine</p>")
    assert _not_a_page(folder) == "it is no page of headloom"
    (folder / "index.html").write_text('<meta name="generator" content="headloom 0.1.0">')
    (folder / "parts" / "0.js").touch()
    assert _not_a_page(folder) is None
    (folder / "parts" / "mine.js").touch()
    assert "mine.js" in str(_not_a_page(folder))
