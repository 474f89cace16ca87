"""A folder is there whole or not at all, whenever its writer is killed; leftovers are put right."""

from __future__ import annotations

import errno
import os
import signal
import textwrap
from pathlib import Path

import pytest
from tests.forked import Loaded

import headloom
from headloom.errors import DataError
from headloom.formats import folders
from headloom.formats.folders import atomic_folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(params=["exchange", "two renames"])
def swap(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A system that can let two names change places, and one that cannot."""
    if request.param == "two renames":
        monkeypatch.setattr(folders, "_exchange", lambda one, other: False)
    found: str = request.param
    return found


def test_a_folder_appears_at_the_end(tmp_path: Path, swap: str) -> None:
    with atomic_folder(tmp_path / "f") as folder:
        (folder / "x").write_text("x")
        assert not (tmp_path / "f").exists()
    assert names(tmp_path / "f") == ["x"]
    with pytest.raises(DataError, match="exists already"), atomic_folder(tmp_path / "f"):
        pass
    with atomic_folder(tmp_path / "f", lambda path: None) as folder:
        (folder / "y").write_text("y")
    assert names(tmp_path / "f") == ["y"]
    with pytest.raises(RuntimeError), atomic_folder(tmp_path / "f", lambda path: None):
        raise RuntimeError
    with (
        pytest.raises(DataError, match=r"f is not overwritten: it is dear\."),
        atomic_folder(tmp_path / "f", lambda path: "it is dear"),
    ):
        pass
    assert names(tmp_path / "f") == ["y"]
    assert names(tmp_path) == ["f"]


@pytest.mark.parametrize("step", [1, 2])
def test_a_swap_that_fails_puts_the_old_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr(folders, "_exchange", lambda one, other: False)
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "old").touch()
    rename, calls = Path.rename, []

    def failing(one: Path, to: Path) -> Path:
        calls.append(to)
        if len(calls) == step:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return rename(one, to)

    monkeypatch.setattr(Path, "rename", failing)
    with (
        pytest.raises(DataError, match="input/output error"),
        atomic_folder(tmp_path / "f", lambda _: None) as folder,
    ):
        (folder / "new").touch()
    assert names(tmp_path) == ["f"]
    assert names(tmp_path / "f") == ["old"]


def test_a_folder_of_results_is_one_process_alone(tmp_path: Path) -> None:
    with (
        folders.locked_folder(tmp_path / "out", "traces this corpus") as first,
        pytest.raises(DataError, match=r"out: another process traces this corpus\. Wait for it"),
        folders.locked_folder(first, "traces this corpus"),
    ):
        pass
    with folders.locked_folder(tmp_path / "out", "traces this corpus"):
        pass  # the lock went with the first


def test_a_second_writer_leaves_the_first_one_alone(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "f", lambda _: None) as folder:
        with atomic_folder(tmp_path / "f") as other:
            (other / "y").write_text("second")
        (folder / "x").write_text("first")
    assert names(tmp_path) == ["f"]
    assert names(tmp_path / "f") == ["x"]


#: A program that writes a trace of three layers, and is killed at the moment that is named.
WRITER = """
    import os, signal, sys, torch, headloom
    from pathlib import Path
    from headloom.formats import folders, trace_writer
    from headloom.formats.trace import LayerInMemory, TraceLayer
    from headloom.formats.trace_writer import writing_trace

    def kill(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)

    moment, path, tokens = sys.argv[1], sys.argv[2], sys.argv[3].split()
    if moment == "while a layer is written":
        rows = trace_writer.row_table
        trace_writer.row_table = lambda number, graph: kill() if number else rows(number, graph)
    elif moment == "before the manifest":
        trace_writer.manifest_digest = kill
    elif moment == "before the rename":
        folders.sync = kill
    elif moment == "after the exchange":
        exchange = folders._exchange
        folders._exchange = lambda one, other: exchange(one, other) and kill()
    elif moment in ("between the renames", "after the renames"):
        folders._exchange = lambda *_: False
        rename = Path.rename
        def renamed(one, to):
            if "part" in one.name and moment == "between the renames":
                kill()
            rename(one, to)
            if "part" in one.name:
                kill()
        Path.rename = renamed
    queries = torch.randn(2, len(tokens), 8)
    _, graph = headloom.attend(queries, queries, queries)
    with writing_trace(path, {"tokens": tokens}, overwrite=True) as writer:
        for number in range(3):
            data = LayerInMemory(graph, (queries, queries))
            writer.append(TraceLayer("a", "encoder", number, tuple(graph.shape), "tokens",
                                     "tokens", tokens, tokens, 1.0, data))
"""


@pytest.mark.parametrize(
    ("moment", "found"),
    [
        ("while a layer is written", "old"),
        ("before the manifest", "old"),
        ("before the rename", "old"),
        ("after the exchange", "new"),
        ("between the renames", None),
        ("after the renames", "new"),
    ],
)
def test_killed_at_any_moment_the_trace_is_whole_or_says_how_to_resume(
    loaded: Loaded, make_trace, tmp_path: Path, moment: str, found: str | None
) -> None:
    path = tmp_path / "t"
    make_trace(["old", "trace"]).save(path)

    with loaded.start(moment, path, "the new one", program=textwrap.dedent(WRITER)) as process:
        assert process.wait() == -signal.SIGKILL
    assert len(names(tmp_path)) > 1
    if found is None:
        line = r"no such trace: its writing was interrupted\. Run the command that writes it again"
        with pytest.raises(DataError, match=line):
            headloom.open(path)
    else:
        tokens = ["old", "trace"] if found == "old" else ["the", "new", "one"]
        opened = headloom.open(path)
        assert opened.tokens == tokens
        assert all(layer.graph.k for layer in opened.layers)
    # The same command once more: it is there, and nothing else.
    make_trace(["the", "new", "one"]).save(path, overwrite=True)
    assert names(tmp_path) == ["t"]
    assert headloom.open(path).tokens == ["the", "new", "one"]


def test_a_first_trace_that_is_killed_says_how_to_resume(
    loaded: Loaded, make_trace, tmp_path: Path
) -> None:
    path = tmp_path / "t"
    program = textwrap.dedent(WRITER)
    with loaded.start("before the manifest", path, "a b", program=program) as process:
        assert process.wait() == -signal.SIGKILL
    with pytest.raises(DataError, match=r"no such trace: its writing was interrupted\. Run the"):
        headloom.open(path)
    (part,) = tmp_path.iterdir()
    with pytest.raises(DataError, match=r"a half-written trace: .* removes the remains"):
        headloom.open(part)
    make_trace(["a", "b"]).save(path)
    assert names(tmp_path) == ["t"]
