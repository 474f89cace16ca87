"""`history`: the course of a training: losses and measures, or a matrix at its snapshots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import FuncNorm, ListedColormap, Normalize
from numpy.typing import ArrayLike
from pandas import DataFrame

from headloom.errors import InputError
from headloom.formats.history import History, LayerSnapshot
from headloom.formats.run import RunFolder, is_run
from headloom.mechanism.shapes import chosen as one_of
from headloom.mechanism.shapes import place_of
from headloom.mechanism.spectra import MATRICES, MEASURES
from headloom.studio.pictures.canvas import Array, Page, picture, weight_norm
from headloom.studio.pictures.curves import Lines, along, curves
from headloom.studio.pictures.palette import Palette
from headloom.studio.training import loss_curves

#: Further matrices at each snapshot, besides MATRICES.
PRODUCT, WEIGHTS = "W_Q W_K^T", "weights"
#: Measures shown with the loss, and their titles below a matrix.
_MEASURES = {"norm_W_Q": "|W_Q|", "effective_rank": "effective rank", "symmetry": "symmetry"}
#: Units: width of a snapshot, and the least; gap between two; left margin; height of a curve; top
#: and bottom margins.
_SIZE, _LEAST, _GAP, _LEFT, _BAND, _TOP, _FOOT = 1.22, 0.5, 0.14, 1.15, 0.42, 0.78, 0.46
#: Distance of labels from a curve, as a share of its width.
_BESIDE = 0.012
#: Font size on the right of a curve, in points.
_SMALL = 6.5


def history(
    past: History, name: str | None = None, layer: int | str | None = None, head: int | None = None,
    **options: Any,
) -> Any:  # fmt: skip
    """Draw a training: see `headloom.History.plot`; options: of `curves` or `snapshots`."""
    losses = _losses(past)
    if name == "loss":
        return curves({"loss": losses}, **({"log": True} | options))[0]
    table, steps = past.measures(), past.steps
    if layer is not None:
        layer = past[steps[0]].layer(layer).name
        table = table[table["layer"] == layer]
    if head is not None:
        heads = int(table["head"].max()) + 1
        head = place_of("layer", "plot", "head", head, heads)
        table = table[table["head"] == head]
    if name is None or name in MEASURES:
        names = [*_MEASURES] if name is None else [name]
        panels = {"loss": losses} if name is None and losses else {}
        panels |= {measure: _lines(table, measure) for measure in names}
        drawn = curves(panels, **({"log": True} | options))
        return drawn if name is None else drawn[0]
    one_of("plot", "name", name, (*MATRICES, PRODUCT, WEIGHTS, "loss", *MEASURES))
    head = head or 0
    layers = [snapshot.layer(layer or 0) for snapshot in past]
    measures: dict[str, ArrayLike] = {}
    if losses:
        measures["loss"] = next(iter(losses.values()))[0]
    if name != WEIGHTS:
        table = table[(table["layer"] == layers[0].name) & (table["head"] == head)]
        for measure, title in _MEASURES.items():
            line = table[["step", measure]].dropna()
            measures |= {} if line.empty else {title: line}
    title = f"{name[:1].upper()}{name[1:]} of {layers[0].name}, head {head}"
    options = {"title": f"{title}: from random to trained"} | options
    return snapshots(steps, [_matrix(part, name, head) for part in layers], measures, **options)


def _losses(past: History) -> Lines:
    """Return the losses of a history's run, or else of its snapshots: a line each."""
    run = past.folder.parent
    if is_run(run) and (known := loss_curves(RunFolder.open(run), past)):
        return {name: [points] for name, points in known.items()}
    points = [(notes["step"], notes["loss"]) for notes in map(past.notes, past.steps)]
    points = [point for point in points if point[1] is not None]
    return {"loss": [points]} if points else {}


def _lines(table: DataFrame, measure: str) -> Lines:
    """Return a line for each head, by the names of the layers."""
    return {
        str(layer): [line[["step", measure]].to_numpy() for _, line in of_layer.groupby("head")]
        for layer, of_layer in table.dropna(subset=measure).groupby("layer", sort=False)
    }


