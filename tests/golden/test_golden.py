"""headloom gives what formulas and other libraries gave when make.py wrote it down."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

pytest.importorskip("transformers")
from tests.golden.models import MODELS, filled, ids

import headloom
import headloom.cli

HERE = Path(__file__).parent
WORDS = json.loads((HERE / "words.json").read_text("utf-8"))
#: By the type of a model. A trace is of float32: a score of 16 is within 1e-6, and so its weight.
CLOSE = {torch.float64: {"rtol": 1e-6, "atol": 1e-6}, torch.float32: {"rtol": 5e-6, "atol": 2e-6}}


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    return dict(np.load(HERE / "golden.npz"))


def traced(name: str, dtype: torch.dtype, **options: Any) -> list[headloom.Trace]:
    build, inputs = MODELS[name]
    inputs = {key: x.to(dtype) if x.is_floating_point() else x for key, x in inputs.items()}
    trace = headloom.trace(filled(build()).to(dtype), inputs, **options)
    return trace if isinstance(trace, list) else [trace]


def headloom_main(*arguments: object) -> None:
    with pytest.raises(SystemExit) as stop:
        headloom.cli.main([str(argument) for argument in arguments])
    assert not stop.value.code


@pytest.mark.parametrize("name", MODELS)
def test_every_weight(name: str, golden: dict[str, Any]) -> None:
    for dtype, close in CLOSE.items():
        traces = traced(name, dtype, keep=headloom.All())
        assert [trace.sequences for trace in traces] == WORDS[name]["samples"]
        for sample, trace in enumerate(traces):
            layers = [[x.name, x.kind, x.queries_from, x.keys_from] for x in trace.layers]
            assert layers == WORDS[name]["layers"]
            for place, layer in enumerate(trace.layers):
                weights = golden[f"{name}/{sample}/{place}"]
                assert_allclose(layer.graph.to_dense(), weights, **close)
                if name == "gat":  # whose scores are no products of queries and keys
                    continue
                assert_allclose(layer.matrix.to_dense(), weights, **close)
                assert_allclose(layer.matrix[2, 1:5, :4], weights[2, 1:5, :4], **close)
                assert_allclose(layer.matrix.received(), weights.sum(1), rtol=5e-6, atol=5e-6)
                column = layer.matrix.head(2) @ np.eye(weights.shape[2])[1]
                assert_allclose(column, weights[2, :, 1], **close)


@pytest.mark.parametrize("name", MODELS)
def test_strongest_edges_and_row_statistics(name: str, golden: dict[str, Any]) -> None:
    close = CLOSE[torch.float32]
    for sample, trace in enumerate(traced(name, torch.float32, keep=headloom.Top(3))):
        for place, layer in enumerate(trace.layers):
            weights, graph = golden[f"{name}/{sample}/{place}"], layer.graph
            strongest = -np.sort(-weights, -1)[..., :3]
            assert_allclose(graph.weights, strongest, **close)
            edges = np.take_along_axis(weights, graph.keys.numpy().clip(0), -1)
            assert_allclose(edges * (graph.keys.numpy() >= 0), strongest, **close)
            assert_allclose(graph.rest, 1 - strongest.sum(-1), atol=5e-6)
            assert (graph.count.numpy() == (weights > 0).sum(-1)).all()
            if name != "gpt-oss":  # whose rows are more than their keys
                entropy = -(weights * np.log(weights + (weights == 0))).sum(-1)
                assert_allclose(graph.entropy, entropy, rtol=1e-5, atol=1e-5)


def test_rollout(golden: dict[str, Any]) -> None:
    (trace,) = traced("gpt2", torch.float32)
    first, second = (golden[f"gpt2/0/{place}"].mean(0) / 2 + np.eye(12) / 2 for place in range(2))
    assert_allclose(trace.rollout(), second @ first, **CLOSE[torch.float32])


def page_rows(form: str, text: str) -> list[dict[int, float]]:
    """The edges of each row of a head, weight by key, as a page holds them."""
    rows, kept, left_out, width, _ = map(int, form.removeprefix("edges:").split(","))
    content = zlib.decompress(base64.b85decode(text.translate(str.maketrans(",./", "&<>"))))

    def numbers(part: bytes, width: int) -> Any:
        """First bytes of all numbers come first, then second ones."""
        planes = np.frombuffer(part, np.uint8).reshape(width, -1).T
        return np.ascontiguousarray(planes).view(f"<u{width}").reshape(rows, kept)

    weights = (numbers(content[: 4 * rows * kept], 4) << left_out).view("<f4").tolist()
    keys = (numbers(content[-width * rows * kept :], width).cumsum(1) % 256**width).tolist()
    pairs = (zip(*row, strict=True) for row in zip(keys, weights, strict=True))
    return [{key: weight for key, weight in row if key != 256**width - 1} for row in pairs]


def test_exported_page(tmp_path: Path, golden: dict[str, Any]) -> None:
    (trace,) = traced("translator", torch.float32, keep=headloom.Top(4))
    trace.save(tmp_path / "t.loom")
    headloom_main("export", tmp_path / "t.loom", "--html", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    pieces = json.loads(re.findall(r'id="headloom-data">(.*?)</script>', page, re.DOTALL)[0])
    example = pieces["examples/0"][1]
    assert [example["sequences"]] == WORDS["translator"]["samples"]
    layers = [[x["name"], x["kind"], x["queries"], x["keys"]] for x in example["layers"]]
    assert layers == WORDS["translator"]["layers"]
    for place, head in np.ndindex(6, 4):
        rows = page_rows(*pieces[f"examples/0/layers/{place}/heads/{head}/edges/0"])
        for weights, edges in zip(golden[f"translator/0/{place}"][head], rows, strict=True):
            keys = [key for key in np.argsort(-weights)[:4].tolist() if weights[key]]
            assert edges == {key: pytest.approx(weights[key], 5e-6, 2e-6) for key in keys}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden") / "run"
    headloom_main("train", HERE / "run.toml", "--run", folder, "--threads", "1")
    return folder


def test_history_of_a_run(run: Path) -> None:
    golden = dict(np.load(HERE / "run.npz"))
    for snapshot in headloom.History(run / "history"):
        step = snapshot.step
        # Later steps carry on what machines round differently.
        near = 1e-4 if step else 1e-6
        assert_allclose(np.array(snapshot.loss, float), golden.pop(f"{step}/loss"), rtol=near)
        for layer in snapshot.layers:
            for name, matrix in layer.matrices.items():
                assert_allclose(matrix, golden.pop(f"{step}/{layer.name}/{name}"), near, near)
            if step == 8:
                weights = golden.pop(f"8/{layer.name}/probe")
                assert_allclose(layer.graph.to_dense(), weights, rtol=1e-4, atol=1e-4)
            product = (layer.matrices["W_Q"] @ layer.matrices["W_K"].mT).double()
            symmetry = (product * product.mT).sum((1, 2)) / product.square().sum((1, 2))
            assert_allclose(layer.measures["symmetry"], symmetry, rtol=1e-4, atol=1e-5)
    assert not golden


def test_a_run_in_two_parts_has_the_same_bits(run: Path, tmp_path: Path) -> None:
    half = tmp_path / "half.toml"
    half.write_text((HERE / "run.toml").read_text().replace("max_steps = 8", "max_steps = 4"))
    for config in (half, HERE / "run.toml"):
        headloom_main("train", config, "--run", tmp_path / "run", "--threads", "1")
    files = sorted((run / "history").iterdir())
    assert len(files) == 5
    for path in [*files, run / "best.safetensors"]:
        assert (tmp_path / "run" / path.relative_to(run)).read_bytes() == path.read_bytes()


def test_effects_of_heads(golden: dict[str, Any]) -> None:
    """Ablation, patching and attribution patching."""
    from headloom.analysis.effects.ablation import ablate, patch
    from headloom.analysis.effects.estimates import estimate

    model = filled(MODELS["gpt2"][0]())

    def output(step: int = 7) -> torch.Tensor:
        return model(ids(12, step)).last_hidden_state[0, -1, 0]

    place = {"source": lambda: output(5), "positions": [4]}
    results = {
        "zero": ablate(model, output),
        "patch": patch(model, output, **place),
        "estimate": estimate(model, output, kind="patch", **place),
    }
    for name, result in results.items():
        changes = np.reshape([effect.change for effect in result.effects], (2, 4))
        assert_allclose(changes, golden[f"effects/{name}"], rtol=1e-4, atol=1e-6, err_msg=name)
