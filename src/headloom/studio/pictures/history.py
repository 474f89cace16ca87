"""`history`: what a training learned: losses and measures, or a matrix at its snapshots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import FuncNorm, ListedColormap, Normalize
from torch import Tensor

from headloom.errors import InputError
from headloom.formats.history import History, LayerSnapshot
from headloom.formats.run import RunFolder, is_run
from headloom.mechanism.shapes import chosen as one_of
from headloom.mechanism.shapes import place_of
from headloom.mechanism.spectra import MATRICES, MEASURES
from headloom.studio.pictures.canvas import Array, Onto, Sheet, bare, fitting, room, weight_norm
from headloom.studio.pictures.curves import Lines, curves, steps_along
from headloom.studio.pictures.palette import Palette, Theme, palette
from headloom.studio.training import loss_curves

Matrix = Tensor | Array | Sequence[Sequence[float]]
Series = Sequence[float] | tuple[Sequence[float], Sequence[float]]
#: What has a matrix at each snapshot.
PRODUCT, WEIGHTS = "W_Q W_K^T", "weights"
#: Measures that stand beside the loss.
_MEASURES = ("norm_W_Q", "norm_W_K", "effective_rank", "symmetry")
#: Units: a snapshot's width, and the least; between two, left of them, a curve's height, above and
#: below all.
_SIZE, _LEAST, _GAP, _LEFT, _BAND, _TOP, _FOOT = 1.22, 0.5, 0.14, 1.15, 0.42, 0.78, 0.46
#: How far what is written left and right of a curve is from it, as a share of the curve's width.
_BESIDE = 0.012
#: The size of the letters right of a curve, in points.
_SMALL = 6.5


def history(
    past: History,
    name: str | None = None,
    layer: int | str | None = None,
    head: int | None = None,
    *,
    onto: Onto = None,
    width: float | None = None,
    theme: Theme | None = None,
    **options: Any,
) -> Axes | Array:
    """What a training learned: the losses and measures of all heads, or a matrix of one.

    Args:
        past: of a run.
        name: "loss", or a measure: curves, of every head a line; "W_Q", "W_K", "W_V", "W_O",
            "W_Q W_K^T", or "weights", of the probe: a matrix at its snapshots. None: the loss, and
            the norms, effective rank and symmetry of W_Q and W_K.
        layer, head: by number, the layer also by name. None: all of a measure, the first of a
            matrix.
        onto, width, theme: as of `headloom.studio.pictures.alignment.alignment`.
        options: of `matplotlib.axes.Axes.plot` for curves, of ``imshow`` for matrices; of a matrix
            also ``title`` and ``shown``, snapshots at most.

    Returns: axes; or an array of them: one for each curve, or snapshot.
    Raises: InputError: no such matrix, measure, layer or head. DataError: there is no snapshot.
    """
    steps = past.steps
    first = past[steps[0] if steps else 0]
    names = [each.name for each in first.layers]
    number = (
        layer if layer is None or isinstance(layer, int) else names.index(past[0].layer(layer).name)
    )
    if number is not None:
        number = place_of("history", "plot", "layer", number, len(names))
    losses = _losses(past)
    if name is None or name == "loss" or name in MEASURES:
        wanted = ("loss", *_MEASURES) if name is None else (name,)
        panels = {
            each: losses if each == "loss" else _measure(past, each, number, head)
            for each in wanted
        }
        panels = {each: lines for each, lines in panels.items() if lines}
        how = {"onto": onto, "width": width, "theme": theme, "logarithmic": True}
        drawn = curves(panels, **(how | options))
        return drawn if name is None else drawn[0]
    one_of("plot", "name", name, (*MATRICES, PRODUCT, WEIGHTS, "loss", *MEASURES))
    layers = [snapshot.layers[number or 0] for snapshot in past]
    head = place_of("layer", "plot", "head", head or 0, len(layers[0].measures["symmetry"]))
    measures: dict[str, Series] = {}
    if training := losses.get("training loss") or losses.get("loss"):
        measures["loss"] = tuple(zip(*training[0], strict=True))
    if name != WEIGHTS:
        for title, each in (("|W_Q|", "norm_W_Q"), ("effective rank", "effective_rank"),
                            ("symmetry", "symmetry")):  # fmt: skip
            values = [layer.measures[each][head] for layer in layers]
            if None not in values:
                measures[title] = values
    of_name = {PRODUCT: "W_Q W_K^T", WEIGHTS: "Weights"}.get(name, name)
    title = f"{of_name} of {names[number or 0]}, head {head}: from random to trained"
    how = {"title": title, "onto": onto, "width": width, "theme": theme} | options
    return snapshots(steps, [_matrix(layer, name, head) for layer in layers], measures, **how)


def _losses(past: History) -> Lines:
    """The losses of a history's run, or of its snapshots alone: a line each."""
    if is_run(past.folder.parent):
        found = loss_curves(RunFolder.open(past.folder.parent), past)
        if found:
            return {name: [points] for name, points in found.items()}
    points = [(notes["step"], notes["loss"]) for notes in map(past.notes, past.steps)]
    points = [point for point in points if point[1] is not None]
    return {"loss": [points]} if points else {}


