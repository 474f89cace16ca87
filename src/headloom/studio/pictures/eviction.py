"""`eviction`: which keys policies keep, and what every head loses by it."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from headloom.analysis.eviction.evict import BEST_SET, BEST_SETS, Eviction
from headloom.errors import InputError
from headloom.studio.pictures.canvas import Array, axes_of_cells, bare, new_figure
from headloom.studio.pictures.palette import Palette, Theme, palette

__all__ = ["eviction"]

#: Inches: a strip of kept keys, the heads beside it, and what stands around them.
_LEFT, _WIDE, _HIGH, _BETWEEN, _ABOVE = 1.32, 5.6, 0.72, 0.14, 0.98
_HEADS, _BESIDE, _RIGHT = 1.5, 0.16, 0.22
_CURVES, _GAP, _BELOW = 1.7, 0.86, 0.5
_WIDTH = _LEFT + _WIDE + _BESIDE + _HEADS + _RIGHT
#: How dark keys after the prompt are, where they all stay.
_LATER = 0.35
#: Steps of a curve that are averaged where there are many.
_POINTS = 64


def eviction(result: Eviction, budget: int = 0, *, theme: Theme = "light") -> Figure:
    """Which keys each policy keeps of every layer, and the mass that every head loses.

    Left, for each policy: keys from the first to the last position, the heads of keys of all layers
    below each other. Beside it: the mean loss of every head. Below: the loss from step to step, and
    at every budget.

    Args:
        result: of `headloom.analysis.eviction.evict.evict`.
        budget: the number of the budget that is drawn.

    Raises: InputError: no such budget.
    """
    if not -len(result.budgets) <= budget < len(result.budgets):
        raise InputError(f"eviction: budget {budget}; there are {len(result.budgets)}, from 0.")
    colours = palette(theme)
    drawn = result.policies[:-1]
    down = _ABOVE + len(drawn) * (_HIGH + _BETWEEN)
    figure = new_figure(_WIDTH, down + _GAP + _CURVES + _BELOW, colours)
    _headings(figure, result, budget, colours)
    grids = [_grid(result, number, budget) for number in range(len(drawn))]
    norm = PowerNorm(0.5, 0.0, max(*(float(np.nanmax(grid)) for grid in grids), 1e-6))
    keys = LinearSegmentedColormap.from_list("headloom-keys", [colours.ground, colours.key], 256)
    for row, (name, grid) in enumerate(zip(drawn, grids, strict=True)):
        top = _ABOVE + row * (_HIGH + _BETWEEN)
        mean = float(result.lost_by_heads[row, budget].mean())
        _text(figure, 0.14, top + 0.08, name, fontsize=9, fontweight="bold", color=colours.ink)
        _text(figure, 0.14, top + 0.27, f"{100 * mean:.2f} %", fontsize=13, color=colours.ink)
        if name == BEST_SET:
            _text(figure, 0.14, top + 0.52, "best single set", fontsize=6.5, color=colours.faint)
        axes = axes_of_cells(figure, _LEFT, top, _WIDE, _HIGH)
        # Where several keys fall into a pixel, it is of their mean.
        axes.imshow(_stays(result, row, budget), cmap=keys, vmin=0, vmax=1, aspect="auto",
                    interpolation="auto", interpolation_stage="data")  # fmt: skip
        bare(axes, colours)
        axes = axes_of_cells(figure, _LEFT + _WIDE + _BESIDE, top, _HEADS, _HIGH)
        axes.imshow(grid, cmap=colours.weight, norm=norm, aspect="auto", interpolation="nearest")
        bare(axes, colours)
    _scales(figure, result, down - _BETWEEN + 0.05, float(norm.vmax or 1.0), colours)
    _curves(figure, result, budget, down + _GAP - _BETWEEN, colours)
    return figure


def _text(figure: Figure, across: float, down: float, text: str, **how: object) -> None:
    """Text at a place from the upper left, in inches."""
    width, height = figure.get_size_inches()
    options: dict[str, object] = {"fontsize": 7, "va": "top"} | how
    figure.text(across / width, 1 - down / height, text, **options)  # type: ignore[arg-type]


def _headings(figure: Figure, result: Eviction, budget: int, colours: Palette) -> None:
    keys = result.budgets[budget]
    title = (
        f"What a cache of {100 * keys / result.prompt:.3g} % of the keys keeps, and what every "
        "head loses"
    )
    _text(figure, 0.14, 0.14, title, fontsize=10, fontweight="bold", color=colours.ink)
    _text(figure, 0.14, 0.38, str(result), color=colours.faint, fontsize=7.5)
    _text(figure, 0.14, 0.72, "policy, mass lost", color=colours.faint)
    _text(
        figure, _LEFT, 0.72, "keys that stay; a row: a head of keys, layer 0 on top "
        "(paler: keys of later tokens)", color=colours.key,
    )  # fmt: skip
    _text(figure, _LEFT + _WIDE + _BESIDE, 0.72, "mass lost; a cell: a head", color=colours.faint)


def _grid(result: Eviction, policy: int, budget: int) -> Array:
    """The mean loss of each head, (layers, heads); NaN where a layer has fewer."""
    grid = np.full((len(result.lost), max(lost.shape[2] for lost in result.lost.values())), np.nan)
    for row, lost in enumerate(result.lost.values()):
        grid[row, : lost.shape[2]] = lost[policy, budget].double().mean(-1).numpy()
    return grid


def _stays(result: Eviction, policy: int, budget: int) -> Array:
    """Which keys stay, 0 or 1, (heads of keys of all layers, keys); paler after the prompt."""
    held = np.concatenate([layer[policy, budget].numpy() for layer in result.kept.values()])
    return np.pad(held.astype(float), ((0, 0), (0, result.steps)), constant_values=_LATER)


def _scales(figure: Figure, result: Eviction, down: float, most: float, colours: Palette) -> None:
    """Positions under the strips, and the scale of the losses."""
    length = result.prompt + result.steps
    for place, text, side in (
        (0, "0", "left"), (result.prompt, f"{result.prompt:,}", "right"), (length, "steps", "right")
    ):  # fmt: skip
        _text(figure, _LEFT + _WIDE * place / length, down, text, ha=side, fontsize=6.5,
              color=colours.faint)  # fmt: skip
    axes = axes_of_cells(figure, _LEFT + _WIDE + _BESIDE, down + 0.03, _HEADS, 0.07)
    along = np.linspace(0, 1, 257)
    axes.pcolormesh(along, [0, 1], ((along[1:] + along[:-1]) / 2)[None], cmap=colours.weight,
                    vmin=0, vmax=1, rasterized=True)  # fmt: skip
    bare(axes, colours)
    axes.set_xticks([0, 0.5, 1], ["0", f"{25 * most:.3g} %", f"{100 * most:.3g} %"])
    axes.tick_params(axis="x", length=2, width=0.5, pad=1.5, labelsize=6.5, color=colours.faint,
                     labelcolor=colours.faint)  # fmt: skip


def _curves(figure: Figure, result: Eviction, budget: int, down: float, colours: Palette) -> None:
    """The loss from step to step, and at every budget; the names in the colours of their lines."""
    lost = 100 * result.lost_by_heads.numpy()
    by_steps, by_budgets = lost[:, budget].mean(1), lost.mean((2, 3))
    shares = 100 * np.array(result.budgets) / result.prompt  # what stays, not what was asked for
    order = np.argsort(shares)
    parts = min(result.steps, _POINTS)
    # Each part from its first step to the next one's, the last as well.
    places = result.prompt + np.linspace(0, result.steps, parts + 1)
    across = _LEFT + 4.0
    left = axes_of_cells(figure, _LEFT - 0.6, down, 4.0, _CURVES)
    right = axes_of_cells(figure, across, down, _WIDTH - across - 1.1, _CURVES)
    highest = sorted(range(len(lost)), key=lambda number: -by_budgets[number, order[0]])
    for number, name in enumerate(result.policies):
        ink = colours.heads[number % len(colours.heads)]
        ink = {BEST_SET: colours.ink, BEST_SETS: colours.faint}.get(name, ink)
        dashes = "--" if name == BEST_SETS else "-"
        means = [part.mean() for part in np.array_split(by_steps[number], parts)]
        left.step(places, [*means, means[-1]], where="post", color=ink, linewidth=1.1,
                  linestyle=dashes)  # fmt: skip
        right.plot(shares[order], by_budgets[number, order], color=ink, linewidth=1.3, marker="o",
                   markersize=3, linestyle=dashes)  # fmt: skip
        place = down + 0.02 + 0.17 * highest.index(number)
        bold = "bold" if name == BEST_SET else "normal"
        _text(figure, _WIDTH - 1.02, place, name, fontsize=7.5, color=ink, fontweight=bold)
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.set_xticks(np.unique(shares), [f"{share:.3g}" for share in np.unique(shares)])
    right.set_ylim(bottom=0)
    averaged = "" if parts == result.steps else f" (means of {result.steps / parts:.3g})"
    _plain(left, colours, f"mass lost, %; position of the step{averaged}")
    _plain(right, colours, "mass lost, %; keys that stay, % of the prompt")


def _plain(axes: Axes, colours: Palette, title: str) -> None:
    axes.set_facecolor(colours.ground)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(colours.line)
    axes.tick_params(length=2, width=0.5, labelsize=6.5, color=colours.faint,
                     labelcolor=colours.faint)  # fmt: skip
    axes.set_title(title, fontsize=7, color=colours.faint, loc="left", pad=5)
    axes.grid(axis="y", color=colours.line, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.margins(x=0.02)
