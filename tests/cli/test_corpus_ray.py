"""`headloom trace --corpus --workers` on a Ray cluster: the same traces, whoever is killed."""

from __future__ import annotations

import filecmp
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import LETTERS, Command, assert_one_line, traces_in

pytest.importorskip("ray")

ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
    "OMP_NUM_THREADS": "1",
}


def processes_of(folder: Path) -> list[int]:
    """The processes at work, of any cluster of this machine, whose current folder is this one."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            title = (process / "cmdline").read_bytes()
            if title.startswith(b"ray::_done") and (process / "cwd").resolve() == folder:
                found.append(int(process.name))
        except OSError:
            continue
    return found


def until(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 400
    while not condition():
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_corpus_goes_on_after_kills(
    headloom_process: Command, writer: Path, tmp_path: Path
) -> None:
    corpus, folder, whole = tmp_path / "texts.txt", tmp_path / "out", tmp_path / "whole"
    lines = [" ".join(LETTERS[(i * i + j) % 10] for j in range(2 + i % 14)) for i in range(300)]
    corpus.write_text("\n".join(lines) + "\n")
    arguments = ("trace", writer, "--corpus", corpus, "--json")
    assert headloom_process(*arguments, "-o", whole).code == 0
    arguments = (*arguments, "-o", folder, "--workers", "local")
    command = [sys.executable, "-m", "headloom", *map(str, arguments)]
    place = tmp_path.resolve()
    with subprocess.Popen(
        command, env=ENVIRONMENT, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        until(lambda: len(traces_in(folder)) >= 30 and bool(processes_of(place)), process)
        os.kill(processes_of(place)[0], signal.SIGKILL)
        # Another takes its place, and the work goes on.
        until(lambda: len(traces_in(folder)) >= 100, process)
        process.kill()
    there = len(traces_in(folder))
    report = headloom_process(*arguments).json()
    assert report["traced"] + report["there"] == 300 and report["there"] >= there
    names = sorted(str(path.relative_to(whole)) for path in whole.rglob("*") if path.is_file())
    assert filecmp.cmpfiles(whole, folder, names, shallow=False) == (names, [], [])


def test_what_is_no_cluster(
    headloom_main: Command, writer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = tmp_path / "texts.txt"
    corpus.write_text("a b\nc d\n")
    arguments = ("trace", writer, "-o", tmp_path / "out", "--corpus", corpus, "--workers")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    message = f"the Ray cluster at {address} cannot be reached: connection refused"
    assert_one_line(headloom_main(*arguments, address), message)
    for wrong in ("ray://127.0.0.1:10001", "two", "-1", "257"):
        assert_one_line(headloom_main(*arguments, wrong), f"workers {wrong}: expected ")
    monkeypatch.setitem(sys.modules, "ray", None)
    message = 'workers: ray is not installed. pip install ".[ray]"'
    assert_one_line(headloom_main(*arguments, "local"), message)
