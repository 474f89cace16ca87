"""`headloom trace --corpus --ray-address`: the same traces, whoever is killed."""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from tests.cli.conftest import LETTERS, Command, assert_one_line, traces_in
from tests.forked import Loaded, script

pytest.importorskip("ray")

ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
    "OMP_NUM_THREADS": "1",
}
#: As a program begins where nothing is set for Ray.
FORGET = """
import os
for name in [name for name in os.environ if name.startswith("RAY_")]:
    del os.environ[name]
"""
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def scenarios(loaded: Loaded, folder: Path, *names: str) -> dict[str, object]:
    """What each scenario of ray_work.py gives; Ray says nothing on the console meanwhile."""
    work = script(Path(__file__).with_name("ray_work.py"))
    with loaded.start(folder, *names, program=FORGET + work) as process:
        out, errors = process.communicate()
        assert (process.wait(), errors) == (0, b"")
    assert out.count(b"\n") == 1, out
    return json.loads(out)


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


def equal_folders(one: Path, other: Path) -> bool:
    """Whether two folders hold the same files with the same bytes, at every depth."""
    names = sorted(str(path.relative_to(one)) for path in one.rglob("*"))
    if names != sorted(str(path.relative_to(other)) for path in other.rglob("*")):
        return False
    files = [name for name in names if (one / name).is_file()]
    return filecmp.cmpfiles(one, other, files, shallow=False) == (files, [], [])


def check_written(folder: Path, results: object, killers: set[str]) -> dict[str, str | None]:
    """Hold the files of a scenario against its tasks; why some were not done."""
    assert isinstance(results, list)
    reasons = dict(results)
    assert len(results) == len(reasons) == 120
    failed = {name: reason for name, reason in reasons.items() if reason is not None}
    for name in reasons.keys() - failed.keys():
        text = "kills once" if name in killers else f"text {int(name)}"
        # A text that was given together with one that killed the actor may be done twice.
        assert set((folder / name).read_text().splitlines()) == {f"{text} 1"}
    assert not any((folder / name).exists() for name in failed)
    assert not list(folder.glob(".*"))
    return failed


@pytest.mark.slow
def test_a_process_that_dies_is_replaced_and_a_text_that_kills_each_is_named(
    loaded: Loaded, tmp_path: Path
) -> None:
    results = scenarios(loaded, tmp_path, "killed", "poisoned", "full", "unseen")
    assert check_written(tmp_path / "killed", results["killed"], {"017"}) == {"050": "a bad text"}
    failed = check_written(tmp_path / "poisoned", results["poisoned"], {"017", "018"})
    assert failed == {"040": "its process died 3 times, perhaps for want of memory"}
    # A process opens its model once, not for each of 120 texts.
    assert all(
        len(list((tmp_path / name).glob("opened-*"))) < 12 for name in ("killed", "poisoned")
    )
    assert results["full"] == "no space left on device."
    machine, unseen = socket.gethostname(), tmp_path / "unseen" / "no such model"
    assert results["unseen"] == (
        f"{machine}: this machine of the Ray cluster does not see {unseen}. Use folders that all "
        "machines share, by the same path."
    )


def test_another_version_is_refused(tmp_path: Path) -> None:
    from headloom.api.ray_engine import _done
    from headloom.errors import DataError

    with pytest.raises(DataError, match=r"it is 0\.0\.1 where the command runs"):
        _done(None, 1, "0.0.1", str(tmp_path), [], [])


REACH = """
import sys
from headloom.errors import HeadloomError
from headloom.api.ray_engine import cluster
for address in sys.argv[1:]:
    try:
        with cluster(address, 1):
            print("reached")
    except HeadloomError as error:
        print(error)
"""


def reached(*addresses: str, seconds: float, **environment: str) -> list[str]:
    """What reaching each cluster gives, on one line, in so many seconds."""
    done = subprocess.run(
        [sys.executable, "-c", REACH, *addresses], capture_output=True, text=True, check=True,
        env={**ENVIRONMENT, **environment}, timeout=seconds,
    )  # fmt: skip
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) == len(addresses)
    return lines


def test_a_cluster_that_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    refused, other = reached(address, "ray://127.0.0.1:10001", seconds=180)
    assert refused.startswith(f"the Ray cluster at {address} cannot be reached: connection")
    assert "expected HOST:PORT" in other


@pytest.mark.slow
def test_a_port_that_is_not_a_cluster() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        (line,) = reached(address, seconds=120)
    assert line.startswith(f"the Ray cluster at {address} cannot be reached: Failed to connect")


