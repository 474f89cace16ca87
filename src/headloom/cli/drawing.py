"""Pictures that verbs draw beside what they print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Drawn(Protocol):
    """What has a picture."""

    def plot(self, *, ax: Figure) -> object:
        """Draw it onto a figure."""


def draw(result: Drawn, path: Path) -> None:
    """Draw what ``result.plot()`` does to a file."""
    from matplotlib.figure import Figure

    from headloom.studio.pictures import save_picture

    figure = Figure()
    result.plot(ax=figure)
    save_picture(figure, path)
