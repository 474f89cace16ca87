"""Pictures that verbs draw beside what they print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headloom.analysis.alignment.align import Alignment


def draw_alignment(result: Alignment, path: Path) -> None:
    """Draw the weights between the words of the first pair, its links outlined."""
    from headloom.studio.pictures import alignment, save_picture

    figure = alignment(
        result.first.weights[0], query_tokens=result.first.target,
        key_tokens=result.first.source, links=result.links[0],
        title=f"links of words by head{'s' * (len(result.heads) > 1)} "
        f"{', '.join(map(str, result.heads))}",
    )  # fmt: skip
    save_picture(figure, path)
