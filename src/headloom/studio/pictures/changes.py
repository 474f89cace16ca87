"""`changes`: how much each head changed from one trace to another."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from headloom.analysis.compare import Comparison
from headloom.studio.pictures.canvas import (
    Onto,
    Sheet,
    bare,
    fitting,
    of_cells,
    room,
    ticks_of,
    weight_colours,
)
from headloom.studio.pictures.palette import Theme, palette

#: Units: a cell, and what stands left, above, right and below.
_CELL, _LEFT, _ABOVE, _RIGHT, _FOOT = 0.36, 0.75, 0.75, 0.25, 0.62
#: Units of a cell that its number fits in.
_WRITTEN = 0.3


def changes(
    result: Comparison,
    *,
    onto: Onto = None,
    width: float | None = None,
    theme: Theme | None = None,
    **options: Any,
) -> Axes:
    """The change of each head, as a matrix: layers are rows, heads columns.

    A cell is the share of a row's mass that is on other keys in the second trace, the mean over
    queries, in per cent where there is room for it; of kept edges alone, at least that.

    Args:
        result: of `headloom.compare`.
        onto, width, theme, options: as of `headloom.studio.pictures.alignment.alignment`.
    """
    table = result.heads
    layers, heads = sorted(table["layer"].unique()), int(table["head"].max()) + 1
    grid = np.full((len(layers), heads), np.nan)
    grid[[layers.index(layer) for layer in table["layer"]], table["head"]] = table["change"]
    colours, space = palette(theme), room(onto, width)
    cell = fitting(_CELL, (space[0],), (_LEFT + _RIGHT, heads))
    how = of_cells(options, colours)
    title = f"heads that changed: {table['change'].max():.0%} at most"
    if isinstance(onto, Axes):
        axes = onto
        axes.imshow(grid, **({"aspect": "equal"} | how))
        bare(axes, colours)
        cell = float((axes.bbox.size / axes.figure.dpi / grid.shape[::-1]).min())
        axes.set_title(title, color=colours.ink)
    else:
        wide, high = heads * cell, len(layers) * cell
        sheet = Sheet(
            onto, space[0] or max(_LEFT + wide + _RIGHT, 3.2), _ABOVE + high + _FOOT, colours
        )
        axes = sheet.matrix(_LEFT, _ABOVE, wide, high, grid, **how)
        sheet.title(title)
        scale = weight_colours(options, colours)
        least = "" if table["exact"].all() else ", at least"
        sheet.scale(
            _LEFT, 0.22, min(1.6, wide), scale, ticks_of(scale), f"mass that is elsewhere{least}"
        )
    names = [f"{layer}" for layer in layers]
    axes.set_xticks(range(heads))
    axes.set_yticks(range(len(layers)), names)
    axes.tick_params(
        length=0, top=False, labeltop=True, labelbottom=False, labelcolor=colours.faint
    )
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("head", color=colours.faint)
    axes.set_ylabel("layer", color=colours.faint)
    return axes
