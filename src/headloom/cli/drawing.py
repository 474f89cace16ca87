"""Pictures that verbs draw beside what they print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headloom.analysis.alignment.align import Alignment
    from headloom.analysis.eviction.evict import Eviction
    from headloom.analysis.image_map import ImageMap


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


def draw_eviction(result: Eviction, path: Path) -> None:
    """Draw which keys stay at the middle budget."""
    from headloom.studio.pictures import eviction, save_picture

    save_picture(eviction(result, len(result.budgets) // 2), path)


def draw_image_map(seen: ImageMap, path: Path) -> None:
    """Draw a map over its picture."""
    from headloom.studio.pictures import save_picture, word_map

    head = "the mean of all heads" if seen.head is None else f"head {seen.head}"
    outside = seen.outside_in_words
    caption = f"{seen.layer}, {head}: {seen.mass:.1%} of its weight is on the image{outside}"
    title = f"What “{seen.word}” looks at"
    save_picture(word_map(seen, seen.picture, title=title, caption=caption), path)
