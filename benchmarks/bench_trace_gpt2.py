"""Claim: a trace on disk of a model of GPT-2 small's shape costs 1.10 x its plain forward.

Peer: the same model of Transformers, random weights, fused attention (sdpa), nothing caught. Weft
keeps the 32 strongest edges of every query of 12 layers of 12 heads, verified, and writes them and
the rows layer by layer (--queries-keys: those too). Each run is a process of its own, peer and weft
in turn; prints the median seconds and the peak memory of each, and the ratios last.

    python benchmarks/bench_trace_gpt2.py                  # N = 1024
    python benchmarks/bench_trace_gpt2.py --length 8192    # the claim
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch


def measure(what: str, length: int, queries_keys: bool) -> None:
    """One forward in this process; prints its seconds and the peak memory in MB."""
    import transformers

    import weft

    torch.manual_seed(1)
    config = transformers.GPT2Config(n_positions=max(length, 1024))
    model = transformers.GPT2Model._from_config(config, attn_implementation="sdpa").eval()
    ids = torch.randint(0, config.vocab_size, (1, length))
    deviation = None
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        model(ids[:, :64], use_cache=False)
        if what == "weft":
            # Both processes have then loaded all they need.
            weft.trace(model, ids[:, :64], save=Path(folder) / "first")
        start = time.perf_counter()
        if what == "weft":
            trace = weft.trace(model, ids, save=Path(folder) / "trace", queries_keys=queries_keys)
            deviation = trace.deviation
        else:
            model(ids, use_cache=False)
        seconds = time.perf_counter() - start
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "memory": memory, "deviation": deviation}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--queries-keys", action="store_true")
    parser.add_argument("--only", choices=("peer", "weft"), help="one run, in this process")
    given = parser.parse_args()
    if given.only:
        measure(given.only, given.length, given.queries_keys)
        return
    found: dict[str, list[dict[str, float]]] = {"peer": [], "weft": []}
    command = [sys.executable, __file__, "--length", str(given.length)]
    command += ["--queries-keys"] if given.queries_keys else []
    for _ in range(given.repeats):
        for what, runs in found.items():
            done = subprocess.run(
                [*command, "--only", what], capture_output=True, check=True, text=True
            )
            runs.append(json.loads(done.stdout.splitlines()[-1]))
    for what, runs in found.items():
        seconds = statistics.median(run["seconds"] for run in runs)
        memory = statistics.median(run["memory"] for run in runs)
        print(f"{what}: {seconds:.2f} s, {memory:,.0f} MB")
    print(f"deviation: {max(run['deviation'] for run in found['weft']):.1e}")
    for measured in ("memory", "seconds"):
        peer, ours = (
            statistics.median(run[measured] for run in found[what]) for what in ("peer", "weft")
        )
        print(f"ratio of {measured}, weft / peer, at N = {given.length:,}: {ours / peer:.2f}")


if __name__ == "__main__":
    main()
