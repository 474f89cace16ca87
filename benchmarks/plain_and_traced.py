"""A model's plain forward pass and its trace on disk, in turn, each in a process of its own."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from side_by_side import peak_memory

__all__ = ["main", "parser"]

Load = Callable[[argparse.Namespace], tuple[nn.Module, Tensor]]


def parser(document: str, repeats: int) -> argparse.ArgumentParser:
    """The options that all these benchmarks have."""
    options = argparse.ArgumentParser(description=document.splitlines()[0])
    options.add_argument("--length", type=int, default=1024)
    options.add_argument("--repeats", type=int, default=repeats)
    options.add_argument("--queries-keys", action="store_true")
    options.add_argument("--only", choices=("peer", "weft"), help="one run, in this process")
    return options


def main(options: argparse.ArgumentParser, load: Load) -> None:
    """Measure, in processes of their own, and print.

    Args: load: the model, and the ids that it reads.
    """
    settings = options.parse_args()
    if settings.only:
        _measure(*load(settings), settings)
        return
    runs: dict[str, list[dict[str, float]]] = {"peer": [], "weft": []}
    for _ in range(settings.repeats):
        for what, measured in runs.items():
            measured.append(_in_a_process([*sys.argv, "--only", what]))
    for what, measured in runs.items():
        print(
            f"{what}: {_median(measured, 'seconds'):.2f} s, {_median(measured, 'memory'):,.0f} MB"
        )
    print(f"deviation: {max(run['deviation'] for run in runs['weft']):.1e}")
    for name in ("memory", "seconds"):
        ratios = sorted(
            ours[name] / peer[name] for peer, ours in zip(runs["peer"], runs["weft"], strict=True)
        )
        print(
            f"ratio of {name}, weft / peer, at N = {settings.length:,}: "
            f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


def _in_a_process(command: Sequence[str]) -> dict[str, float]:
    done = subprocess.run([sys.executable, *command], stdout=subprocess.PIPE, check=True, text=True)
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def _median(runs: Sequence[dict[str, float]], name: str) -> float:
    return statistics.median(run[name] for run in runs)


def _measure(model: nn.Module, ids: Tensor, settings: argparse.Namespace) -> None:
    """One pass in this process; prints its seconds and the peak memory in MB."""
    import weft

    deviation = None
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        model(ids[:, :64], use_cache=False)
        if settings.only == "weft":
            # Both processes have then loaded all they need.
            weft.trace(model, ids[:, :64], save=Path(folder) / "first")
        start = time.perf_counter()
        if settings.only == "weft":
            trace = weft.trace(
                model, ids, save=Path(folder) / "trace", queries_keys=settings.queries_keys
            )
            deviation = trace.deviation
        else:
            model(ids, use_cache=False)
        seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "memory": peak_memory(), "deviation": deviation}))
