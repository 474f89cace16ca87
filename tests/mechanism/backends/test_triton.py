"""The kernels for GPUs, as Triton interprets them on the CPU; and who is not served by them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import headloom
from headloom.errors import BackendError
from headloom.mechanism import function
from headloom.mechanism.backends import torch_ops, triton
from headloom.mechanism.call import AttentionCall
from headloom.mechanism.scores import ScaledDot

PROGRAM = Path(__file__).with_name("interpreted_triton.py")
COMPILING = Path(__file__).parents[3] / "scripts" / "gpu_code.py"
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")


def interpreted(*arguments: object) -> dict[str, int]:
    """What the program says in its last line. Raises: AssertionError: a call was wrong."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *map(str, arguments)],
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    *problems, last = done.stdout.splitlines()
    assert not problems, "\n".join(problems)
    met: dict[str, int] = json.loads(last)
    return met


@needs_triton
def test_random_calls_are_those_of_float64() -> None:
    met = interpreted(2, 20)
    assert (met["calls"], met["wrong"]) == (20, 0)
    for feature in ("bfloat16", "float32", "mask", "bias", "edges", "gradients", "grouped heads"):
        assert met[feature] > 0, met


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("fault", ["mask", "edges"])
def test_planted_faults_are_found(fault: str) -> None:
    assert interpreted(4, 20, fault)["wrong"] >= 3


def compiled(*arguments: object) -> list[dict[str, Any]]:
    """What the kernel is compiled to, by the program that prints it; nothing interprets there."""
    done = subprocess.run(
        [sys.executable, str(COMPILING), *map(str, arguments)],
        env={name: of for name, of in os.environ.items() if name != "TRITON_INTERPRET"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    kernels: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    return kernels


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize(
    "target",
    [
        *("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"),
        "gfx90a",
        "gfx942",
        "gfx1100",
    ],
)
def test_it_compiles_for_each_generation(target: int) -> None:
    options = "--dtypes", "bfloat16", "float32", "--depths", 16, 64, 128, 256, "--keep", 0, 1, 32
    kernels = compiled("--targets", target, *options)
    assert len(kernels) == 8 + 2 * 16
    for kernel in kernels:
        assert kernel["shared"] <= kernel["limit"], kernel


def call_of(*parts: Tensor, **options: Any) -> AttentionCall:
    return AttentionCall(*parts, ScaledDot(), 0.5, **options)


@pytest.mark.parametrize("wrong", ["output", "weights", None])
def test_a_device_on_which_it_is_wrong_is_not_served(
    wrong: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attend(call: AttentionCall) -> tuple[Tensor, Any]:
        output, graph = torch_ops.attend(call)
        if wrong is not None:
            tensor = output if wrong == "output" else getattr(graph, wrong)
            tensor[..., 3].add_(0.01)
        return output, graph

    monkeypatch.setattr(triton, "attend", attend)
    reason = triton._difference.__wrapped__(torch.device("cpu"), torch.float32)
    if wrong is None:
        assert reason is None
    else:
        assert reason is not None
        assert reason.startswith("on cpu its ")
        assert "1.0e-02 from plain torch" in reason


@needs_triton
def test_a_call_that_cannot_be_compiled_is_served_by_torch_and_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unlike an error of the device while it runs, which is passed on."""
    from headloom.mechanism.backends import triton_softmax

    raised: list[Exception] = [ValueError("no such layout"), torch.OutOfMemoryError("full")]

    class Kernel:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            raise raised[0]

    monkeypatch.setattr(triton_softmax, "softmax_kernel", Kernel())
    monkeypatch.setattr(triton, "why_not_served", lambda call: None)
    x = torch.randn(1, 2, 5, 4)
    said = "the kernel cannot be compiled for this call: ValueError: no such layout"
    with pytest.raises(BackendError, match=said):
        headloom.attend(x, x, x, backend="triton")
    rows = [row._replace(why_not=lambda call, _: None) for row in function.BACKENDS[2:]]
    monkeypatch.setattr(function, "BACKENDS", rows)
    with pytest.warns(RuntimeWarning, match=f"{said}. Plain torch serves it, much slower"):
        output, _ = headloom.attend(x, x, x)
    assert torch.equal(output, headloom.attend(x, x, x, backend="torch")[0])
    del raised[0]
    with pytest.raises(torch.OutOfMemoryError):
        headloom.attend(x, x, x)


def test_a_call_that_it_does_not_serve_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(1, 2, 3, 4)
    with pytest.raises(BackendError, match=r"tensors are on cpu, the kernel runs on CUDA.*torch"):
        headloom.attend(x, x, x, backend="triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(triton, "find_spec", lambda name: name)
    monkeypatch.setattr(triton, "_triton_version", lambda: (3, 10))
    monkeypatch.setattr(triton, "_difference", lambda *of: None)
    deep, many = (torch.zeros(1, 1, 600, size) for size in (300, 4))
    for call, expected in (
        (call_of(x, x, x), None),
        (call_of(x.double(), x.double(), x.double()), "float64"),
        (call_of(deep, deep, deep), "depths are 300 and 300"),
        (call_of(many, many, many, keep=headloom.Top(513)), "513 edges"),
        (call_of(x, x, x, relative=headloom.Shaw(torch.zeros(3, 4))), "no tables"),
        (call_of(x, x, x, dropout=0.5), "dropout is 0.5"),
    ):
        reason = triton.why_not_served(call)
        assert reason == expected or (expected is not None and expected in (reason or ""))
