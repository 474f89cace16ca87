"""`headloom import`: what other programs saved, as a trace."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.cli.conftest import Command
from tests.tracing.conftest import GROUPED

import headloom

transformers = pytest.importorskip("transformers")

#: Turned by their positions, fewer heads of keys, and a window.
SIZES = {**GROUPED, "num_hidden_layers": 3, "sliding_window": 5}


def caught(model, inputs) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Queries, keys and values of each layer, as torch's fused attention gets them: by a function
    of the library's own interface, without headloom.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

    found = []

    def attention(module, queries, keys, values, mask, **options):
        found.append(tuple(part[0].clone() for part in (queries, keys, values)))
        return sdpa_attention_forward(module, queries, keys, values, mask, **options)

    transformers.AttentionInterface.register("caught_by_a_test", attention)
    transformers.AttentionMaskInterface.register("caught_by_a_test", sdpa_mask)
    before = model.config._attn_implementation
    model.set_attn_implementation("caught_by_a_test")
    try:
        with torch.no_grad():
            model(**inputs)
    finally:
        model.set_attn_implementation(before)
    return found


def assert_same_graph(one: headloom.Trace, other: headloom.Trace) -> None:
    for first, second in zip(one.layers, other.layers, strict=True):
        assert (first.kind, first.shape, first.mask) == (second.kind, second.shape, second.mask)
        assert torch.equal(first.graph.keys, second.graph.keys)
        assert torch.equal(first.graph.count, second.graph.count)
        # Two runs of a model: on a busy machine, MKL splits its sums otherwise in each.
        for name, most in (("weights", 2e-6), ("entropy", 2e-5), ("rest", 2e-6)):
            given, traced = getattr(first.graph, name), getattr(second.graph, name)
            difference = float((given - traced).abs().max())
            assert difference <= most, (name, difference)


@pytest.mark.parametrize("form", ["npy", "npz", "safetensors"])
def test_a_dump_gives_the_graph_of_tracing_the_model(
    headloom_main: Command, tmp_path: Path, form: str
) -> None:
    torch.manual_seed(3)
    config = transformers.MistralConfig(**SIZES, attn_implementation="sdpa")
    model = transformers.MistralModel(config).eval()
    ids = torch.randint(3, 60, (1, 20), generator=torch.Generator().manual_seed(1))
    dump, options = tmp_path / "dump", []
    dump.mkdir()
    layers = caught(model, {"input_ids": ids})
    arrays = {
        f"layers.{number}.{part}": tensor.numpy()
        for number, layer in enumerate(layers)
        for part, tensor in zip("qkv", layer, strict=True)
    }
    if form == "npy":
        for title, array in arrays.items():
            np.save(dump / f"{title}.npy", array)
        np.save(dump / "input_ids.npy", ids.numpy())
    elif form == "npz":
        np.savez_compressed(dump / "all.npz", input_ids=ids.numpy(), **arrays)
    else:  # a file for each layer, as engines that hold a part of the layers write them
        for number, layer in enumerate(layers):
            names = (f"{part}_proj" for part in "qkv")
            save_file(
                {name: part.contiguous() for name, part in zip(names, layer, strict=True)},
                dump / f"layer_{number:03}.safetensors",
            )
        (tmp_path / "ids.json").write_text(json.dumps(ids[0].tolist()))
        options = ["--tokens", tmp_path / "ids.json"]
    words = ("import", dump, "-o", tmp_path / "given.loom", "--keep", 6, "--mask", "window:5")
    result = headloom_main(*words, *options)
    assert result.code == 0, result.err
    given = headloom.open(tmp_path / "given.loom")
    traced = headloom.trace(model, {"input_ids": ids}, keep=headloom.Top(6))
    assert_same_graph(given, traced)
    assert given.tokens == traced.tokens
    for one, other in zip(given.layers, traced.layers, strict=True):
        assert torch.allclose(one.value_norms, other.value_norms)
        assert torch.allclose(one.matrix.to_dense(), other.matrix.to_dense(), rtol=0, atol=2e-6)


@pytest.fixture
def traced(tmp_path: Path, headloom_main: Command) -> Path:
    """A trace with every edge, and its edges as headloom writes them for others."""
    queries, keys = torch.randn(2, 2, 3, 8, 4, generator=torch.Generator().manual_seed(0))
    trace = headloom.from_queries_keys(
        queries, keys, mask=headloom.causal(), tokens=[f"t{i}" for i in range(8)]
    )
    trace.save(tmp_path / "t.loom")
    written = headloom_main("export", tmp_path / "t.loom", "--parquet", tmp_path / "e.parquet")
    assert written.code == 0
    return tmp_path


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_edges_come_back_as_they_went(headloom_main: Command, traced: Path, form: str) -> None:
    import pyarrow.csv
    import pyarrow.parquet as pq

    table = pq.read_table(traced / "e.parquet")
    if form == "csv":
        pyarrow.csv.write_csv(table, traced / "e.csv")
    result = headloom_main(
        "import", traced / f"e.{form}", "-o", traced / "e.loom", "--mask", "causal"
    )
    assert result.code == 0, result.err
    before, after = headloom.open(traced / "t.loom"), headloom.open(traced / "e.loom")
    assert after.tokens == before.tokens
    assert after.layers[0].matrix is None
    for one, other in zip(before.layers, after.layers, strict=True):
        assert (one.name, one.kind, one.mask) == (other.name, other.kind, other.mask)
        assert torch.equal(one.graph.keys[..., :8], other.graph.keys)
        assert torch.equal(one.graph.count, other.graph.count)
        assert torch.allclose(one.graph.weights[..., :8], other.graph.weights, atol=1e-6)
        assert torch.allclose(one.graph.entropy, other.graph.entropy, atol=1e-5)
    assert set(after.heads()["source"]) == {"exact"}


def test_the_strongest_edges_alone_are_never_called_exact(
    headloom_main: Command, traced: Path
) -> None:
    import pyarrow.parquet as pq

    table = pq.read_table(traced / "e.parquet").to_pandas()
    few = table.sort_values("weight", ascending=False).groupby(["layer", "head", "query"]).head(2)
    few[["layer", "head", "query", "key", "weight"]].to_csv(traced / "few.csv", index=False)
    words = ("import", traced / "few.csv", "-o", traced / "few.loom", "--mask", "causal")
    assert "--strongest" in headloom_main(*words).one_line()
    assert not (traced / "few.loom").exists()
    assert headloom_main(*words, "--strongest").code == 0
    assert "exact" not in set(headloom.open(traced / "few.loom").heads()["source"])


Q = np.ones((2, 5, 4), np.float32)


@pytest.mark.parametrize(
    ("arrays", "layers"),
    [
        (["layer_0_q", "layer_0_k", "layer_10_q", "layer_10_k", "layer_9_q", "layer_9_k"],
         ["layer_0", "layer_9", "layer_10"]),
        (["model.layers.3.self_attn.q_proj", "model.layers.3.self_attn.k_proj"],
         ["model.layers.3.self_attn"]),
        (["blocks.1.attn.hook_q", "blocks.1.attn.hook_k", "blocks.1.attn.hook_z"],
         ["blocks.1.attn.hook"]),
        (["L2/key_states", "L2/query_states"], ["L2"]),
        (["q", "k"], ["layers.0"]),
        # As they run: an encoder first, in a decoder's layer its own attention before the other.
        (["decoder.0.encoder_attn.weights", "decoder.0.self_attn.weights",
          "encoder.10.self_attn.weights", "encoder.9.self_attn.weights"],
         ["encoder.9.self_attn", "encoder.10.self_attn", "decoder.0.self_attn",
          "decoder.0.encoder_attn"]),
    ],
)  # fmt: skip
def test_names_say_what_is_what(
    headloom_main: Command, tmp_path: Path, arrays: list[str], layers: list[str]
) -> None:
    weights = np.full((2, 5, 5), 0.2, np.float32)
    np.savez(tmp_path / "a.npz", **dict.fromkeys(arrays, weights if "weights" in arrays[0] else Q))
    words = ("import", tmp_path / "a.npz", "-o", tmp_path / "t", "--mask", "all", "--json")
    left = [name for name in arrays if name.endswith("hook_z")]
    assert headloom_main(*words).json()["left_out"] == left
    assert [layer.name for layer in headloom.open(tmp_path / "t").layers] == layers


@pytest.mark.parametrize(
    ("arrays", "options", "line"),
    [
        (["a", "b"], [], "found no queries, keys or weights among a, b"),
        (["layer_0_q"], [], "found layer_0: queries"),
        (["layer_0_q", "layer_0_query", "layer_0_k"], [], "are both queries of one layer"),
        (["q", "k"], ["--mask", "window:0"], "expected causal, all, or window:N"),
        (["q", "k"], ["--tokens", "tokens.json"], "expected a list of texts or ids"),
    ],
)  # fmt: skip
def test_what_import_does_not_take(
    headloom_main: Command, tmp_path: Path, arrays: list[str], options: list[str], line: str
) -> None:
    np.savez(tmp_path / "a.npz", **dict.fromkeys(arrays, Q))
    (tmp_path / "tokens.json").write_text('{"tokens": ["a", 1.5]}')
    options = [str(tmp_path / word) if word == "tokens.json" else word for word in options]
    result = headloom_main(
        "import", tmp_path / "a.npz", "-o", tmp_path / "t", "--mask", "all", *options
    )
    assert line in result.one_line()
    assert not (tmp_path / "t").exists()


def test_what_no_file_says_must_be_said(headloom_main: Command, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", q=Q, k=Q)
    (tmp_path / "model.pt").write_bytes(b"anything")
    for name, line in (
        ("a.npz", "need a mask. Give causal"),
        ("model.pt", "would run code that is in them"),
        ("no.npz", "no such file"),
    ):
        assert line in headloom_main("import", tmp_path / name, "-o", tmp_path / "t").one_line()
    (tmp_path / "tokens.txt").write_bytes(b"a\r\nb\r\n\r\nd\r\ne\r\n")
    words = ("import", tmp_path / "a.npz", "-o", tmp_path / "t", "--mask", "all", "--tokens")
    assert headloom_main(*words, tmp_path / "tokens.txt").code == 0
    assert headloom.open(tmp_path / "t").tokens == ["a", "b", "", "d", "e"]


def test_another_layout(headloom_main: Command, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    arrays = {f"x_{n}_{part}": generator.normal(size=(5, 2, 4)) for n in (1, 0) for part in "qk"}
    np.savez(tmp_path / "a.npz", **arrays)
    words = ("import", tmp_path / "a.npz", "-o", tmp_path / "t", "--mask", "causal")
    assert headloom_main(*words, "--layout", "NHD").code == 0
    trace = headloom.open(tmp_path / "t")
    assert trace.layers[1].shape == (2, 5, 5)
    scores = np.einsum("nhd,mhd->hnm", arrays["x_1_q"], arrays["x_1_k"]) / 2
    scores[:, np.triu(np.ones((5, 5), bool), 1)] = -np.inf
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    assert np.allclose(trace.layers[1].graph.to_dense().numpy(), weights, atol=2e-6)


def test_a_stack_is_many_layers_and_a_batch_is_refused(
    headloom_main: Command, tmp_path: Path
) -> None:
    np.savez(tmp_path / "a.npz", q=np.stack([Q] * 3), k=np.stack([Q] * 3))
    words = ("import", tmp_path / "a.npz", "-o", tmp_path / "t", "--mask", "all")
    assert headloom_main(*words).code == 0
    assert len(headloom.open(tmp_path / "t").layers) == 3
    assert "exists already" in headloom_main(*words).one_line()
    np.savez(tmp_path / "a.npz", layer_0_q=np.stack([Q] * 3), layer_0_k=np.stack([Q] * 3))
    assert "a batch of 3 inputs" in headloom_main(*words, "--overwrite").one_line()
    assert len(headloom.open(tmp_path / "t").layers) == 3
