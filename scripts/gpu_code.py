"""What the GPU's kernels are compiled to, without a GPU: registers, memory, instructions of a tile.

Triton compiles for a device that is not here. What comes of it for NVIDIA's is read by cuobjdump,
which comes with Triton; for AMD's it is assembly. A line of JSON for each kernel, device, type and
depth, whose instructions are those of the loop over tiles that every row sees whole, `moved` those
of them that move registers to and from memory. Instructions are not time; but a loop of twice as
many that waits for memory in between is no faster.

    python scripts/gpu_code.py                               # needs Triton (scripts/setup-tests)
    python scripts/gpu_code.py --targets sm_90 gfx942 --depths 64 --keep 0 32 512
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import headloom
from headloom.mechanism.backends import triton as backend
from headloom.mechanism.backends.gpu_sizes import Device, sizes_of
from headloom.mechanism.backends.native_request import prepare
from headloom.mechanism.call import checked_call
from headloom.mechanism.masks import packed

#: By compute capability: T4, A100, RTX 3090, RTX 4090, H100, B200, RTX 5090 (source: CUDA C++
#: programming guide, technical specifications); by AMD's names: MI200, MI300, MI350, RX 7900,
#: RX 9070 (source: AMD's instruction set architecture manuals).
DEVICES = {
    "sm_75": Device(65536),
    "sm_80": Device(166912),
    "sm_86": Device(101376),
    "sm_89": Device(101376),
    "sm_90": Device(232448),
    "sm_100": Device(232448),
    "sm_120": Device(101376),
    "gfx90a": Device(65536, 64, amd=True),
    "gfx942": Device(65536, 64, amd=True),
    "gfx950": Device(163840, 64, amd=True),
    "gfx1100": Device(65536, 32, amd=True),
    "gfx1201": Device(65536, 32, amd=True),
}


@dataclass(frozen=True)
class Compiled:
    """A kernel: softmax or edges.

    stack: bytes of a thread; moved: instructions for registers kept in memory.
    """

    kernel: str
    target: str
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


class _Absent:
    """A device that is not here, as Triton asks about one."""

    def __init__(self, target: str) -> None:
        from triton.backends.compiler import GPUTarget

        device = DEVICES[target]
        kind = "hip" if device.amd else "cuda"
        arch = target if device.amd else int(target.removeprefix("sm_"))
        self.target = GPUTarget(kind, arch, device.warp)

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> Any:
        return self.target.arch  # Triton keeps kernels by device

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def asked_beside(length: int) -> dict[str, dict[str, Any]]:
    """Return the options of a call besides, or instead of, its causal mask."""
    return {
        "sinks": {"sinks": torch.zeros(4)},
        "cells": {"mask": torch.ones(length, length, dtype=torch.bool).tril()},
        "bias": {"bias": torch.zeros(1, 4, length, length)},
        "distances": {"relative": headloom.ALiBi(torch.zeros(4))},
        "softcap": {"softcap": 5.0},
        "ranges": {"mask": headloom.causal() & packed([length // 2, length // 2])},
    }


def asked(added: str, length: int) -> dict[str, Any]:
    """Return the options of a call."""
    nothing = dict.fromkeys(("score", "relative", "bias", "scale", "softcap", "sinks"))
    options: dict[str, Any] = nothing | {"mask": headloom.causal(), "dropout": 0.0}
    return options | asked_beside(length).get(added, {})


def compiled(
    target: str, dtype: torch.dtype, depth: int, keep: int, added: str, length: int = 1024
) -> list[Compiled]:
    """Compile what a call would run, by the very program that would run it."""
    import triton.runtime

    from headloom.mechanism.backends import triton_edges, triton_softmax

    triton.runtime.driver.set_active(_Absent(target))
    kernels = [(triton_softmax, "softmax_kernel"), (triton_edges, "edges_kernel")]
    made: list[tuple[str, Any]] = []

    class Compiling:
        def __init__(self, name: str, kernel: Any) -> None:
            self.name, self.kernel = name, kernel

        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            def warm_up(*given: Any, **named: Any) -> None:
                made.append((self.name, self.kernel.warmup(*given, grid=grid, **named)))

            return warm_up

    queries, keys, values = (torch.zeros(1, heads, length, depth).to(dtype) for heads in (4, 2, 2))
    call = checked_call("compiled", queries, keys, values, **asked(added, length))
    described, device = getattr(backend, "described"), DEVICES[target]  # noqa: B009
    setattr(backend, "described", lambda _: device)  # noqa: B010
    whole = [(module, name, getattr(module, name)) for module, name in kernels]
    for module, name, kernel in whole:
        setattr(module, name, Compiling(name.removesuffix("_kernel"), kernel))
    try:
        backend.forward_graph(prepare(call), keep)
    finally:
        setattr(backend, "described", described)  # noqa: B010
        for module, name, kernel in whole:
            setattr(module, name, kernel)
    tile = sizes_of(prepare(call), keep, device).tile
    return [_read(name, kernel, target, dtype, depth, keep, tile) for name, kernel in made]


def _read(
    name: str, kernel: Any, target: str, dtype: torch.dtype, depth: int, keep: int,
    tile: int,
) -> Compiled:  # fmt: skip
    """Return the code that one kernel was compiled to."""
    device, asm = DEVICES[target], kernel.asm
    read = _of_amd(asm["amdgcn"]) if device.amd else _of_nvidia(asm["cubin"])
    registers, stack, loop = read
    return Compiled(
        name, target, str(dtype).removeprefix("torch."), depth, keep,
        shared=kernel.metadata.shared, limit=device.shared, registers=registers, stack=stack,
        tile=tile, instructions=len(loop), moved=sum(bool(re.search(MOVES, line)) for line in loop),
        asynchronous=asm.get("ptx", "").count("cp.async"),
    )  # fmt: skip


def _of_nvidia(cubin: bytes) -> tuple[int, int, list[str]]:
    """Return registers, stack, and the instructions of the loop over tiles."""
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
    places = {int(at, 16): n for n, (at, _) in enumerate(lines)}
    jumps = (re.search(r"\bBRA\b.*?(0x[0-9a-f]+)", line) for _, line in lines)
    targets = [None if jump is None else places.get(int(jump[1], 16)) for jump in jumps]
    return int(found[1]), int(found[2]), _loop_over_tiles([line for _, line in lines], targets)


def _of_amd(assembly: str) -> tuple[int, int, list[str]]:
    """Return the same of assembly, in which a label stands before what it names."""
    lines: list[str] = []
    labels: dict[str, int] = {}
    for line in (text.split(";")[0].strip() for text in assembly.splitlines()):
        if line.startswith(".LBB") and line.endswith(":"):
            labels[line[:-1]] = len(lines)
        elif line and not line.startswith(".") and not line.endswith(":"):
            lines.append(line)
    jumps = (re.match(r"s_c?branch\S*\s+(\.LBB\S+)", line) for line in lines)
    targets = [None if jump is None else labels.get(jump[1]) for jump in jumps]
    registers, stack = (
        max(map(int, re.findall(rf"{name}:?\s+(\d+)", assembly)), default=0)
        for name in (r"\.vgpr_count", r"\.private_segment_fixed_size")
    )
    return registers, stack, _loop_over_tiles(lines, targets)


#: Instructions that multiply matrices, or numbers where no unit multiplies matrices of them.
PRODUCTS = r"MMA|FFMA.*R\d+, R\d+, R\d+, R\d+|v_mfma|v_smfma|v_wmma|v_(pk_|dual_)?fmac?_f32"
#: Instructions that move registers to and from a thread's own memory.
MOVES = r"\b(LDL|STL)\b|^scratch_"


def _loop_over_tiles(lines: list[str], targets: list[int | None]) -> list[str]:
    """Return the loop over tiles without a mask: of those that multiply matrices the shortest.

    targets: for each line, that to which it jumps.
    """
    loops = [lines[to : n + 1] for n, to in enumerate(targets) if to is not None and to < n]
    multiply = [loop for loop in loops if sum(bool(re.search(PRODUCTS, at)) for at in loop) >= 4]
    return min(multiply, key=len)


def main() -> None:
    """Compile and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--targets", nargs="+", choices=DEVICES, default=list(DEVICES))
    parser.add_argument("--depths", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--keep", type=int, nargs="+", default=[32])
    parser.add_argument(
        "--with", dest="added", default="nothing",
        choices=["nothing", *asked_beside(2)],
    )  # fmt: skip
    options = parser.parse_args()
    for target in options.targets:
        for dtype in options.dtypes:
            for depth in options.depths:
                for keep in options.keep:
                    made = compiled(target, getattr(torch, dtype), depth, keep, options.added)
                    for row in made:
                        print(json.dumps(asdict(row)), flush=True)


if __name__ == "__main__":
    main()
