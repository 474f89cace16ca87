"""Static pictures: each is a function that draws onto axes, or onto a figure of its own size.

Methods `plot` call them; commands draw onto a figure outside of pyplot, which `save_picture`
writes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headloom.studio.pictures.alignment import alignment, changes, links
from headloom.studio.pictures.canvas import figure_of, save_picture
from headloom.studio.pictures.curves import curves
from headloom.studio.pictures.eviction import eviction
from headloom.studio.pictures.heads import heads
from headloom.studio.pictures.history import PRODUCT, WEIGHTS, history, snapshots
from headloom.studio.pictures.images import word_map

__all__ = [
    "PRODUCT", "WEIGHTS", "alignment", "changes", "curves", "draw", "eviction", "figure_of",
    "heads", "history", "links", "plot", "save_picture", "snapshots", "word_map",
]  # fmt: skip


def plot(name: str, *args: Any, ax: Axes | Figure | None = None, **options: Any) -> Any:
    """Draw a picture of this package, by its name.

    ax: axes, or a figure to fill; None: a new pyplot figure.
    """
    draw = globals()[name]
    if ax is not None:
        return draw(*args, onto=ax, **options)
    from matplotlib import pyplot

    figure = pyplot.figure(layout="none")
    try:
        return draw(*args, onto=figure, **options)
    except BaseException:
        pyplot.close(figure)
        raise


def draw(what: Any, path: Path | str, **options: Any) -> None:
    """Write the picture of ``what.plot()`` to a file, without pyplot."""
    figure = Figure()
    what.plot(ax=figure, **options)
    save_picture(figure, path)
