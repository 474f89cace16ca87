"""Reading what is no file, may not be read, or never ends: one line that names the right cause."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.formats.forging import forge

import headloom
from headloom.api.trace import Trace
from headloom.errors import DataError
from headloom.formats.files import open_file, read_json, read_text
from headloom.formats.history import History
from headloom.formats.tensors import load_tensors, save_tensors
from headloom.formats.trace import LayerInMemory, TraceLayer


@pytest.fixture(autouse=True)
def _alarm() -> Iterator[None]:
    """A test that waits for a pipe ends by an error, not by nothing."""
    signal.alarm(60)
    yield
    signal.alarm(0)


@contextmanager
def _nobody() -> Iterator[None]:
    """As a user who may not read everything, as root may."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def trace_path(tmp_path: Path) -> Path:
    queries, keys, values = torch.randn(3, 2, 5, 4)
    _, graph = headloom.attend(queries, keys, values, keep=headloom.Top(2))
    tokens = list("abcde")
    layer = TraceLayer(
        "layer", "encoder", 0, (2, 5, 5), "tokens", "tokens", tokens, tokens, 0.5,
        LayerInMemory(graph, (queries, keys), None, values.norm(dim=-1)), mask="all",
    )  # fmt: skip
    path = tmp_path / "t.loom"
    Trace({"tokens": tokens}, (layer,)).save(path)
    return path


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir(here)


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (_pipe, "a pipe, a socket or a device"),
        (_socket, "a pipe, a socket or a device"),
        (lambda path: path.symlink_to("/dev/zero"), "a pipe, a socket or a device"),
        (Path.mkdir, "a folder"),
        (lambda path: path.symlink_to(path.name), "too many levels of symbolic links"),
        (lambda path: path.symlink_to("nowhere"), "no such"),
    ],
)
def test_what_is_no_file(make: Callable[[Path], object], cause: str, tmp_path: Path) -> None:
    path = tmp_path / "made"
    make(path)
    for read in (open_file, read_text, read_json, lambda x: load_tensors(x, "file")):
        with pytest.raises(DataError, match=cause) as error:
            read(path)
        assert "\n" not in str(error.value)
        assert "damaged" not in str(error.value)


def test_what_the_shell_hands_over_may_be_a_pipe() -> None:
    out, into = os.pipe()
    os.write(into, b"a text")
    os.close(into)
    assert read_text(f"/dev/fd/{out}") == "a text"
    os.close(out)


@pytest.mark.parametrize("name", ["trace.json", "edges.parquet", "rows.parquet", "keys.parquet",
                                  "queries_keys.safetensors"])  # fmt: skip
def test_reading_that_is_not_permitted_is_no_damage(trace_path: Path, name: str) -> None:
    # Modules are read while nothing is forbidden.
    _read_all(trace_path)
    for part in trace_path.parents:
        if part.owner() == "root" and part.stat().st_mode & 0o7 == 0:
            part.chmod(0o711)
    (trace_path / name).chmod(0)
    with _nobody(), pytest.raises(DataError, match="permission denied") as error:
        _read_all(trace_path)
    assert "damaged" not in str(error.value)
    assert name in str(error.value)


def _read_all(path: Path) -> None:
    (layer,) = headloom.open(path).layers
    assert layer.graph.k == 2
    assert layer.queries is not None
    assert layer.value_norms is not None


