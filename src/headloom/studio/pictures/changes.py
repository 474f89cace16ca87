"""`changes`: how much each head changed from one trace to another."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from headloom.analysis.compare import Comparison
from headloom.studio.pictures.canvas import Page, picture

#: Units: a cell, and what stands left, above, right and below.
_CELL, _LEFT, _ABOVE, _RIGHT, _FOOT = 0.36, 0.75, 0.95, 0.3, 0.62


@picture
def changes(page: Page, result: Comparison, **imshow: Any) -> Axes:
    """The change of each head, as a matrix: layers are rows, heads columns.

    A cell is the share of a row's mass that is on other keys in the second trace, the mean over
    queries; of kept edges alone, at least that.
    """
    table, colours = result.heads, page.colours
    layers, heads = sorted(set(table["layer"])), int(table["head"].max()) + 1
    grid = np.full((len(layers), heads), np.nan)
    grid[[layers.index(layer) for layer in table["layer"]], table["head"]] = table["distance"]
    how, title = page.weights(imshow), f"Heads that changed, by up to {result.most:.0%}"
    if page.given is not None:
        axes = page.given
        axes.imshow(grid, **({"aspect": "equal"} | how))
        page.bare(axes)
        axes.set_title(title, color=colours.ink)
    else:
        cell = page.fits(_CELL, (_LEFT + _RIGHT, heads))
        wide, high = heads * cell, len(layers) * cell
        page.lay(page.room[0] or max(_LEFT + wide + _RIGHT, 3.2), _ABOVE + high + _FOOT)
        page.title(title)
        axes = page.matrix(_LEFT, _ABOVE, wide, high, grid, **how)
        least = "" if table["exact"].all() else ", at least"
        page.scale(_LEFT, 0.22, min(1.6, wide), how, f"share of mass on other keys{least}")
        page.figure.sca(axes)
    axes.set_xticks(range(heads))
    axes.set_yticks(range(len(layers)), [str(layer) for layer in layers])
    axes.tick_params(length=0, top=False, labeltop=True, labelbottom=False, labelcolor=colours.ink,
                     labelsize="small")  # fmt: skip
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("head", color=colours.faint)
    axes.set_ylabel("layer", color=colours.faint)
    return axes