def _measure(past: History, name: str, layer: int | None, head: int | None) -> Lines:
    """A line for each head, by the names of the layers."""
    lines: dict[str, list[list[tuple[float, float]]]] = {}
    for step in past.steps:
        for number, entry in enumerate(past.notes(step)["layers"]):
            if layer not in (None, number):
                continue
            values = entry["measures"][name]
            heads = (
                range(len(values))
                if head is None
                else [place_of("layer", "plot", "head", head, len(values))]
            )
            of_layer = lines.setdefault(entry["name"], [[] for _ in heads])
            for line, place in zip(of_layer, heads, strict=True):
                if values[place] is not None:
                    line.append((step, values[place]))
    return {name: [line for line in of_layer if line] for name, of_layer in lines.items()}


def _matrix(layer: LayerSnapshot, name: str, head: int) -> Matrix:
    """A matrix of a head at a snapshot."""
    if name == WEIGHTS:
        return layer.graph.adjacency(head).toarray()
    parts = name.split(" ")[0], "W_K"
    if missing := [part for part in parts[: 1 + (name == PRODUCT)] if part not in layer.matrices]:
        raise InputError(f"plot: the history of {layer.name} has no {missing[0]}.")
    heads = len(layer.measures["symmetry"])
    of_head = [layer.matrices[part] for part in parts if part in layer.matrices]
    query, *key = [matrix[head * len(matrix) // heads] for matrix in of_head]
    return query @ key[0].T if name == PRODUCT else query


def snapshots(
    steps: Sequence[int],
    matrices: Sequence[Matrix],
    measures: Mapping[str, Series] | None = None,
    *,
    title: str = "From random to trained",
    shown: int = 7,
    onto: Onto = None,
    width: float | None = None,
    theme: Theme | None = None,
    **options: Any,
) -> Array:
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
        onto, width, theme, options: as of `headloom.studio.pictures.alignment.alignment`.

    Returns: the axes of the snapshots; of signed ones (2, snapshots).
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
    series: dict[str, tuple[Array, Array]] = {}
    for name, each in (measures or {}).items():
        own = isinstance(each, tuple) and len(each) == 2 and np.ndim(each[0]) == 1
        along, values = each if own else (steps, each)
        series[name] = np.asarray(along, dtype=float), np.asarray(values, dtype=float)
    ends = [f"{y[0]:.3g} → {y[-1]:.3g}" for _, y in series.values()]
    # Some letters are wider than half of their height.
    right = max(0.9, max(map(len, ends), default=0) * 0.62 * _SMALL / 72 + 0.14)
    space, colours = room(onto, width), palette(theme)
    if space[0] is not None:
        shown = min(shown, int((space[0] - _LEFT - right + _GAP) / (_LEAST + _GAP)))
    places = sorted({round(place) for place in np.linspace(0, len(steps) - 1, max(shown, 2))})
    at, chosen = [steps[place] for place in places], [drawn[place] for place in places]
    rows = [("", chosen, *_scale(chosen, colours))]
    if min(float(np.nanmin(matrix)) for matrix in drawn) < 0:
        moved = [matrix - drawn[0] for matrix in chosen]
        change = f"change since\nstep {steps[0]:,}"
        rows = [
            ("as it is", *rows[0][1:]), (change, moved, *_scale(moved, colours, linear=True))
        ]  # fmt: skip
    shape = float(np.clip(drawn[0].shape[0] / max(drawn[0].shape[1], 1), 0.4, 2.0))
    gaps, bands = (len(chosen) - 1) * _GAP, len(series) * (_BAND + 0.1)
    fixed = _TOP + (len(rows) - 1) * _GAP + (0.34 if series else 0.12) + bands + _FOOT
    size = fitting(
        _SIZE, space, (_LEFT + gaps + right, len(chosen)), (fixed, len(rows) * shape)
    )  # fmt: skip
    tall, pitch = size * shape, size + _GAP
    wide = len(chosen) * size + gaps
    wide = max(wide, 3.6) if space[0] is None else wide
    height = fixed + len(rows) * tall
    sheet = Sheet(onto, space[0] or _LEFT + wide + right, height, colours, [title, *series])
    sheet.title(title)
    legend = "; ".join(f"{name}: {says}".removeprefix(": ") for name, _, _, _, says in rows)
    sheet.say(0.14, 0.37, legend.replace("\n", " "), 6.5)
    every: list[list[Axes]] = []
    for number, (name, of_row, norm, ramp, _) in enumerate(rows):
        top = _TOP + number * (tall + _GAP)
        sheet.say(_LEFT - 0.1, top + tall / 2, name, 7, colours.ink, ha="right", va="center")
        how = {"cmap": ramp, "norm": norm} | options
        every.append(
            [
                sheet.matrix(_LEFT + column * pitch, top, size, tall, matrix, **how)
                for column, matrix in enumerate(of_row)
            ]
        )
    for axes, step in zip(every[0], at, strict=True):
        name = f"step {step:,}" + ": random" * (step == 0 and size > 1)
        ink = colours.ink if step in (steps[0], steps[-1]) else colours.faint
        axes.set_title(name, fontsize=7 * sheet.unit, pad=3, color=ink)
    top = _TOP + len(rows) * (tall + _GAP) - _GAP + 0.44
    panel = None
    for number, (name, (x, y)) in enumerate(series.items()):
        panel = sheet.axes(_LEFT, top + number * (_BAND + 0.1), wide, _BAND)
        _curve(sheet, panel, x, y, name, ends[number])
        steps_along(panel, steps, max([steps[-1], *(x[-1] for x, _ in series.values())]))
        panel.minorticks_off()
        panel.set_xticks([])
        for step in at:
            panel.axvline(step, color=colours.line, linewidth=0.7, zorder=0)
    if panel is not None:
        along = [
            panel.transAxes.inverted().transform(panel.transData.transform((step, 0)))[0]
            for step in at
        ]
        labelled = _apart(at, along)
        panel.set_xticks(labelled, [f"{step:,}" for step in labelled])
        small = _SMALL * sheet.unit
        panel.tick_params(axis="x", length=2, width=0.5, pad=2, labelsize=small,
                          color=colours.faint, labelcolor=colours.faint)  # fmt: skip
        panel.set_xlabel(
            "training step, logarithmic", fontsize=small, color=colours.faint, labelpad=2
        )
        # A thread from each snapshot down to its step, below the frame: the last row stays free.
        down = np.linspace(0, 1, 24)
        for column, place in enumerate(along):
            middle = _LEFT + column * pitch + size / 2
            across = middle + (_LEFT + place * wide - middle) * down * down * (3 - 2 * down)
            sheet.thread(across, top - 0.425 + 0.425 * down)
    return np.array(every if len(every) > 1 else every[0])


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


def _apart(steps: Sequence[int], along: Sequence[float]) -> list[int]:
    """Steps whose labels, at these shares of the width, do not run into each other."""
    labelled: list[int] = []
    before = -np.inf
    for step, place in zip(steps, along, strict=True):
        if place - before > 0.05:
            labelled.append(step)
            before = place
    return labelled


def _curve(sheet: Sheet, axes: Axes, x: Array, y: Array, name: str, ends: str) -> None:
    """A sparkline: its name at the left, where it begins and ends at the right."""
    colours = sheet.colours
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
    for place, text, side, size, ink in (
        (-_BESIDE, sheet.written(name), "right", 7, colours.ink),
        (1 + _BESIDE, ends, "left", _SMALL, colours.faint),
    ):
        axes.text(place, 0.5, text, transform=axes.transAxes, ha=side, va="center",
                  fontsize=size * sheet.unit, color=ink, family=sheet.families)  # fmt: skip
