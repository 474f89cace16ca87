"""Claim: a text of any length is learned from with little more memory than the text itself.

Peer: the same tokenizer given the whole text at once, its ids as a tensor, as people do. Each way
is a process of its own. Prints seconds and what the process took beside the text, at most, and the
ratio of that last. The ids are the same: tests/training/test_token_file.py.

    python benchmarks/bench_long_text.py --file TEXT --megabytes 20 --tokens pieces
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

#: One way, in a process of its own: prints tokens, seconds and megabytes.
TOKENISE = """
import sys, time
from pathlib import Path
import torch
from headloom.training.text import Vocabulary
from headloom.training.token_file import TokenFile

way, path, size, kind = sys.argv[1:]
once = Path(path).read_text()
text = once * max(1, round(float(size) * 2**20 / len(once.encode())))
if kind == "pieces":
    vocabulary = Vocabulary.of_pieces(once.splitlines(), 8_000)
else:
    vocabulary = Vocabulary.of_characters([once])

def held(what):
    return int(Path("/proc/self/status").read_text().split(what)[1].split()[0]) / 1024

before, start = held("VmRSS:"), time.perf_counter()
if way == "headloom":
    count = len(TokenFile.of_text(text, vocabulary).ids)
else:
    count = len(torch.tensor(vocabulary.tokenizer.encode(text, add_special_tokens=False).ids))
print(count, time.perf_counter() - start, held("VmHWM:") - before)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--file", type=Path, required=True, help="a text, taken over and over")
    parser.add_argument("--megabytes", type=float, default=20)
    parser.add_argument("--tokens", choices=("characters", "pieces"), default="pieces")
    options = parser.parse_args()
    arguments = [str(options.file), str(options.megabytes), options.tokens]
    taken = {}
    for way in ("peer", "headloom"):
        command = [sys.executable, "-c", TOKENISE, way, *arguments]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        count, seconds, taken[way] = (float(word) for word in printed.split())
        print(
            f"{way}: {options.megabytes:,.0f} MB of text, {count:,.0f} {options.tokens}, "
            f"{seconds:6.1f} s, {taken[way]:8,.0f} MB beside the text"
        )
    print(f"memory, headloom / peer: {taken['headloom'] / taken['peer']:.3f}")


if __name__ == "__main__":
    main()
