"""`curves`: numbers along a training, a line each, in plain axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from headloom.studio.pictures.canvas import Array, Onto, Sheet, room
from headloom.studio.pictures.palette import Theme, palette

#: Lines by what they are of, alike in colour: name -> [[(step, value), ...], ...].
Lines = Mapping[str, Sequence[Sequence[tuple[float, float]]]]
#: Units: a figure's width; the height of its only panel, and of one of several; around them; and a
#: line of the legend.
_WIDE, _HIGH, _BAND, _LEFT, _RIGHT, _ABOVE, _BELOW, _LINE = 6.0, 2.8, 1.0, 0.7, 0.2, 0.35, 0.5, 0.19


def curves(
    panels: Mapping[str, Lines],
    *,
    onto: Onto = None,
    width: float | None = None,
    theme: Theme | None = None,
    logarithmic: bool = False,
    **options: Any,
) -> Array:
    """Numbers along a training: a panel for each kind, below each other.

    Args:
        panels: by what is measured, lines by what they are of.
        onto, width, theme: as of `headloom.studio.pictures.alignment.alignment`.
        logarithmic: whether equal distances are equal factors of steps, as training slows down.
        options: of `matplotlib.axes.Axes.plot`.

    Returns: the axes of each.
    """
    colours, space = palette(theme), room(onto, width)
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    inks = {name: colours.heads[n % len(colours.heads)] for n, name in enumerate(names)}
    wide = space[0] or _WIDE
    if isinstance(onto, Axes) and len(panels) == 1:
        every = [onto]
    else:
        # Names below all, as many beside each other as there is room for.
        longest = max(len(name) for name in names) * 0.075 + 0.4
        across = max(1, int((wide - _LEFT) / longest))
        below = _BELOW + _LINE * (-(-len(names) // across) if len(names) > 1 else 0)
        high = _HIGH if len(panels) == 1 else _BAND
        high = high if space[1] is None else (space[1] - below) / len(panels) - _ABOVE
        sheet = Sheet(onto, wide, len(panels) * (high + _ABOVE) + below, colours)
        every = [
            sheet.axes(
                _LEFT, _ABOVE + number * (high + _ABOVE), wide - _LEFT - _RIGHT, max(high, 0.1)
            )
            for number in range(len(panels))
        ]
    steps = sorted({step for lines in panels.values() for of in lines.values() for line in of
                    for step, _ in line})  # fmt: skip
    handles = {}
    for axes, (title, lines) in zip(every, panels.items(), strict=True):
        for name, of_name in lines.items():
            for line in of_name:
                how = {"color": inks[name], "linewidth": 1.2 if len(of_name) == 1 else 0.8}
                (handles[name],) = axes.plot(*np.array(line, dtype=float).T, **(how | options))
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_facecolor(colours.ground)
        axes.grid(axis="y", color=colours.line, linewidth=0.5)
        axes.set_axisbelow(True)
        if logarithmic:
            steps_along(axes, steps, steps[-1])
        if len(every) > 1:
            axes.set_title(title, loc="left", fontsize="medium", color=colours.ink)
            axes.tick_params(labelbottom=axes is every[-1])
        else:
            axes.set_ylabel(title)
    every[-1].set_xlabel("training step" + ", logarithmic" * logarithmic)
    if len(names) > 1:
        listed = [handles.values(), handles.keys()]
        if every == [onto]:
            every[0].legend(*listed, frameon=False, fontsize="small")
        else:
            every[-1].legend(
                *listed, loc="upper left", bbox_to_anchor=(0, -0.42 / high), ncols=across,
                frameon=False, fontsize="small", borderaxespad=0, labelspacing=0.3,
            )  # fmt: skip
    return np.array(every)


def steps_along(axes: Axes, steps: Sequence[int], last: float) -> None:
    """A logarithmic axis of steps from 0 on, after a linear beginning."""
    first = next((step for step in steps if step > 0), 1)
    axes.set_xscale("symlog", linthresh=first, linscale=0.6)
    axes.set_xlim(0, last)
