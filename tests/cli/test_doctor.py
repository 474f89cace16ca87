"""`headloom doctor`: what it says, and that it finds what is wrong."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cli.conftest import Command

import headloom
from headloom.mechanism import self_check
from headloom.mechanism.backends import compiled


def test_what_it_shows_is_so_and_fits_eighty_columns(headloom_main: Command) -> None:
    lines = headloom_main("doctor").out.splitlines()
    assert all(len(line) < 80 for line in lines)
    facts = headloom_main("doctor", "--json").json()["findings"]
    told = {line.split("  ")[1].strip() for line in lines if line.startswith("  ")}
    assert set(facts["versions"]) | set(facts["self-check against float64"]) <= told
    assert facts["versions"]["torch"] == importlib.metadata.version("torch")
    assert facts["versions"]["python"].split()[1].rstrip(",") == platform.python_version()
    assert facts["attention"]["threads"].startswith(f"{torch.get_num_threads()} ")
    checks = facts["self-check against float64"]
    assert set(checks) == {*compiled.instruction_sets(), "torch"}
    extras = importlib.metadata.metadata("headloom").get_all("Provides-Extra")
    assert set(facts["extras"]) == set(extras or []) - {"dev", "docs", "all"}


@pytest.mark.parametrize("backend", [compiled.instruction_sets()[0], "torch"])
def test_a_small_fault_of_one_backend_is_found(
    backend: str, headloom_main: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One number of one call, off by a thousandth."""
    right = self_check._attend

    def fault(call: Any, asked: str) -> Any:
        output, graph = right(call, asked)
        if asked == backend and call.keys.shape[2] == 1500:
            output = output + torch.eye(*output.shape[2:]) * 1e-3
        return output, graph

    monkeypatch.setattr(self_check, "_attend", fault)
    result = headloom_main("doctor", "--json")
    found = json.loads(result.out)
    assert result.code == 1
    assert not found["healthy"]
    (problem,) = found["problems"]
    assert problem["name"] == backend
    assert f"headloom: {backend}: output of the call 'long rows'" in result.err


def test_packages_that_are_missing_or_too_old(
    headloom_main: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name in ("matplotlib", "rich"):
            raise importlib.metadata.PackageNotFoundError(name)
        return "1.9.0" if name == "torch" else real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    result = headloom_main("doctor", "--json")
    found = json.loads(result.out)
    assert result.code == 1
    assert [problem["name"] for problem in found["problems"]] == ["torch", "rich"]
    assert "headloom: torch is 1.9.0, headloom needs torch>=2.6. pip install" in result.err
    assert "headloom: rich is missing. pip install" in result.err
    # An extra may be missing: that is told, and nothing is wrong.
    assert found["findings"]["extras"]["pictures"] == (
        'pip install ".[pictures]" in the clone of headloom; missing: matplotlib'
    )


@pytest.fixture
def without_kernels(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a process that finds a copy of headloom without its native module."""
    (tmp_path / "headloom").mkdir()
    for path in Path(headloom.__file__).parent.iterdir():
        if not path.name.startswith("_native"):
            (tmp_path / "headloom" / path.name).symlink_to(path)
    yield {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}


def test_without_kernels_torch_serves_and_it_is_said_once(without_kernels: dict[str, str]) -> None:
    code = (
        "import sys, torch, headloom\n"
        "from headloom.__main__ import main\n"
        "q = torch.eye(3)[None]\n"
        "for _ in range(2):\n"
        "    output, graph = headloom.attend(q, q, q, keep=headloom.Top(2))\n"
        "print(graph.keys[0].tolist())\n"
        "try:\n"
        "    headloom.attend(q, q, q, backend='native')\n"
        "except headloom.BackendError as error:\n"
        "    print(error)\n"
        "print('told', file=sys.stderr)\n"
        "sys.argv = ['headloom', 'doctor', '--json']\n"
        "main()\n"
    )
    # -S: the editable installation's finder would find the module all the same.
    folders = os.pathsep.join([without_kernels["PYTHONPATH"], *sys.path])
    environment = {**without_kernels, "PYTHONPATH": folders}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    graph, refused, *_, last = done.stdout.splitlines()
    assert graph == "[[0, 1], [1, 0], [2, 0]]"
    assert "headloom was installed without its native kernels" in refused
    before, _ = done.stderr.split("told\n")
    assert before.count("torch computes attention, slower. See `headloom doctor`") == 1
    found = json.loads(last)["findings"]
    assert found["attention"]["kernels"] == "none: torch computes everything, more slowly"
    assert set(found["self-check against float64"]) == {"torch"}
