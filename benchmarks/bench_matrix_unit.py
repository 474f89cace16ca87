"""Claim: a matrix unit (AMX) that rests for half a microsecond takes a quarter of one to wake.

Why native/stripe_plain.h keeps it awake. No peer: these lines give nanoseconds against a unit that
did not rest. The last two: beside its products vectors multiply and add at half their speed, but
lose little of what is no multiply-add (decision 38). Compiles matrix_unit.cpp with the C++ compiler
(CXX, or c++).

    python benchmarks/bench_matrix_unit.py
"""

from __future__ import annotations

import os
import platform
import subprocess
import tempfile
from pathlib import Path


def main() -> None:
    """Compile, run and print."""
    if platform.machine() not in {"x86_64", "AMD64"}:
        print("this processor has no AMX")
        return
    source = Path(__file__).parent / "matrix_unit.cpp"
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "matrix_unit"
        flags = ["-O2", "-std=c++17", "-mavx512f", "-mamx-tile", "-mamx-bf16"]
        compiler = os.environ.get("CXX", "c++")
        subprocess.run([compiler, *flags, str(source), "-o", str(program)], check=True)
        subprocess.run([str(program)], check=True)


if __name__ == "__main__":
    main()
