"""Claim: `headloom translate` takes the same memory for 50,000 lines as for 1,000.

Peer: itself, with 1,000 lines. Lines are sources of the run's validation data, over and over. Each
count is a process of its own, plainly, and with --json, n best and alignments. Prints the peak
memory of each, and the ratio to that of 1,000 lines, last.

    python benchmarks/bench_translate_memory.py --run RUN      # a translator that you have trained
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from headloom.training.inference import open_run
from headloom.training.tasks import make_task
from headloom.training.tasks.pairs import PairsTask

#: A process's ru_maxrss begins with that of the process that started it; VmHWM is its own.
TRANSLATE = """
import sys
from pathlib import Path
from headloom.cli import main
try:
    main(["translate", *sys.argv[1:]])
finally:
    print(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0], file=sys.stderr)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--lines", type=int, nargs="+", default=[1_000, 10_000, 50_000])
    parser.add_argument("--described", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--window", type=int, default=500)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    run = open_run(options.run)
    task = make_task(run.config, run.data)
    assert isinstance(task, PairsTask)
    texts = [source for source, _ in task.pairs("valid")]
    common = ["--lines-at-once", str(options.window), "--threads", str(options.threads)]
    kinds = {
        "beam 1": (options.lines, ["--beam", "1"]),
        "--json, 3 best of beam 3": (options.described, ["--beam", "3", "--n-best", "3", "--json"]),
    }
    for name, (counts, arguments) in kinds.items():
        peaks = []
        for count in counts:
            seconds, peak, size = translated(options.run, texts, count, [*common, *arguments])
            peaks.append(peak)
            print(
                f"{name}: {count:6,} lines, {seconds:7.1f} s, {count / seconds:6,.0f} lines/s, "
                f"{size / 2**20:6.1f} MB written, peak {peak:6.1f} MB",
                flush=True,
            )
        print(f"ratio {peaks[-1] / peaks[0]:.2f} ({counts[-1]:,} lines / {counts[0]:,})")


def translated(
    run: Path, texts: list[str], count: int, options: list[str]
) -> tuple[float, float, int]:
    """Seconds, peak memory in megabytes, and bytes written, of a process that translates lines."""
    with tempfile.TemporaryDirectory() as name:
        lines, out = Path(name) / "lines", Path(name) / "out"
        lines.write_text(
            "".join(f"{text}\n" for text in itertools.islice(itertools.cycle(texts), count))
        )
        command = [sys.executable, "-c", TRANSLATE, str(run), "--file", str(lines), *options]
        start = time.perf_counter()
        with out.open("wb") as file:
            done = subprocess.run(command, stdout=file, stderr=subprocess.PIPE, check=True)
        seconds = time.perf_counter() - start
        written = out.read_bytes()
        if (lines_written := written.count(b"\n")) != count:
            raise SystemExit(f"{lines_written} lines were written for {count}")
        return seconds, int(done.stderr.split()[-1]) / 1024, len(written)


if __name__ == "__main__":
    main()
