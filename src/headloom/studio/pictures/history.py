"""`history`: a learned matrix on its way from random to trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import FuncNorm, ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from headloom.errors import InputError
from headloom.studio.pictures.canvas import Array, Sheet, weight_norm
from headloom.studio.pictures.palette import Palette, Theme, palette

Matrix = Tensor | Array | Sequence[Sequence[float]]
Series = Sequence[float] | tuple[Sequence[float], Sequence[float]]
#: Inches: a snapshot's width, between two, left of them, a curve's height, above and below all.
_SIZE, _GAP, _LEFT, _BAND, _TOP, _FOOT = 1.22, 0.14, 1.15, 0.42, 0.78, 0.46
#: How far what is written left and right of a curve is from it, as a share of the curve's width.
_BESIDE = 0.012
#: The size of the letters right of a curve, in points.
_SMALL = 6.5


def history(
    steps: Sequence[int],
    matrices: Sequence[Matrix],
    measures: Mapping[str, Series] | None = None,
    *,
    title: str = "From random to trained",
    shown: int = 7,
    theme: Theme = "light",
) -> Figure:
    """Snapshots of one matrix in a row, from random to trained, over its measures along training.

    All snapshots share one scale: signed matrices (W_Q W_K^T of a head, say) a diverging one
    around 0, weights the ramp from 0 to 1. Below each snapshot of a signed matrix, in which what
    was learned hides in what was drawn at random, is how far it is from the first, on a scale of
    its own.

    Args:
        steps: the training steps of the snapshots, ascending; at the first the model is random.
        matrices: a matrix for each.
        measures: curves to draw below: name -> a value for each snapshot (norm, effective rank,
            symmetry), or name -> (steps, values) for one with steps of its own (the loss).
        title: above it.
        shown: how many snapshots to show at most; the first and the last always are.
        theme: "light" or "dark".

    Raises: InputError: nothing to show, or numbers of steps and matrices that differ.
    """
    drawn = [
        np.asarray(each.detach().cpu() if isinstance(each, Tensor) else each, dtype=float)
        for each in matrices
    ]
    if not steps or len(steps) != len(drawn):
        raise InputError(
            f"history: {len(steps)} steps for {len(drawn)} matrices; expected one each."
        )
    colours = palette(theme)
    places = sorted({round(place) for place in np.linspace(0, len(steps) - 1, max(shown, 2))})
    at, chosen = [steps[place] for place in places], [drawn[place] for place in places]
    curves: dict[str, tuple[Array, Array]] = {}
    for name, series in (measures or {}).items():
        own = isinstance(series, tuple) and len(series) == 2 and np.ndim(series[0]) == 1
        along, values = series if own else (steps, series)
        curves[name] = np.asarray(along, dtype=float), np.asarray(values, dtype=float)
    rows = [("", chosen, *_scale(chosen, colours))]
    if min(float(np.nanmin(matrix)) for matrix in drawn) < 0:
        moved = [matrix - drawn[0] for matrix in chosen]
        change = f"change since\nstep {steps[0]:,}"
        rows = [
            ("as it is", *rows[0][1:]), (change, moved, *_scale(moved, colours, linear=True))
        ]  # fmt: skip

    ends = [f"{y[0]:.3g} → {y[-1]:.3g}" for _, y in curves.values()]
    high, long = drawn[0].shape
    tall = _SIZE * float(np.clip(high / max(long, 1), 0.4, 2.0))
    wide = max(len(chosen) * (_SIZE + _GAP) - _GAP, 3.6)
    # Some letters are wider than half of their height.
    written = max(map(len, ends), default=0) * 0.62 * _SMALL / 72
    below = _TOP + len(rows) * (tall + _GAP) - _GAP + (0.34 if curves else 0.12)
    sheet = Sheet(
        _LEFT + wide + max(0.9, _BESIDE * wide + written + 0.1),
        below + len(curves) * (_BAND + 0.1) + _FOOT, colours, [title, *curves],
    )  # fmt: skip
    sheet.title(title)
    legend = "; ".join(f"{name}: {says}".removeprefix(": ") for name, _, _, _, says in rows)
    sheet.say(0.14, 0.37, legend.replace("\n", " "), 6.5)
    snapshots: list[Axes] = []
    for number, (name, of_row, norm, ramp, _) in enumerate(rows):
        top = _TOP + number * (tall + _GAP)
        sheet.say(_LEFT - 0.1, top + tall / 2, name, 7, colours.ink, ha="right", va="center")
        snapshots = [
            sheet.matrix(_LEFT + column * (_SIZE + _GAP), top, _SIZE, tall, matrix, ramp, norm)
            for column, matrix in enumerate(of_row)
        ]
        if number == 0:
            for axes, step in zip(snapshots, at, strict=True):
                name = f"step {step:,}" + ": random" * (step == 0)
                ink = colours.ink if step in (steps[0], steps[-1]) else colours.faint
                axes.set_title(name, fontsize=7, pad=3, color=ink)
    if curves:
        # Training slows down: equal distances for equal factors, after a linear beginning.
        first = next((step for step in steps if step > 0), 1)
        last = max([steps[-1], *(x[-1] for x, _ in curves.values())])
        panels = []
        for number, (name, (x, y)) in enumerate(curves.items()):
            panel = sheet.axes(_LEFT, below + 0.1 + number * (_BAND + 0.1), wide, _BAND)
            _curve(sheet, panel, x, y, name, ends[number])
            panel.set_xscale("symlog", linthresh=first, linscale=0.6)
            panel.set_xlim(0, last)
            panel.minorticks_off()
            panel.set_xticks([])
            for step in at:
                panel.axvline(step, color=colours.line, linewidth=0.7, zorder=0)
            panels.append(panel)
        labelled = _apart(at, panel)
        panel.set_xticks(labelled, [f"{step:,}" for step in labelled])
        panel.tick_params(axis="x", length=2, width=0.5, pad=2, labelsize=6.5,
                          color=colours.faint, labelcolor=colours.faint)  # fmt: skip
        panel.set_xlabel(
            "training step, logarithmic", fontsize=6.5, color=colours.faint, labelpad=2
        )
        _threads(sheet, snapshots, panels[0], at)
    return sheet.figure


def _scale(
    matrices: Sequence[Array], colours: Palette, linear: bool = False
) -> tuple[Normalize, ListedColormap, str]:
    """The scale that matrices share, its ramp, and what it says."""
    finite = np.concatenate([matrix[np.isfinite(matrix)] for matrix in matrices])
    if finite.min(initial=0) < 0:
        # A few extreme cells shall not make all others pale.
        limit = float(np.quantile(np.abs(finite), 0.998)) or 1.0
        beyond = " and beyond" if np.abs(finite).max() > limit else ""
        ends = f"blue −{limit:.2g}, red +{limit:.2g}{beyond}"
        if linear:
            return Normalize(-limit, limit, clip=True), colours.difference, ends
        root = FuncNorm(
            (lambda values: np.sign(values) * np.sqrt(np.abs(values)),
             lambda values: np.sign(values) * np.square(values)),
            -limit, limit, clip=True,
        )  # fmt: skip
        return root, colours.difference, f"{ends}, square-root scale"
    limit = float(finite.max(initial=0))
    if limit <= 1 + 1e-6:
        return weight_norm(), colours.weight, "weights, 0 to 1, square-root scale"
    return Normalize(0, limit), colours.weight, f"0 to {limit:.2g}"


def _apart(steps: Sequence[int], axes: Axes) -> list[int]:
    """Steps whose labels do not run into each other."""
    labelled: list[int] = []
    before = -np.inf
    for step in steps:
        place = axes.transAxes.inverted().transform(axes.transData.transform((step, 0)))[0]
        if place - before > 0.05:
            labelled.append(step)
            before = place
    return labelled


def _curve(sheet: Sheet, axes: Axes, x: Array, y: Array, name: str, ends: str) -> None:
    """A sparkline: its name at the left, where it begins and ends at the right."""
    colours = sheet.colours
    sheet.bare(axes, frame=False)
    axes.patch.set_alpha(0)
    axes.plot(x, y, color=colours.ink, linewidth=1.0, solid_capstyle="round")
    axes.plot(x[:1], y[:1], "o", markersize=2.6, color=colours.faint, clip_on=False)
    axes.plot(x[-1:], y[-1:], "o", markersize=3.2, color=colours.query, clip_on=False)
    finite = y[np.isfinite(y)]
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
    spread = max(high - low, 1e-9) * 0.12
    axes.set_ylim(low - spread, high + spread)
    if low < 0 < high:
        axes.axhline(0, color=colours.line, linewidth=0.6, zorder=0)
    for place, text, side, size, ink in (
        (-_BESIDE, sheet.written(name), "right", 7, colours.ink),
        (1 + _BESIDE, ends, "left", _SMALL, colours.faint),
    ):
        axes.text(place, 0.5, text, transform=axes.transAxes, ha=side, va="center", fontsize=size,
                  color=ink, family=sheet.families)  # fmt: skip


def _threads(sheet: Sheet, snapshots: Sequence[Axes], panel: Axes, steps: Sequence[int]) -> None:
    """A thread from each snapshot down to its step."""
    along = np.linspace(0, 1, 24)
    smooth = along * along * (3 - 2 * along)
    for axes, step in zip(snapshots, steps, strict=True):
        box = axes.get_position()
        middle = (box.x0 + box.x1) / 2
        place = panel.transData.transform((step, 0))[0] / sheet.figure.bbox.width
        # Below the frame: the last row of the snapshot stays free.
        start, end = box.y0 - 0.015 / sheet.height, panel.get_position().y1
        x, y = middle + (place - middle) * smooth, start + (end - start) * along
        thread = Line2D(x, y, color=sheet.colours.line, linewidth=0.8, solid_capstyle="butt")
        sheet.figure.add_artist(thread)
