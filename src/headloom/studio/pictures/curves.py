"""`curves`: curves of numbers during a training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from headloom.studio.pictures.canvas import Array, Page, picture

#: Lines by name; lines of one name share a colour: name -> [[(step, value), ...], ...].
Lines = Mapping[str, Sequence[Any]]
#: Units: a figure's width; the height of its only panel, and of one of several; around them; and a
#: line and a letter of the legend.
_WIDE, _HIGH, _BAND, _LEFT, _RIGHT, _ABOVE, _BELOW = 6.0, 2.8, 1.0, 0.7, 0.2, 0.35, 0.6
_LINE, _LETTER = 0.19, 0.075


@picture
def curves(page: Page, panels: Mapping[str, Lines], *, log: bool = False, **plot: Any) -> Array:
    """Draw curves during a training: a panel for each kind, below each other.

    panels: lines by the title of their panel.
    log: whether the axis of steps is logarithmic.
    plot: options of `matplotlib.axes.Axes.plot`.
    Returns: the axes of each panel.
    """
    colours, alone = page.colours, len(panels) == 1
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    inks = {name: colours.heads[n % len(colours.heads)] for n, name in enumerate(names)}
    legend: dict[str, Any] = {"frameon": False, "fontsize": "small"}
    drawn = [page.given] if page.given is not None else []
    if not (drawn and alone):
        wide = page.room[0] or _WIDE
        # The legend is below all panels, in as many columns as fit.
        across = max(1, int((wide - _LEFT) / (max(map(len, names), default=1) * _LETTER + 0.4)))
        below = _BELOW + _LINE * (-(-len(names) // across) if len(names) > 1 else 0)
        needed = below + len(panels) * _ABOVE, len(panels)
        high = page.fits(_HIGH if alone else _BAND, None, needed)
        page.lay(wide, len(panels) * (high + _ABOVE) + below)
        drawn = [
            page.axes(_LEFT, _ABOVE + n * (high + _ABOVE), wide - _LEFT - _RIGHT, high)
            for n in range(len(panels))
        ]
        legend |= {"loc": "upper left", "bbox_to_anchor": (0, -0.5 / high), "ncols": across,
                   "borderaxespad": 0, "labelspacing": 0.3}  # fmt: skip
    handles = {}
    steps = sorted({step for lines in panels.values() for group in lines.values()
                    for line in group for step, _ in line})  # fmt: skip
    for axes, (title, lines) in zip(drawn, panels.items(), strict=True):
        for name, of_name in lines.items():
            for line in of_name:
                ours = {"color": inks[name], "linewidth": 1.2 if len(of_name) == 1 else 0.8,
                        "marker": "o" if len(line) == 1 else ""}  # fmt: skip
                how: dict[str, Any] = ours | plot
                (handles[name],) = axes.plot(*np.array(line, dtype=float).T, **how)
        page.plain(axes)
        if log:
            along(axes, steps, steps[-1])
        if alone:
            axes.set_ylabel(title)
        else:
            axes.set_title(title, loc="left", fontsize="medium", color=colours.ink)
            axes.tick_params(labelbottom=axes is drawn[-1])
    drawn[-1].set_xlabel("training step" + ", logarithmic" * log)
    if len(names) > 1:
        drawn[-1].legend(handles.values(), handles.keys(), **legend)
    return np.array(drawn)


def along(axes: Axes, steps: Sequence[float], last: float) -> None:
    """Set a logarithmic axis of steps from 0 on, linear up to the first step."""
    first = next((step for step in steps if step > 0), 1)
    axes.set_xscale("symlog", linthresh=first, linscale=0.6)
    axes.set_xlim(0, last)
