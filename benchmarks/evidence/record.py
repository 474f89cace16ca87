"""Writes what a program of this folder measured as its section of docs/evidence.md.

    from record import Claim, mean_and_spread, record

    record(Claim(
        name="What is claimed, as a short heading",
        claim="The claim in a sentence or two.",
        source="Author et al. 2023, theorem 1, https://...",
        published="83.0 +- 0.7 %",
        ours=f"{mean_and_spread(accuracies, '%')}",
        command="python benchmarks/evidence/name.py --folder PATH",
        details="A table in Markdown, or nothing.",
    ))

A section of the same name is replaced, every other stays as it is, and sections stand in the order
of their names. The time is that since the program began, the memory the most that it held.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import statistics
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from headloom.errors import InputError
from headloom.formats.files import atomic_file

__all__ = [
    "EVIDENCE",
    "Claim",
    "machine",
    "mean_and_spread",
    "peak_megabytes",
    "record",
    "section_of",
]

EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence.md"
_HEAD = """# Evidence

Published claims, and what headloom measures. Each section is written by the program that it names.
"""
_WIDTH = 100
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Claim:
    """A published claim, and what was measured for it.

    name        a heading, in one line; the section's name
    claim       what is claimed
    source      paper, place in it, address
    published   the figure that the source gives
    ours        the figure measured here, with its spread
    command     what measures it again
    details     more, as Markdown; lines are kept
    seconds     it took; None: since this program began
    megabytes   it held at most; None: the most that this program held
    machine     where; None: this one
    """

    name: str
    claim: str
    source: str
    published: str
    ours: str
    command: str
    details: str = ""
    seconds: float | None = None
    megabytes: float | None = None
    machine: str | None = None


def mean_and_spread(values: Sequence[float], unit: str = "", digits: int = 1) -> str:
    """Return the mean of several seeds, their standard deviation (n - 1), and how many there are.

    >>> mean_and_spread([82.0, 83.0, 84.0], "%")
    '83.0 ± 1.0 % (3 seeds)'
    """
    if len(values) < 2:
        raise InputError(f"mean_and_spread: {len(values)} values have no spread; give 2 or more.")
    mean, spread = statistics.mean(values), statistics.stdev(values)
    after = f" {unit}" if unit else ""
    return f"{mean:.{digits}f} ± {spread:.{digits}f}{after} ({len(values)} seeds)"


def section_of(claim: Claim) -> str:
    """Return the section of a claim, in Markdown.

    Raises: InputError: its name is not one line of text.
    """
    if not claim.name.strip() or "\n" in claim.name:
        raise InputError(f"record: the name {claim.name!r}; expected one line of text.")
    seconds = _age() if claim.seconds is None else claim.seconds
    most = peak_megabytes() if claim.megabytes is None else claim.megabytes
    items = {
        "Source": claim.source,
        "Published": claim.published,
        "Ours": claim.ours,
        "Time and memory": f"{_duration(seconds)}, {most:,.0f} MB; {claim.machine or machine()}",
    }
    lines = [f"## {claim.name}", "", *_wrapped(claim.claim), ""]
    for name, text in items.items():
        lines += _wrapped(f"- **{name}:** {text}", "  ")
    lines += ["", "```console", f"$ {claim.command}", "```"]
    if claim.details.strip():
        lines += ["", claim.details.strip()]
    return "\n".join(lines) + "\n"


def record(claim: Claim, path: Path = EVIDENCE) -> None:
    """Write the section of a claim, in place of the one of its name."""
    before = path.read_text("utf-8") if path.exists() else _HEAD
    parts = re.split(r"^(?=## )", before, flags=re.MULTILINE)
    head, sections = parts[0], {part.split("\n", 1)[0]: part for part in parts[1:]}
    sections[f"## {claim.name}"] = section_of(claim)
    chosen = [head, *(sections[name] for name in sorted(sections, key=str.casefold))]
    with atomic_file(path) as temporary:
        temporary.write_text("\n".join(part.strip("\n") + "\n" for part in chosen), "utf-8")
    print(f"written: {path}, {claim.name}")


def _wrapped(text: str, indent: str = "") -> list[str]:
    joined = " ".join(text.split())
    return textwrap.wrap(
        joined, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _duration(seconds: float) -> str:
    """Seconds as a person says them.

    >>> _duration(12.34), _duration(754), _duration(7300)
    ('12.3 s', '12 min 34 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _age() -> float:
    """Seconds since this program began."""
    began = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / _TICKS
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began


def peak_megabytes() -> float:
    """Return the most memory that this program, or one that it ran, held; in megabytes."""
    asked = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return max(resource.getrusage(who).ru_maxrss for who in asked) / 1024


def machine() -> str:
    """Return the processor, its cores, and torch."""
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    processor = found[1] if found else platform.machine()
    cores = len(os.sched_getaffinity(0))
    return f"{processor}, {cores} core{'s' * (cores > 1)}, torch {torch.__version__.split('+')[0]}"
