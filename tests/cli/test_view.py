"""What `headloom view` opens of a run."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from headloom.api.view import open_studio
from headloom.formats.history import History
from headloom.studio.page import page_html
from headloom.studio.runs import open_collection, open_traces


def test_a_run_is_its_probe_its_history_and_its_curves(runs: Path) -> None:
    for name, kinds in (("dates", {"encoder", "decoder", "cross"}), ("language", {"decoder"})):
        collection = open_collection(runs / name)
        assert [example.name for example in collection.examples] == ["the probe"]
        probe = collection.examples[0].trace
        assert {layer.kind for layer in probe.layers} == kinds
        assert collection.history is not None
        found = collection.history.description
        assert found["steps"] == History(runs / name / "history").steps
        assert found["steps"][0] == 0
        assert set(found["curves"]) <= {"training loss", "validation loss"} and found["curves"]
        snapshots = len(found["steps"])
        for number, layer in enumerate(found["layers"]):
            heads, queries, keys = layer["shape"]
            assert len(collection.history.weights[number]) == snapshots * heads * queries * keys
            assert len(layer["norm"]) == snapshots and len(layer["norm"][0]) == heads
        assert "headloom-data" in page_html(collection)


def test_no_such_path_is_one_line(headloom_main, tmp_path: Path) -> None:
    result = headloom_main("view", tmp_path / "nowhere", "--no-browser")
    assert result.code == 2
    assert result.err.count("\n") == 1 and "nowhere" in result.err


def test_what_is_no_trace_is_told_the_next_step(
    headloom_main: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    text = tmp_path / "text.txt"
    text.write_text("The cat sees the dog.")
    picture = tmp_path / "cat.JPG"
    picture.write_bytes(b"no matter")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "small.gguf").write_bytes(b"GGUF")
    for path, step in (
        (text, f"headloom trace minilm --file {text}"),
        (picture, f"To trace an image: headloom trace MODEL --file {picture}"),
        ("someone/Model-0.5B", "or the name of a model."),
        ("nowhere.loom", "no such trace or run. Try: headloom view minilm"),
        (tmp_path / "models", f"Give one of them: {tmp_path / 'models' / 'small.gguf'}"),
    ):
        said = headloom_main("view", path, "--no-browser").one_line()
        assert said.startswith(f"headloom: {path}: ") and said.endswith(step), said


def test_a_text_can_be_typed_where_a_model_reads_it(runs: Path, tmp_path: Path) -> None:
    for name in ("dates", "language"):
        assert open_studio(runs / name).opening()["asks"] == name
    for missing in ("best.safetensors", "vocabulary.json"):
        run = Path(shutil.copytree(runs / "dates", tmp_path / missing))
        (run / missing).unlink()
        assert open_studio(run).opening()["asks"] is None


def test_several_traces_are_named_apart(make_trace, headloom_main, tmp_path: Path) -> None:
    paths = [tmp_path / "before" / "dog.loom", tmp_path / "after" / "dog.loom", tmp_path / "x.loom"]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        make_trace(["a", "b"]).save(path)
    assert open_traces(paths[1:]).opening()["examples"] == ["dog", "x"]
    assert open_traces(paths[:2]).opening()["examples"] == ["before/dog", "after/dog"]
    for command in (
        ("view", paths[0], tmp_path / "nowhere", "--no-browser"),
        ("view", paths[0], paths[1], "--text", "x", "--no-browser"),
        ("view", paths[0], paths[0].parent, "--no-browser"),
    ):
        result = headloom_main(*command)
        assert result.code == 2 and result.err.count("\n") == 1


def test_a_person_at_a_terminal_is_told_how_to_end(
    make_trace: Any, headloom_main: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_trace(["a", "b"]).save(tmp_path / "dog.loom")
    monkeypatch.setattr("headloom.studio.serving.Viewer.run", lambda viewer: viewer.close())
    seen = ("view", tmp_path / "dog.loom", "--no-browser", "--port", "0")
    assert headloom_main(*seen).err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    result = headloom_main(*seen)
    assert result.out.startswith("http://127.0.0.1:") and result.out.count("\n") == 1
    assert result.err == "headloom: Open it in a browser; press Ctrl-C here to stop.\n"
