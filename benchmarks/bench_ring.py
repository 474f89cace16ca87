"""Claim: a ring of processes has what one has, each with its share of the memory.

12 heads of depth 64, N tokens, causal, Top(32), in 1, 2 and 4 processes of this machine, one thread
each. Prints the largest differences of output and weights from one process, and how much a
process's memory grows from before it makes its share of the inputs; the share of one process last.

    python benchmarks/bench_ring.py --tokens 8192
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

import headloom
from headloom.formats.tensors import load_tensors, save_tensors

HEADS, DEPTH = 12, 64


def inputs(tokens: int, rank: int, ranks: int) -> list[torch.Tensor]:
    """A process's part of queries, keys and values: drawn token by token, the same for any cut."""
    size = tokens // ranks
    parts = []
    for seed in range(3):
        rows = [
            torch.randn(HEADS, DEPTH, generator=torch.Generator().manual_seed(3 * token + seed))
            for token in range(rank * size, (rank + 1) * size)
        ]
        parts.append(torch.stack(rows, 1))
    return parts


def peak() -> int:
    """The most memory that this process has had, in bytes."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in x)
    return int(line.split()[1]) * 1024


def one_rank(folder: Path, rank: int, ranks: int, tokens: int) -> None:
    """What one process does; leaves its output and graph."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.FileStore(str(folder / "store"), ranks)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    small = [torch.randn(HEADS, 64, DEPTH) for _ in range(3)]
    headloom.ring_attend(*small, mask=headloom.causal())  # loads what is loaded once
    parts = inputs(tokens, rank, ranks)
    Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
    before = peak() - sum(part.nbytes for part in parts)
    start = time.perf_counter()
    output, graph = headloom.ring_attend(*parts, mask=headloom.causal())
    seconds = time.perf_counter() - start
    notes = {"bytes": peak() - before, "seconds": seconds}
    tensors = {"output": output, "keys": graph.keys, "weights": graph.weights}
    save_tensors(folder / f"{rank}.safetensors", tensors, notes)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=8_192, help="a multiple of 4")
    parser.add_argument("--part", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        one_rank(Path(options.part[0]), *map(int, options.part[1:]), options.tokens)
        return
    first: dict[str, torch.Tensor] = {}
    memory = {}
    for ranks in (1, 2, 4):
        with tempfile.TemporaryDirectory() as name:
            base = [sys.executable, __file__, "--tokens", str(options.tokens), "--part", name]
            processes = [subprocess.Popen([*base, str(rank), str(ranks)]) for rank in range(ranks)]
            if any(process.wait() for process in processes):
                raise SystemExit("a process failed")
            loaded = [
                load_tensors(Path(name) / f"{rank}.safetensors", "result") for rank in range(ranks)
            ]
        whole = {key: torch.cat([part[key] for part, _ in loaded], -2) for key in loaded[0][0]}
        memory[ranks] = max(notes["bytes"] for _, notes in loaded)
        seconds = max(notes["seconds"] for _, notes in loaded)
        first = first or whole
        output = float((whole["output"] - first["output"]).abs().max())
        weights = float((whole["weights"] - first["weights"]).abs().max())
        edges = float((whole["keys"] == first["keys"]).double().mean())
        print(
            f"{ranks} processes: output within {output:.1e}, weights within {weights:.1e}, "
            f"{edges:.4%} of the edges at the same place; {memory[ranks] / 1e6:.0f} MB a process, "
            f"{seconds:.1f} s",
            flush=True,
        )
    for ranks in (2, 4):
        print(f"memory of a process in {ranks}, of one's: {memory[ranks] / memory[1]:.2f}")


if __name__ == "__main__":
    main()
