"""What the GPU's kernel is compiled to, without a GPU: registers, memory, instructions of a tile.

Triton compiles for a device that is not here; what comes of it is read by NVIDIA's cuobjdump, which
comes with Triton. A line for each generation of devices, type and depth: the bytes of shared memory
of a program, its registers, the bytes that a thread keeps in memory since registers do not suffice,
and the instructions of the loop over tiles that every row sees whole, with those of them that move
registers to and from memory. Instructions are not time; but a loop of twice as many that waits for
memory in between is no faster.

    python scripts/gpu_code.py                               # needs Triton (scripts/setup-tests)
    python scripts/gpu_code.py --targets 90 --depths 64 --keep 0 32 512
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import weft
from weft.mechanism.backends import triton as backend
from weft.mechanism.backends.native_request import prepare
from weft.mechanism.call import AttentionCall
from weft.mechanism.masks import Mask
from weft.mechanism.scores import ScaledDot

#: Bytes of shared memory that a program may take, by compute capability: A100, RTX 3090, RTX 4090,
#: H100, B200, RTX 5090. Source: CUDA C++ programming guide, technical specifications.
SHARED = {80: 166912, 86: 101376, 89: 101376, 90: 232448, 100: 232448, 120: 101376}


@dataclass(frozen=True)
class Compiled:
    """A kernel. stack: bytes of a thread; moved: instructions for registers kept in memory."""

    target: int
    dtype: str
    depth: int
    keep: int
    shared: int
    limit: int
    registers: int
    stack: int
    tile: int
    instructions: int
    moved: int
    asynchronous: int
    seconds: float


class _Absent:
    """A device that is not here, as Triton asks about one."""

    def __init__(self, capability: int) -> None:
        from triton.backends.compiler import GPUTarget

        self.target = GPUTarget("cuda", capability, 32)  # threads of a warp

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return self.target.arch  # Triton keeps kernels by device

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def compiled(
    target: int,
    dtype: torch.dtype,
    depth: int,
    keep: int,
    mask: Mask | None = None,
    length: int = 1024,
    **options: Any,
) -> Compiled:
    """Compile what a call would run, by the very program that would run it."""
    import triton.runtime

    from weft.mechanism.backends import triton_kernels

    triton.runtime.driver.set_active(_Absent(target))
    kernel, made = triton_kernels.attend_kernel, []

    class Compiling:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            return lambda *given, **named: made.append(kernel.warmup(*given, grid=grid, **named))

    queries, keys, values = (torch.zeros(1, heads, length, depth).to(dtype) for heads in (4, 2, 2))
    call = AttentionCall(queries, keys, values, ScaledDot(), depth**-0.5, mask, **options)
    shared = backend._shared_memory
    backend._shared_memory = lambda device: SHARED[target]
    triton_kernels.attend_kernel = Compiling()
    began = time.perf_counter()
    try:
        backend.forward_graph(prepare(call), keep)
    finally:
        triton_kernels.attend_kernel, backend._shared_memory = kernel, shared
    took = time.perf_counter() - began
    registers, stack, lines = _read(made[0].asm["cubin"])
    loop = _smallest_loop_of_products(lines)
    return Compiled(
        target, str(dtype).removeprefix("torch."), depth, keep,
        shared=made[0].metadata.shared, limit=SHARED[target], registers=registers, stack=stack,
        tile=backend.sizes_of(prepare(call), keep, SHARED[target])["TILE"],
        instructions=len(loop), moved=sum(bool(re.search(r"\b(LDL|STL)\b", at)) for at in loop),
        asynchronous=made[0].asm["ptx"].count("cp.async"), seconds=took,
    )  # fmt: skip


def _read(cubin: bytes) -> tuple[int, int, list[tuple[int, str]]]:
    """Registers, stack and instructions, each with its address."""
    import triton

    cuobjdump = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage, text = (
            subprocess.run(
                [cuobjdump, option, file.name], capture_output=True, text=True, check=True
            ).stdout
            for option in ("-res-usage", "-sass")
        )
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert found is not None, usage
    lines = re.findall(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?);", text, re.MULTILINE)
    return int(found[1]), int(found[2]), [(int(at, 16), line) for at, line in lines]


def _smallest_loop_of_products(lines: list[tuple[int, str]]) -> list[str]:
    """The loop over tiles without a mask: of those that multiply matrices the shortest."""
    places = {at: n for n, (at, _) in enumerate(lines)}
    loops = []
    for n, (at, line) in enumerate(lines):
        jump = re.search(r"\bBRA\b.*?(0x[0-9a-f]+)", line)
        if jump and int(jump[1], 16) < at:
            loop = [text for _, text in lines[places[int(jump[1], 16)] : n + 1]]
            products = r"MMA|FFMA.*R\d+, R\d+, R\d+, R\d+"
            if sum(bool(re.search(products, text)) for text in loop) >= 8:
                loops.append(loop)
    return min(loops, key=len)


def main() -> None:
    """Compile and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--targets", type=int, nargs="+", choices=SHARED, default=list(SHARED))
    parser.add_argument("--depths", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--keep", type=int, nargs="+", default=[32])
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")
    options = parser.parse_args()
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    rows = []
    for target in options.targets:
        for dtype in options.dtypes:
            for depth in options.depths:
                for keep in options.keep:
                    mask = weft.causal()
                    row = compiled(target, getattr(torch, dtype), depth, keep, mask)
                    rows.append(row)
                    print(
                        f"sm_{target:<3} {dtype:8} depth {depth:3} top {keep:3}: shared "
                        f"{row.shared:7,} of {row.limit:,} bytes, {row.registers:3} "
                        f"registers, stack {row.stack:5,}; {row.instructions:6,} instructions a "
                        f"tile of {row.tile}, {row.moved:4} of them spills "
                        f"({row.seconds:.0f} s to compile)",
                        file=sys.stderr if options.json else sys.stdout,
                        flush=True,
                    )
    if options.json:
        print(json.dumps([asdict(row) for row in rows]))


if __name__ == "__main__":
    main()