OWN = """
import os, subprocess, sys
from pathlib import Path
from headloom.api.ray_engine import cluster
with cluster("local", 1) as ray:
    address = ray.get_runtime_context().gcs_address
    files = list(Path("/tmp").glob("headloom-ray-*/session_*%s" % os.getpid()))
    ours = {name: os.environ.pop(name) for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")}
    for token in ({}, {**ours, "RAY_AUTH_TOKEN": "0" * 64}, ours):
        done = subprocess.run(
            [sys.executable, "-c", sys.argv[1], address], capture_output=True, text=True,
            env={**os.environ, **token},
        )
        print(done.stdout.strip())
print(len(files), [file for file in files if file.exists()])
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/tmp").is_dir(), reason="Ray's files lie elsewhere")
def test_a_cluster_of_our_own_asks_for_a_token_and_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OWN, REACH], capture_output=True, text=True, check=True,
        env={**ENVIRONMENT, "TMPDIR": "/tmp"}, timeout=400,
    )  # fmt: skip
    assert done.stderr == ""
    without, wrong, right, files = done.stdout.splitlines()
    assert "cannot be reached" in without and "RAY_AUTH_TOKEN" in without
    assert "cannot be reached" in wrong
    assert right == "reached"
    assert files == "1 []"


def test_options_and_a_ray_that_is_missing(
    headloom_main: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, folder = tmp_path / "texts.txt", tmp_path / "out"
    corpus.write_text("a b\n")
    arguments = ("trace", tmp_path, "-o", folder)
    ray = ("--ray-address", "local")
    assert_one_line(headloom_main(*arguments, *ray, "--text", "a"), "--ray-address needs --corpus")
    arguments = (*arguments, "--corpus", corpus)
    assert_one_line(
        headloom_main(*arguments, "--workers", 257), "on many machines give --ray-address"
    )
    monkeypatch.setitem(sys.modules, "ray", None)
    assert_one_line(
        headloom_main(*arguments, *ray),
        '--ray-address: ray is not installed. pip install ".[ray]"',
    )
    assert not folder.exists()


def count(folder: Path) -> int:
    return len(traces_in(folder))


def until(condition, process: subprocess.Popen[bytes] | None = None) -> None:
    end = time.monotonic() + 400
    while not condition():
        assert process is None or process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_corpus_of_a_thousand_lines_goes_on_after_kills(
    headloom_process: Command, writer: Path, tmp_path: Path
) -> None:
    corpus, folder = tmp_path / "texts.txt", tmp_path / "out"
    lines = [" ".join(LETTERS[(i * i + j) % 10] for j in range(2 + i % 14)) for i in range(1000)]
    corpus.write_text("\n".join(lines) + "\n")
    arguments = ("trace", writer, "--corpus", corpus, "--workers", 2, "--threads", 1, "--json")
    undisturbed = tmp_path / "undisturbed"
    assert headloom_process(*arguments, "-o", undisturbed).code == 0
    arguments = (*arguments, "-o", folder, "--ray-address", "local")
    command = [sys.executable, "-m", "headloom", *map(str, arguments)]
    place = tmp_path.resolve()
    with subprocess.Popen(command, env=ENVIRONMENT, cwd=place, **QUIET) as process:
        until(lambda: count(folder) >= 100, process)
        until(lambda: len(processes_of(place)) == 2, process)
        os.kill(processes_of(place)[0], signal.SIGKILL)
        # Another takes its place, and the work goes on.
        until(lambda: count(folder) >= 300, process)
        process.kill()
    until(lambda: not processes_of(place))
    there = count(folder)
    assert 300 <= there < 1000
    done = headloom_process(*arguments)
    assert done.code == 0, done.err
    said = json.loads(done.out)
    assert said["traced"] + said["there"] == 1000
    assert said["there"] == there
    assert done.err.splitlines() == [
        f"{said['traced']} texts traced, {there} were there already. Traces: {folder}"
    ]
    assert equal_folders(undisturbed, folder)
    query = "select trace, count(*) as tokens from tokens group by trace order by trace"
    answer = json.loads(headloom_process("query", folder, query, "--json").out)
    tokens = [[f"{i + 1:06d}.loom", len(line.split())] for i, line in enumerate(lines)]
    assert answer["rows"] == tokens


@pytest.mark.slow
def test_a_cluster_that_runs_already(
    headloom_process: Command, writer: Path, tmp_path: Path
) -> None:
    corpus, folder = tmp_path / "texts.txt", tmp_path / "out"
    corpus.write_text("a b c\nd e\nf\n")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    files = tempfile.mkdtemp(prefix="headloom-ray-", dir="/tmp")
    start = (
        "start", "--head", "--block", f"--port={address.split(':')[1]}", "--num-cpus=1",
        "--node-ip-address=127.0.0.1", "--object-store-memory=80000000",
        "--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={files}",
    )  # fmt: skip
    command = [sys.executable, "-m", "ray.scripts.scripts", *start]
    # A cluster of one's own asks for a token.
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "5" * 64}
    environment = {**ENVIRONMENT, **token}
    head = subprocess.Popen(command, env=environment, start_new_session=True, **QUIET)
    try:
        until(lambda: reached(address, seconds=120, **token) == ["reached"], head)
        arguments = (
            "trace",
            writer,
            "--corpus",
            corpus,
            "--ray-address",
            address,
        )
        # Three actors are asked for, and the cluster has room for one.
        done = headloom_process(*arguments, "-o", folder, "--workers", 3, "--json", **token)
        assert done.code == 0, done.err
        assert json.loads(done.out)["traced"] == 3
        # It runs still.
        assert reached(address, seconds=120, **token) == ["reached"]
    finally:
        os.killpg(head.pid, signal.SIGTERM)
        head.wait(60)
        shutil.rmtree(files, ignore_errors=True)
    assert headloom_process("trace", writer, "--corpus", corpus, "-o", tmp_path / "b").code == 0
    assert equal_folders(tmp_path / "b", folder)
