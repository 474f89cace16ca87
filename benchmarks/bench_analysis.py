"""Claim: the analyses of a whole model are a matter of seconds, at lengths where no matrix fits.

A model of GPT-2 small's shape (12 layers of 12 heads), its random scores sharpened so that rows are
neither flat nor on single keys, traced once. Then every measure over all of its layers and heads:
from the kept edges (claim: at most 20 s each), and from all weights (claim: at most 5 times the
model's own forward pass), each at most 4 GB; each in a process of its own that opens the trace from
disk. Prints seconds and peak memory, the ratio to the forward pass last.

    python benchmarks/bench_analysis.py --trace /tmp/gpt2-8192 --length 8192         # the claim
    python benchmarks/bench_analysis.py --trace /tmp/gpt2-8192 --measures pagerank --only exact
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import headloom
from headloom.analysis.compare import distance
from headloom.analysis.effects.relevance import relevance
from headloom.analysis.graphs.flow import attention_flow
from headloom.analysis.graphs.rollout import rollout, rollout_columns, rollout_rows
from headloom.analysis.graphs.spectrum import pagerank
from headloom.analysis.graphs.strength import (
    components,
    heavy_hitters,
    received,
    reciprocity,
)
from headloom.analysis.sql.query import ask
from headloom.analysis.weights import Source
from headloom.api.trace import Trace
from headloom.formats.trace import TraceLayer

Measure = Callable[[Trace, bool], Any]


def of_layers(measure: Callable[[Source], Any]) -> Measure:
    """Return a measure of a layer as one of a trace; a layer is let go before the next one."""

    def run(trace: Trace, exact: bool) -> list[Any]:
        found = []
        for number in range(len(trace.layers)):
            layer = fresh(trace, number)
            source = layer.matrix if exact else layer.graph
            assert source is not None
            found.append(measure(source))
        return found

    return run


def fresh(trace: Trace, number: int) -> TraceLayer:
    """Return a layer that remembers nothing of what was read of it before."""
    return replace(trace.layers[number])


def middle(trace: Trace) -> int:
    return len(trace.tokens) // 2


MEASURES: dict[str, Measure] = {
    "received": of_layers(received),
    "heavy hitters": of_layers(lambda source: heavy_hitters(source).count),
    "reciprocity": of_layers(lambda source: reciprocity(source)),
    "pagerank": of_layers(lambda source: pagerank(source).mean),
    "components": of_layers(lambda source: components(source, 0.05).count),
    "rollout row": lambda trace, exact: rollout_rows(trace, -1, exact=exact).values[0],
    "rollout column": lambda trace, exact: rollout_columns(trace, 0, exact=exact).values[:, 0],
    "rollout whole": lambda trace, exact: rollout(trace, exact=exact),
    "change": lambda trace, exact: [
        distance(fresh(trace, number), fresh(trace, number - 1), exact=exact)
        for number in range(1, len(trace.layers))
    ],
    "roles": lambda trace, exact: trace.heads() if exact else heads_of_edges(trace),
}
#: Measures that there is one way to take only.
OF_EDGES: dict[str, Measure] = {
    "flow": lambda trace, _: attention_flow(trace, -1, middle(trace), exact=False),
    "sql": lambda trace, _: ask(
        trace, "select layer, head, key, sum(weight) s from edges group by all order by s limit 10"
    ).table(),
}


def heads_of_edges(trace: Trace) -> Any:
    from headloom.analysis.heads.roles import heads

    return heads(trace, exact=False)


def peak_memory() -> float:
    """Return the most memory of this process, in megabytes; not of the one that started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def model_of(length: int) -> Any:
    """GPT-2 small with random weights, the scores of its heads as sharp as trained ones."""
    import transformers

    torch.manual_seed(1)
    config = transformers.GPT2Config(n_positions=max(length, 1024))
    model = transformers.GPT2LMHeadModel._from_config(config, attn_implementation="sdpa").eval()
    with torch.no_grad():
        for block in model.transformer.h:
            block.attn.c_attn.weight[:, : 2 * config.n_embd] *= 2.6
    ids = torch.randint(0, config.vocab_size, (1, length))
    return model, ids


def make(folder: Path, length: int) -> dict[str, Any]:
    """Trace the model; the seconds of its forward pass alone, in the same process."""
    model, ids = model_of(length)
    body = model.transformer
    with torch.no_grad():
        body(ids[:, :64], use_cache=False)
        start = time.perf_counter()
        body(ids, use_cache=False)
        seconds = time.perf_counter() - start
    trace = headloom.trace(body, ids, save=folder, overwrite=folder.exists())
    rest = sum(float(layer.graph.rest.mean()) for layer in trace.layers) / len(trace.layers)
    return {"forward": seconds, "rest": rest, "memory": peak_memory()}


def one(folder: Path, name: str, exact: bool) -> dict[str, Any]:
    """One measure in this process."""
    if name == "relevance":
        trace = headloom.open(folder)
        model, ids = model_of(len(trace.tokens))
        start = time.perf_counter()
        relevance(model, ids, rows=-1)
    else:
        trace = headloom.open(folder)
        measure = (MEASURES | OF_EDGES)[name]
        start = time.perf_counter()
        measure(trace, exact)
    return {"seconds": time.perf_counter() - start, "memory": peak_memory()}


def in_a_process(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, *arguments], capture_output=True, check=False, text=True
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--trace", type=Path, help="where the trace is, or is to be")
    parser.add_argument("--measures", nargs="+", help="some of them")
    parser.add_argument("--only", choices=("kept", "exact"))
    parser.add_argument("--process", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(2)
    if given.process:
        what, *rest = given.process
        result = (
            make(given.trace, given.length)
            if what == "make"
            else one(given.trace, what, rest == ["exact"])
        )
        print(json.dumps(result))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.trace or Path(temporary) / "trace"
        notes = folder.with_suffix(".json")
        if not folder.exists():
            made = in_a_process(
                "--trace", str(folder), "--length", str(given.length), "--process", "make"
            )
            notes.write_text(json.dumps(made))
        made = json.loads(notes.read_text())
        forward = made["forward"]
        print(f"forward {forward:.2f} s; {made['rest']:.2f} of the mass is on no kept edge")
        everything = [*MEASURES, *OF_EDGES, "relevance"]
        chosen = given.measures or everything
        for name in chosen:
            ways = ["kept"] if name in OF_EDGES else ["exact"] if name == "relevance" else [
                "kept", "exact"]  # fmt: skip
            for way in ways:
                if given.only in (None, way):
                    run = in_a_process("--trace", str(folder), "--process", name, way)
                    line = f"{name:16} {way:6} {run['seconds']:7.2f} s {run['memory']:6,.0f} MB"
                    if way == "exact":
                        line += f"   {run['seconds'] / forward:5.2f} x forward"
                    print(line, flush=True)


if __name__ == "__main__":
    main()
