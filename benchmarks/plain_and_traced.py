"""What a model does plainly and its trace on disk, in turn, each in a process of its own."""

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
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from side_by_side import peak_memory

if TYPE_CHECKING:
    from headloom.formats.trace import TraceData

    #: From a model, ids and a folder, None for a plain run, to the trace, where there is one.
    Run = Callable[[nn.Module, Tensor, Path | None, argparse.Namespace], TraceData | None]

__all__ = ["main", "parser"]

Load = Callable[[argparse.Namespace], tuple[nn.Module, Tensor]]


def one_pass(
    model: nn.Module, ids: Tensor, save: Path | None, settings: argparse.Namespace
) -> TraceData | None:
    """One pass over the ids, plain or traced."""
    import headloom

    if save is None:
        model(ids, use_cache=False)
        return None
    trace = headloom.trace(model, ids, save=save, queries_keys=settings.queries_keys)
    assert not isinstance(trace, list)
    return trace


def parser(document: str, repeats: int) -> argparse.ArgumentParser:
    """Return the options that all these benchmarks have."""
    options = argparse.ArgumentParser(description=document.splitlines()[0])
    options.add_argument("--length", type=int, default=1024)
    options.add_argument("--repeats", type=int, default=repeats)
    options.add_argument("--queries-keys", action="store_true")
    options.add_argument(
        "--processor-time", action="store_true", help="of all threads, not on the clock: busy hosts"
    )
    options.add_argument("--only", choices=("peer", "headloom"), help="one run, in this process")
    return options


def main(options: argparse.ArgumentParser, load: Load, run: Run = one_pass) -> None:
    """Measure, in processes of their own, and print.

    Args: load: the model, and the ids that it reads. run: what is measured.
    """
    settings = options.parse_args()
    if settings.only:
        _measure(*load(settings), settings, run)
        return
    runs: dict[str, list[dict[str, float]]] = {"peer": [], "headloom": []}
    for _ in range(settings.repeats):
        for what, measured in runs.items():
            measured.append(_in_a_process([*sys.argv, "--only", what]))
    for what, measured in runs.items():
        print(
            f"{what}: {_median(measured, 'seconds'):.2f} s, {_median(measured, 'memory'):,.0f} MB"
        )
    print(f"deviation: {max(run['deviation'] for run in runs['headloom']):.1e}")
    for name in ("memory", "seconds"):
        ratios = sorted(
            ours[name] / peer[name]
            for peer, ours in zip(runs["peer"], runs["headloom"], strict=True)
        )
        print(
            f"ratio of {name}, headloom / peer, at N = {settings.length:,}: "
            f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


def _in_a_process(command: Sequence[str]) -> dict[str, float]:
    done = subprocess.run([sys.executable, *command], stdout=subprocess.PIPE, check=True, text=True)
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def _median(runs: Sequence[dict[str, float]], name: str) -> float:
    return statistics.median(run[name] for run in runs)


def _measure(model: nn.Module, ids: Tensor, settings: argparse.Namespace, run: Run) -> None:
    """One run in this process; prints its seconds and the peak memory in MB."""
    traces = settings.only == "headloom"
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        # Both processes have then loaded all they need.
        run(model, ids[:, :64], None, settings)
        if traces:
            run(model, ids[:, :64], Path(folder) / "first", settings)
        clock = time.process_time if settings.processor_time else time.perf_counter
        start = clock()
        trace = run(model, ids, Path(folder) / "trace" if traces else None, settings)
        seconds = clock() - start
        deviation = None if trace is None else trace.deviation
    print(json.dumps({"seconds": seconds, "memory": peak_memory(), "deviation": deviation}))
