"""What `headloom align` prints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headloom.cli.tables import cell, print_table

if TYPE_CHECKING:
    from headloom.analysis.alignment.align import Alignment
    from headloom.formats.files import JsonObject

__all__ = ["draw_first", "print_alignment", "report_of"]


def print_alignment(result: Alignment, output: Path, limit: int) -> None:
    """The best heads, those that were taken, and how far their links are from gold."""
    rows = [
        [str(row.head), *(cell("score", value) for value in _values(row.agreement, row.error_rate))]
        for row in result.table[:limit]
    ]
    print_table(["head", "agreement", "AER", "precision", "recall"], rows, left=("head",))
    names = ", ".join(map(str, result.heads))
    several = "the mean of the heads" if len(result.heads) > 1 else "the head"
    chosen = f", chosen on {_pairs(result.chosen_on)}" if result.chosen_on else ""
    print(f"Links by {several} {names}{chosen}.")
    if result.note:
        print(f"{result.note[:1].upper()}{result.note[1:]}")
    if result.error_rate is not None:
        others = "other " if result.chosen_on else ""
        print(f"On the {others}{result.measured_on:,}: {result.error_rate}.")
    links = sum(map(len, result.links))
    print(f"{links:,} link{'s' * (links != 1)} of {_pairs(len(result.links))}: {output}")


def _pairs(count: int) -> str:
    return f"{count:,} pair{'s' * (count != 1)}"


def draw_first(result: Alignment, path: Path) -> None:
    """Draw the weights between the words of the first pair, and its links."""
    from headloom.studio.pictures.alignment import alignment
    from headloom.studio.pictures.canvas import save_picture

    pair = result.first
    names = ", ".join(map(str, result.heads))
    figure = alignment(
        pair.weights[0],
        query_tokens=pair.target,
        key_tokens=pair.source,
        links=result.links[0],
        title=f"links of words by head{'s' * (len(result.heads) > 1)} {names}",
    )
    save_picture(figure, path)


def report_of(result: Alignment, output: Path) -> JsonObject:
    """The same by names."""
    rate = result.error_rate
    return {
        "alignment": str(output),
        "pairs": len(result.links),
        "links": sum(map(len, result.links)),
        "heads": [str(head) for head in result.heads],
        "chosen_on": result.chosen_on,
        "note": result.note,
        "measured_on": result.measured_on,
        "aer": None if rate is None else rate.aer,
        "precision": None if rate is None else rate.precision,
        "recall": None if rate is None else rate.recall,
        "table": [
            {
                "head": str(row.head),
                **dict(
                    zip(
                        ("agreement", "aer", "precision", "recall"),
                        _values(row.agreement, row.error_rate),
                        strict=True,
                    )
                ),
            }
            for row in result.table
        ],
    }


def _values(agreement: float, rate: object) -> list[float | None]:
    numbers = [getattr(rate, name, None) for name in ("aer", "precision", "recall")]
    return [agreement, *numbers]
