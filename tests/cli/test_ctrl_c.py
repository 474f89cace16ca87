"""Ctrl-C while the modules of the command line are still loaded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("arguments", "loaded"),
    [
        (["--help"], "typer.models"),  # before the command line itself is there
        (["trace", "none", "--text", "a", "-o", "none.loom"], "numpy._core.multiarray"),
        (["trace", "none", "--text", "a", "-o", "none.loom"], "torch.torch_version"),
    ],
)
def test_ctrl_c_while_modules_are_loaded(arguments: list[str], loaded: str, tmp_path: Path) -> None:
    process = subprocess.Popen(
        # Says each module on standard error once it is imported.
        [sys.executable, "-X", "importtime", "-m", "headloom", *arguments],
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        # A shell starts jobs in the background with Ctrl-C ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    for line in process.stderr:
        if line.split("|")[-1].strip() == loaded:
            process.send_signal(signal.SIGINT)
            break
    out, errors = process.communicate()
    said = [line for line in errors.splitlines() if not line.startswith("import time:")]
    assert (process.returncode, out, said) == (130, "", ["headloom: stopped."])


@pytest.mark.slow
def test_the_face_is_whole_and_loads_torch_only_when_it_is_used() -> None:
    program = (
        "import sys, headloom\n"
        "assert 'torch' not in sys.modules\n"
        "for name in headloom.__all__:\n"
        "    assert getattr(headloom, name) is not None\n"
        "assert set(headloom.__all__) <= set(dir(headloom))\n"
        "assert 'torch' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
