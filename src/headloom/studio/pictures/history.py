"""`history`: a learned matrix on its way from random to trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import FuncNorm, ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from headloom.errors import InputError
from headloom.studio.pictures.canvas import Array, axes_of_cells, bare, new_figure, weight_norm
from headloom.studio.pictures.fonts import lettering
from headloom.studio.pictures.palette import Palette, Theme, palette

__all__ = ["history"]

Matrix = Tensor | Array | Sequence[Sequence[float]]
Series = Sequence[float] | tuple[Sequence[float], Sequence[float]]
#: How far what is written left and right of a curve is from it, as a share of the curve's width.
_BESIDE = 0.012
#: The size of the letters right of a curve, in points.
_SMALL = 6.5


def history(
    steps: Sequence[int],
    matrices: Sequence[Matrix],
    measures: Mapping[str, Series] | None = None,
    *,
    title: str | None = None,
    shown: int = 7,
    change: bool | None = None,
    theme: Theme = "light",
) -> Figure:
    """Snapshots of one matrix in a row, from random to trained, over its measures along training.

    All snapshots share one scale: signed matrices (W_Q W_K^T of a head, say) a diverging one
    around 0, weights the ramp from 0 to 1.

    Args:
        steps: the training steps of the snapshots, ascending; at the first the model is random.
        matrices: a matrix for each.
        measures: curves to draw below: name -> a value for each snapshot (norm, effective rank,
            symmetry), or name -> (steps, values) for one with steps of its own (the loss).
        title: above it.
        shown: how many snapshots to show at most; the first and the last always are.
        change: whether to show below each snapshot how far it is from the first, on a scale of
            its own; None: for signed matrices, in which what was learned hides in what was drawn
            at random.
        theme: "light" or "dark".

    Raises: InputError: nothing to show, or numbers of steps and matrices that differ.
    """
    drawn = [_matrix(matrix) for matrix in matrices]
    if not steps or len(steps) != len(drawn):
        raise InputError(
            f"history: {len(steps)} steps for {len(drawn)} matrices; expected one each."
        )
    colours = palette(theme)
    chosen = sorted({round(place) for place in np.linspace(0, len(steps) - 1, max(shown, 2))})
    curves = {name: _series(series, steps) for name, series in (measures or {}).items()}

    rows = [_Row("", drawn, *_scale([drawn[place] for place in chosen], colours))]
    signed = min(float(np.nanmin(matrix)) for matrix in drawn) < 0
    if signed if change is None else change:
        moved = [matrix - drawn[0] for matrix in drawn]
        scale = _scale([moved[place] for place in chosen], colours, linear=True)
        rows[0] = replace(rows[0], name="as it is")
        rows.append(_Row(f"change since\nstep {steps[0]:,}", moved, *scale))

    ends = [_ends(y) for _, y in curves.values()]
    sheet = _Sheet.of(drawn[0].shape, len(chosen), len(rows), ends)
    figure = new_figure(sheet.width, sheet.height, colours)
    letters = lettering([title or "", *curves])
    figure.text(
        0.14 / sheet.width, 1 - 0.14 / sheet.height,
        letters.text(title or "From random to trained"),
        fontsize=10, va="top", fontweight="bold", color=colours.ink, family=list(letters.families),
    )  # fmt: skip
    legend = "; ".join(f"{row.name}: {row.legend}".removeprefix(": ") for row in rows)
    figure.text(
        0.14 / sheet.width, 1 - 0.37 / sheet.height, legend.replace("\n", " "), fontsize=6.5,
        va="top", color=colours.faint,
    )  # fmt: skip
    snapshots: list[Axes] = []
    for number, row in enumerate(rows):
        snapshots = _draw_row(figure, sheet, number, row, chosen, colours)
        if number == 0:
            for axes, place in zip(snapshots, chosen, strict=True):
                name = f"step {steps[place]:,}" + (": random" if steps[place] == 0 else "")
                end = place in (0, len(steps) - 1)
                axes.set_title(name, fontsize=7, pad=3, color=colours.ink if end else colours.faint)
    if curves:
        at = [steps[place] for place in chosen]
        names = [letters.text(name) for name in curves]
        panels = _draw_curves(
            figure, sheet, dict(zip(names, curves.values(), strict=True)), steps, at, colours,
            list(letters.families),
        )  # fmt: skip
        _threads(figure, snapshots, panels[0], at, colours)
    return figure


@dataclass(frozen=True)
class _Sheet:
    """Where things stand, in inches: snapshots of `size` x `tall`, curves of the height `band`."""

    tall: float
    wide: float
    width: float
    height: float
    size: float = 1.22
    gap: float = 0.14
    left: float = 1.15
    band: float = 0.42
    top: float = 0.78
    foot: float = 0.46

    @classmethod
    def of(cls, shape: tuple[int, ...], columns: int, rows: int, ends: Sequence[str]) -> _Sheet:
        """The sheet for rows of snapshots of a shape over curves, and what is right of each."""
        curves = len(ends)
        tall = cls.size * float(np.clip(shape[0] / max(shape[1], 1), 0.4, 2.0))
        wide = max(columns * (cls.size + cls.gap) - cls.gap, 3.6)
        above = cls.top + rows * (tall + cls.gap) - cls.gap
        join = 0.34 if curves else 0.12
        height = above + join + curves * (cls.band + 0.1) + cls.foot
        # Some letters are wider than half of their height.
        written = max(map(len, ends), default=0) * 0.62 * _SMALL / 72
        right = max(0.9, _BESIDE * wide + written + 0.1)
        return cls(tall, wide, cls.left + wide + right, height)


def _draw_row(
    figure: Figure, sheet: _Sheet, number: int, row: _Row, chosen: Sequence[int], colours: Palette
) -> list[Axes]:
    """Snapshots side by side, after their name."""
    high = sheet.top + number * (sheet.tall + sheet.gap)
    figure.text(
        (sheet.left - 0.1) / sheet.width, 1 - (high + sheet.tall / 2) / sheet.height, row.name,
        fontsize=7, ha="right", va="center", color=colours.ink,
    )  # fmt: skip
    snapshots = []
    for column, place in enumerate(chosen):
        left = sheet.left + column * (sheet.size + sheet.gap)
        axes = axes_of_cells(figure, left, high, sheet.size, sheet.tall)
        axes.imshow(
            row.matrices[place], cmap=row.ramp, norm=row.norm, aspect="auto",
            interpolation="nearest",
        )  # fmt: skip
        bare(axes, colours)
        snapshots.append(axes)
    return snapshots


def _draw_curves(
    figure: Figure,
    sheet: _Sheet,
    curves: Mapping[str, tuple[Array, Array]],
    steps: Sequence[int],
    at: Sequence[int],
    colours: Palette,
    families: list[str],
) -> list[Axes]:
    """Curves one below the other, on one axis of training steps.

    at: the steps of the snapshots above.
    """
    panels: list[Axes] = []
    last = max([steps[-1], *(x[-1] for x, _ in curves.values())])
    for number, (name, (x, y)) in enumerate(curves.items()):
        bottom = sheet.foot + (len(curves) - 1 - number) * (sheet.band + 0.1)
        axes = figure.add_axes(
            (sheet.left / sheet.width, bottom / sheet.height, sheet.wide / sheet.width,
             sheet.band / sheet.height)
        )  # fmt: skip
        _curve(axes, x, y, name, colours, families)
        # Training slows down: equal distances for equal factors, after a linear beginning.
        first = next((step for step in steps if step > 0), 1)
        axes.set_xscale("symlog", linthresh=first, linscale=0.6)
        axes.set_xlim(0, last)
        axes.minorticks_off()
        axes.set_xticks([])
        for step in at:
            axes.axvline(step, color=colours.line, linewidth=0.7, zorder=0)
        panels.append(axes)
    panels[-1].set_xticks(*_ticks(list(at), panels[-1]))
    panels[-1].tick_params(axis="x", length=2, width=0.5, pad=2, labelsize=6.5,
                           color=colours.faint, labelcolor=colours.faint)  # fmt: skip
    panels[-1].set_xlabel(
        "training step, logarithmic", fontsize=6.5, color=colours.faint, labelpad=2
    )
    return panels


@dataclass(frozen=True)
class _Row:
    """Snapshots that share a scale."""

    name: str
    matrices: Sequence[Array]
    norm: Normalize
    ramp: ListedColormap
    legend: str


def _matrix(matrix: Matrix) -> Array:
    return np.asarray(
        matrix.detach().cpu().float() if isinstance(matrix, Tensor) else matrix, dtype=float
    )


def _series(series: Series, steps: Sequence[int]) -> tuple[Array, Array]:
    own = isinstance(series, tuple) and len(series) == 2 and np.ndim(series[0]) == 1
    x, y = series if own else (steps, series)
    return np.asarray(x, dtype=float), np.asarray(y, dtype=float)


def _scale(
    matrices: Sequence[Array], colours: Palette, linear: bool = False
) -> tuple[Normalize, ListedColormap, str]:
    finite = np.concatenate([matrix[np.isfinite(matrix)] for matrix in matrices])
    if finite.size and finite.min() < 0:
        # A few extreme cells shall not make all others pale.
        limit = float(np.quantile(np.abs(finite), 0.998)) or 1.0
        beyond = " and beyond" if np.abs(finite).max() > limit else ""
        ends = f"blue −{limit:.2g}, red +{limit:.2g}{beyond}"
        if linear:
            return Normalize(-limit, limit, clip=True), colours.difference, ends
        root = FuncNorm(
            (
                lambda values: np.sign(values) * np.sqrt(np.abs(values)),
                lambda values: np.sign(values) * np.square(values),
            ),
            -limit, limit, clip=True,
        )  # fmt: skip
        return root, colours.difference, f"{ends}, square-root scale"
    if finite.size and finite.max() <= 1 + 1e-6:
        return weight_norm(), colours.weight, "weights, 0 to 1, square-root scale"
    limit = float(finite.max()) if finite.size else 1.0
    return Normalize(0, limit), colours.weight, f"0 to {limit:.2g}"


def _ticks(steps: Sequence[int], axes: Axes) -> tuple[list[int], list[str]]:
    """Steps whose labels do not run into each other."""
    low, high = axes.transData.transform([(axes.get_xlim()[0], 0), (axes.get_xlim()[1], 0)])[:, 0]
    labelled: list[int] = []
    before = -np.inf
    for step in steps:
        place = (axes.transData.transform((step, 0))[0] - low) / (high - low)
        if place - before > 0.05:
            labelled.append(step)
            before = place
    return labelled, [f"{step:,}" for step in labelled]


def _curve(
    axes: Axes,
    x: Array,
    y: Array,
    name: str,
    colours: Palette,
    families: list[str],
) -> None:
    """A sparkline: its name at the left, where it ends at the right."""
    bare(axes, colours, frame=False)
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
    axes.text(
        -_BESIDE, 0.5, name, transform=axes.transAxes, ha="right", va="center", fontsize=7,
        color=colours.ink, family=families,
    )  # fmt: skip
    axes.text(
        1 + _BESIDE, 0.5, _ends(y), transform=axes.transAxes, ha="left", va="center",
        fontsize=_SMALL, color=colours.faint,
    )  # fmt: skip


def _ends(y: Array) -> str:
    return f"{y[0]:.3g} → {y[-1]:.3g}"


def _threads(
    figure: Figure, snapshots: Sequence[Axes], panel: Axes, steps: Sequence[int], colours: Palette
) -> None:
    """A thread from each snapshot down to its step."""
    for axes, step in zip(snapshots, steps, strict=True):
        box = axes.get_position()
        place = panel.transData.transform((step, 0))[0] / figure.bbox.width
        # Below the frame: the last row of the snapshot stays free.
        start, end = box.y0 - 0.015 / figure.get_figheight(), panel.get_position().y1
        middle = (start + end) / 2
        curve = np.linspace(0, 1, 24)
        smooth = curve * curve * (3 - 2 * curve)
        figure.add_artist(
            Line2D(
                (box.x0 + box.x1) / 2 + (place - (box.x0 + box.x1) / 2) * smooth,
                start + (end - start) * curve if middle else curve,
                color=colours.line, linewidth=0.8, solid_capstyle="butt",
            )
        )  # fmt: skip