#: Changes of a manifest, whose digest is then made to fit.
FORGED: list[Callable[[dict[str, Any]], object]] = [
    lambda m: m["layers"][0].update(window=[0, 0, -(10**30)]),
    lambda m: m["layers"][0].update(window=[True, 0, 0]),
    lambda m: m["layers"][0].update(scale=float("nan")),
    lambda m: m["layers"][0].update(scale=10**400),
    lambda m: m["layers"][0].update(softcap=0),
    lambda m: m["layers"][0].update(shape=[10**9, 5, 5]),
    lambda m: m["layers"][0].update(edges=10**9),
    lambda m: m["layers"][0].update(terms={"missing": None, "offset": 0, "tensors": [[]]}),
    lambda m: m["files"]["rows.parquet"].pop("sha256"),
    lambda m: m["files"].pop("keys.parquet"),
    lambda m: m.update(positions={"tokens": {"special": [True]}}),
    lambda m: m.update(positions={"others": {"special": []}}),
    lambda m: m.pop("model"),
    lambda m: m.update(layers=[]),
    lambda m: m["sequences"].update(tokens=[1]),
    lambda m: m["sequences"]["tokens"].pop(),
    lambda m: m["layers"][0].pop("scale"),
    lambda m: m["layers"][0].update(value_norms=3),
    lambda m: m["layers"][0].update(terms={"missing": None, "tensors": ["x"]}),
    lambda m: m.update(not_traced=[{"name": "a"}]),
    lambda m: m.update(positions={"tokens": {"offsets": [[0, 10**30]] * 5}}),
]


def test_forged_numbers(trace_path: Path) -> None:
    whole = (trace_path / "trace.json").read_bytes()
    for number, change in enumerate(FORGED):
        (trace_path / "trace.json").write_bytes(whole)
        forge(trace_path, change)
        with pytest.raises(DataError, match="this trace is damaged"):
            pytest.fail(f"change {number} is read: {_read_all(trace_path)}")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # The type of a column as thrift writes it, before the list of its encodings.
        (b"\x15\x02\x19", b"\x15\x0a\x19"),
        # The smallest layer, a byte too short.
        (b"\x18\x04\0\0\0\0", b"\x18\x03\0\0\0"),
    ],
)
def test_what_arrow_aborts_on_is_not_read(trace_path: Path, before: bytes, after: bytes) -> None:
    expected = headloom.open(trace_path).layers[0].graph
    path = trace_path / "edges.parquet"
    whole = path.read_bytes()
    start = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    forged = whole[start:-8].replace(before, after)
    assert forged != whole[start:-8]
    path.write_bytes(whole[:start] + forged + len(forged).to_bytes(4, "little") + b"PAR1")
    digest, size = hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size
    forge(trace_path, lambda m: m["files"]["edges.parquet"].update(sha256=digest, bytes=size))
    try:
        graph = headloom.open(trace_path).layers[0].graph
    except DataError as error:
        assert "this trace is damaged: edges.parquet" in str(error)
    else:
        assert torch.equal(graph.keys, expected.keys)
        assert torch.equal(graph.weights, expected.weights)


def test_a_forged_kind_of_number(trace_path: Path) -> None:
    path = trace_path / "queries_keys.safetensors"
    # As many bytes as before, taken for whole numbers.
    path.write_bytes(path.read_bytes().replace(b'"F32"', b'"I32"'))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    forge(trace_path, lambda m: m["files"]["queries_keys.safetensors"].update(sha256=digest))
    with pytest.raises(DataError, match="do not fit the layer"):
        _read_all(trace_path)


def test_files_that_are_no_snapshots(tmp_path: Path) -> None:
    (tmp_path / "step-last.safetensors").write_text("")
    assert History(tmp_path).steps == []
    save_tensors(tmp_path / "step-00000001.safetensors", {}, {"step": 1, "loss": None})
    for read in (lambda: History(tmp_path)[1], lambda: History(tmp_path).measures()):
        with pytest.raises(DataError, match="this snapshot is damaged"):
            read()


def test_a_history_that_may_not_be_read_is_not_empty(tmp_path: Path) -> None:
    for part in tmp_path.parents:
        if part.owner() == "root" and part.stat().st_mode & 0o7 == 0:
            part.chmod(0o711)
    folder = tmp_path / "history"
    folder.mkdir()
    assert History(folder).steps == []
    folder.chmod(0)
    with _nobody(), pytest.raises(DataError, match="permission denied"):
        print(History(folder).steps)
    folder.chmod(0o755)
