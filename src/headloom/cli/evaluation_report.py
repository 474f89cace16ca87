"""What `headloom evaluate` prints of one model, and of two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headloom.cli.tables import print_table

if TYPE_CHECKING:
    from headloom.api.evaluation import Evaluated, Pair
    from headloom.training.measures.corpus import CorpusMeasure
    from headloom.training.measures.resampling import Confidence

__all__ = ["print_one", "print_two"]


def _title(evaluated: Evaluated) -> str:
    """What was measured, and on what."""
    results, notes = evaluated.results, evaluated.notes
    parts = [evaluated.name]
    if "step" in notes:
        parts.append(f"step {notes['step']:,}, {results.split} data")
    shown = {"examples": "{:,} examples", "beam": "beam {}", "tokens": "{:,} tokens",
             "targets": "{:,} targets", "bytes": "{:,} bytes"}  # fmt: skip
    parts += [form.format(results.facts[name]) for name, form in shown.items()
              if name in results.facts]  # fmt: skip
    return ", ".join(parts)


def _facts(evaluated: Evaluated) -> None:
    facts = evaluated.results.facts
    if facts.get("unknown_tokens"):
        print(
            f"Not in the vocabulary: {facts['unknown_tokens']:,} of the tokens; what they would "
            "cost is missing in bits per byte."
        )
    if "chance" in facts:
        print(f"Chance: {facts['chance']:.4f} right.")


def _signatures(evaluated: Evaluated) -> None:
    for measure in evaluated.results.measures:
        if measure.signature is not None:
            print(f"{measure.label}: {measure.signature}")


def _number(measure: CorpusMeasure, value: float) -> str:
    return f"{value:.{measure.digits}f}"


def _range(measure: CorpusMeasure, part: Confidence | None) -> str:
    if part is None:
        return "-"
    return f"{part.low:.{measure.digits}f}-{part.high:.{measure.digits}f}"


def print_one(evaluated: Evaluated, intervals: Mapping[str, Confidence]) -> None:
    """The measures of one model, with intervals."""
    how = evaluated.resampling
    print(_title(evaluated))
    rows = [
        [m.label, _number(m, m.value), _range(m, intervals.get(m.name))]
        for m in evaluated.results.measures
    ]
    print_table(("measure", "value", f"{how.level:.0%} interval"), rows, left=("measure",))
    _facts(evaluated)
    _signatures(evaluated)


def print_two(pair: Pair) -> None:
    """Two models side by side, and what that means."""
    how = pair.first.resampling
    print(f"A: {_title(pair.first)}")
    print(f"B: {_title(pair.second)}")
    interval = f"{how.level:.0%}"
    header = ("measure", "A", f"{interval} of A", "B", f"{interval} of B", "B - A", "p")
    rows = [
        [
            c.measure.label,
            _number(c.measure, c.first), _range(c.measure, c.first_interval),
            _number(c.measure, c.second), _range(c.measure, c.second_interval),
            f"{c.difference:+.{c.measure.digits}f}", f"{c.p:.4f}",
        ]
        for c in pair.comparisons
    ]  # fmt: skip
    print_table(header, rows, left=("measure",))
    if pair.left_out:
        print(f"Not comparable: {', '.join(pair.left_out)}.")
    from headloom.api.evaluation import in_words

    print(in_words(pair))
    _signatures(pair.first)