def _matrix(layer: LayerSnapshot, name: str, head: int) -> ArrayLike:
    """Return a matrix of a head at a snapshot."""
    if name == WEIGHTS:
        return layer.graph.adjacency(head).toarray()
    parts = ("W_Q", "W_K") if name == PRODUCT else (name,)
    if missing := [part for part in parts if part not in layer.matrices]:
        raise InputError(f"plot: the history of {layer.name} has no {missing[0]}.")
    heads = len(layer.measures["symmetry"])
    # Several heads can share a head of keys and values.
    chosen = [layer.matrices[part] for part in parts]
    query, *key = [matrix[head * len(matrix) // heads] for matrix in chosen]
    return query @ key[0].T if key else query


@picture
def snapshots(
    page: Page, steps: Sequence[int], matrices: Sequence[ArrayLike],
    measures: Mapping[str, ArrayLike] | None = None, *, title: str = "From random to trained",
    shown: int = 7, **imshow: Any,
) -> Array:  # fmt: skip
    """Draw snapshots of one matrix in a row, from random to trained, with curves of its measures.

    All snapshots share one scale, around 0 for signed matrices. Below each signed matrix is its
    difference from the first one, since the random initial values hide small changes.

    steps, matrices: of each snapshot, ascending; at the first the model is random.
    measures: curves to draw below: name -> (step, value) of its points.
    shown: maximal number of snapshots, with the first and the last.
    Returns: the axes of the snapshots; for signed ones (2, snapshots).
    """
    drawn = [np.asarray(matrix, dtype=float) for matrix in matrices]
    if not steps or len(steps) != len(drawn):
        raise InputError(
            f"history: {len(steps)} steps for {len(drawn)} matrices; expected one each."
        )
    series = {name: np.asarray(line, dtype=float).T for name, line in (measures or {}).items()}
    ends = [f"{y[0]:.3g} → {y[-1]:.3g}" for _, y in series.values()]
    # Some letters are wider than half of their height.
    right = max(0.9, max(map(len, ends), default=0) * 0.62 * _SMALL / 72 + 0.14)
    if page.room[0] is not None:
        shown = min(shown, int((page.room[0] - _LEFT - right + _GAP) / (_LEAST + _GAP)))
    places = sorted({round(place) for place in np.linspace(0, len(steps) - 1, max(shown, 2))})
    at, chosen = [steps[place] for place in places], [drawn[place] for place in places]
    rows = [("", chosen, *_scale(chosen, page.colours))]
    if min(float(np.nanmin(matrix)) for matrix in drawn) < 0:
        moved = [matrix - drawn[0] for matrix in chosen]
        change = f"change since\nstep {steps[0]:,}"
        rows = [("as it is", *rows[0][1:]),
                (change, moved, *_scale(moved, page.colours, linear=True))]  # fmt: skip
    count, gaps = len(chosen), (len(chosen) - 1) * _GAP
    shape = float(np.clip(drawn[0].shape[0] / max(drawn[0].shape[1], 1), 0.4, 2.0))
    fixed = _TOP + (len(rows) - 1) * _GAP + (0.34 if series else 0.12)
    fixed += len(series) * (_BAND + 0.1) + _FOOT
    size = page.fits(_SIZE, (_LEFT + gaps + right, count), (fixed, len(rows) * shape))
    tall, pitch = size * shape, size + _GAP
    wide = max(count * size + gaps, 0 if page.room[0] else 3.6)
    page.letters([title, *series])
    page.lay(page.room[0] or _LEFT + wide + right, fixed + len(rows) * tall)
    legend = "; ".join(f"{name}: {says}".removeprefix(": ") for name, _, _, _, says in rows)
    page.title(title, legend.replace("\n", " "))
    grid: list[list[Axes]] = []
    for name, of_row, norm, ramp, _ in rows:
        top = _TOP + len(grid) * (tall + _GAP)
        page.say(_LEFT - 0.1, top + tall / 2, name, 7, page.colours.ink, ha="right", va="center")
        how = {"cmap": ramp, "norm": norm} | imshow
        grid.append([page.matrix(_LEFT + column * pitch, top, size, tall, matrix, **how)
                      for column, matrix in enumerate(of_row)])  # fmt: skip
    for axes, step in zip(grid[0], at, strict=True):
        name = f"step {step:,}" + ": random" * (step == 0 and size > 1)
        ink = page.colours.ink if step in (steps[0], steps[-1]) else page.colours.faint
        axes.set_title(name, fontsize=7 * page.unit, pad=3, color=ink)
    if series:
        top = _TOP + len(rows) * (tall + _GAP) - _GAP + 0.44
        last = max([steps[-1], *(x[-1] for x, _ in series.values())])
        panels = [page.axes(_LEFT, top + number * (_BAND + 0.1), wide, _BAND)
                  for number in range(len(series))]  # fmt: skip
        for panel, (name, (x, y)), says in zip(panels, series.items(), ends, strict=True):
            _curve(page, panel, x, y, name, says)
            along(panel, steps, last)
            panel.tick_params(which="both", bottom=False, labelbottom=False)
            for step in at:
                panel.axvline(step, color=page.colours.line, linewidth=0.7, zorder=0)
        pixels = panel.transData.transform([(step, 0) for step in at])
        shares = panel.transAxes.inverted().transform(pixels)[:, 0]
        panel.tick_params(labelbottom=True)
        page.small(panel, _SMALL * page.unit)
        panel.set_xlabel("training step, logarithmic", fontsize=_SMALL * page.unit, labelpad=2,
                         color=page.colours.faint)  # fmt: skip
        # A line from each snapshot down to its step, below the frame.
        down = np.linspace(0, 1, 24)
        for column, share in enumerate(shares):
            middle = _LEFT + column * pitch + size / 2
            across = middle + (_LEFT + share * wide - middle) * down * down * (3 - 2 * down)
            page.thread(across, top - 0.425 + 0.425 * down)
    return np.array(grid if len(grid) > 1 else grid[0])


def _scale(
    matrices: Sequence[Array], colours: Palette, linear: bool = False
) -> tuple[Normalize, ListedColormap, str]:
    """Return the common scale of matrices, its colours, and its description."""
    finite = np.concatenate([matrix[np.isfinite(matrix)] for matrix in matrices])
    if finite.min(initial=0) < 0:
        # Extreme cells are clipped, so that they do not make all others pale.
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


def _curve(page: Page, axes: Axes, x: Array, y: Array, name: str, ends: str) -> None:
    """Draw a sparkline, with its name on the left, and its first and last value on the right."""
    colours = page.colours
    page.bare(axes, frame=False)
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
    how: dict[str, Any] = {"va": "center", "transform": axes.transAxes, "family": page.families}
    axes.text(-_BESIDE, 0.5, page.written(name), ha="right", fontsize=7 * page.unit,
              color=colours.ink, **how)  # fmt: skip
    axes.text(1 + _BESIDE, 0.5, ends, ha="left", fontsize=_SMALL * page.unit, color=colours.faint,
              **how)  # fmt: skip
