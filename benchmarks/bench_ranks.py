"""Claim: several processes learn what one does, and send no more than the sums of gradients need.

Trains the translator of examples/dates.toml, cut to some steps, by 1, 2 and 4 processes of this
machine, with whole replicas (DDP) and with shares (FSDP2). Prints the largest difference of any
reported loss from that of one process, the bytes that a process sends a step, beside what a ring
sends at least, 2 (R - 1) / R times the gradients (Patarasuk and Yuan 2009), and seconds a step.
On a machine with as many cores as before, more processes are no faster: this measures what they
cost.

    python benchmarks/bench_ranks.py

Bytes are counted on the loopback interface, everybody's: in a network of its own nobody else sends.

    unshare --net sh -c 'ip link set lo up; python benchmarks/bench_ranks.py'
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from headloom.formats.run import RunFolder
from headloom.formats.tensors import load_tensors

ROOT = Path(__file__).parents[1]


def sent() -> int:
    """Bytes sent on the loopback interface since the machine started."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == "lo":
            return int(counters.split()[8])
    raise SystemExit("this machine has no loopback interface named lo")


def train(run: Path, ranks: int, parallel: str, steps: int) -> tuple[list[float], float, int]:
    """The losses, the seconds of training, and the bytes that were sent."""
    changes = {
        "training.max_steps": steps, "training.validate_every": steps, "training.history": "false",
        "training.checkpoint_every": steps, "training.parallel": f'"{parallel}"',
        "training.optimiser": '"adamw"', "training.peak_learning_rate": 1e-3,
        "training.warmup": 10, "training.products": '"float32"', "model.dropout": 0.0,
        "task.train_examples": 20_000,
    }  # fmt: skip
    command = [sys.executable, "-m", "headloom", "train", str(ROOT / "examples" / "dates.toml")]
    for key, value in changes.items():
        command += ["--set", f"{key}={value}"]
    before = sent()
    done = subprocess.run(
        [*command, "--run", str(run), "--processes", str(ranks), "--threads", "1"],
        capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"bench_ranks.py: a training of {ranks} processes failed: {done.stderr.strip()}")
    reports = RunFolder(run).read_metrics()
    losses = [report.get("loss", report.get("validation_loss")) for report in reports]
    return losses, reports[-1]["seconds"], sent() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    if options.steps < 3:
        sys.exit(f"bench_ranks.py: --steps {options.steps}: expected 3 or more.")
    few = options.steps // 3
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        alone, seconds, _ = train(folder / "1", 1, "ddp", options.steps)
        weights, _ = load_tensors(folder / "1" / "best.safetensors", "weights")
        gradients = sum(weight.nbytes for weight in weights.values())
        print(f"1 process: {1e3 * seconds / options.steps:.0f} ms a step")
        print(f"gradients: {gradients:,} bytes", flush=True)
        for parallel in ("ddp", "fsdp"):
            for ranks in (2, 4):
                _, _, begun = train(folder / f"{parallel}{ranks}-few", ranks, parallel, few)
                losses, seconds, total = train(
                    folder / f"{parallel}{ranks}", ranks, parallel, options.steps
                )
                difference = max(abs(a - b) for a, b in zip(losses, alone, strict=True))
                each = (total - begun) / (options.steps - few) / ranks
                least = 2 * (ranks - 1) / ranks * gradients
                print(
                    f"{parallel}, {ranks} processes: {1e3 * seconds / options.steps:.0f} ms a "
                    f"step, losses within {difference:.1e}, {each:,.0f} bytes a step and process, "
                    f"{each / least:.2f} of a ring's least",
                    flush=True,
                )


if __name__ == "__main__":
    main()
