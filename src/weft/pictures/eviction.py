"""`eviction`: which keys policies keep, and what every head loses by it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from weft.analysis.eviction.evict import BEST_SET, BEST_SETS, Eviction
from weft.errors import InputError
from weft.pictures.canvas import Array, axes_of_cells, bare, new_figure
from weft.pictures.palette import Palette, Theme, palette

__all__ = ["eviction"]

#: Inches: a strip of kept keys, the heads beside it, and what stands around them.
_LEFT, _WIDE, _HIGH, _BETWEEN, _ABOVE = 1.32, 5.6, 0.72, 0.14, 0.98
_HEADS, _BESIDE, _RIGHT = 1.5, 0.16, 0.22
_CURVES, _GAP, _BELOW = 1.7, 0.86, 0.5
#: Pixels of a strip: keys that fall into one are averaged.
_PIXELS = 1120
#: How dark keys after the prompt are, where they all stay.
_LATER = 0.35
#: Steps of a curve that are averaged where there are many.
_POINTS = 64


def eviction(
    found: Eviction, budget: int = 0, *, title: str | None = None, theme: Theme = "light"
) -> Figure:
    """Which keys each policy keeps of every layer, and the mass that every head loses.

    Left, for each policy: keys from the first to the last position, the heads of keys of all layers
    below each other. Beside it: the mean loss of every head. Below: the loss from step to step, and
    at every budget.

    Args:
        found: of `weft.analysis.eviction.evict.evict`.
        budget: the number of the budget that is drawn.
        title: above; None: says the budget. theme.

    Raises: InputError: no such budget.
    """
    if not -len(found.budgets) <= budget < len(found.budgets):
        raise InputError(f"eviction: budget {budget}; there are {len(found.budgets)}, from 0.")
    colours = palette(theme)
    policies = found.policies
    sheet = _Sheet(len(policies))
    figure = new_figure(sheet.width, sheet.height, colours)
    _headings(figure, sheet, found, budget, title, colours)
    losses = {name: _losses(found, name, budget) for name in (*policies, BEST_SETS)}
    largest = max(float(np.nanmax(_grid(losses[name]))) for name in policies)
    norm = PowerNorm(0.5, 0.0, max(largest, 1e-6))
    inks = _inks(policies, colours)
    for row, name in enumerate(policies):
        _policy(figure, sheet, found, row, budget, losses[name], norm, colours)
    _foot_of_strips(figure, sheet, found, norm, colours)
    _curves(figure, sheet, found, losses, inks, colours)
    return figure


class _Sheet:
    """Where things stand, in inches."""

    def __init__(self, policies: int) -> None:
        self.strips = policies * (_HIGH + _BETWEEN)
        self.width = _LEFT + _WIDE + _BESIDE + _HEADS + _RIGHT
        self.height = _ABOVE + self.strips + _GAP + _CURVES + _BELOW

    def down(self, row: int) -> float:
        """The upper side of a strip."""
        return _ABOVE + row * (_HIGH + _BETWEEN)

    def text(self, figure: Figure, across: float, down: float, text: str, **how: object) -> None:
        """Text at a place from the upper left."""
        options: dict[str, object] = {"fontsize": 7, "va": "top"} | how
        figure.text(across / self.width, 1 - down / self.height, text, **options)  # type: ignore[arg-type]


def _headings(
    figure: Figure, sheet: _Sheet, found: Eviction, budget: int, title: str | None, colours: Palette
) -> None:
    share = f"{100 * found.budgets[budget] / found.prompt:.3g} %"
    title = title or f"What a cache of {share} of the keys keeps, and what every head loses"
    heads = sum(layer.lost.shape[2] for layer in found.layers.values())
    stay = "key stays" if found.budgets[budget] == 1 else "keys stay"
    how = "a key goes after every step" if found.each_step else "keys go once, after the prompt"
    sheet.text(figure, 0.14, 0.14, title, fontsize=10, fontweight="bold", color=colours.ink)
    sheet.text(
        figure, 0.14, 0.38,
        f"{len(found.layers)} layers, {heads} heads; a prompt of {found.prompt:,} tokens, of which "
        f"{found.budgets[budget]:,} {stay}, then {found.steps:,} steps; {how}",
        color=colours.faint, fontsize=7.5,
    )  # fmt: skip
    sheet.text(figure, 0.14, 0.72, "policy, mass lost", color=colours.faint)
    sheet.text(
        figure, _LEFT, 0.72, "keys that stay; a row: a head of keys, layer 0 on top"
        + (" (paler: stayed for a while)" if found.each_step else " (paler: keys of later tokens)"),
        color=colours.key,
    )  # fmt: skip
    sheet.text(
        figure, _LEFT + _WIDE + _BESIDE, 0.72, "mass lost; a cell: a head", color=colours.faint
    )


def _losses(found: Eviction, name: str, budget: int) -> list[Tensor]:
    """(heads, steps) of each layer."""
    if name == BEST_SETS:
        return [layer.best[budget].double() for layer in found.layers.values()]
    number = found.policies.index(name)
    return [layer.lost[number, budget].double() for layer in found.layers.values()]


def _grid(losses: Sequence[Tensor]) -> Array:
    """The mean loss of each head, (layers, heads); NaN where a layer has fewer."""
    heads = max(len(loss) for loss in losses)
    grid = np.full((len(losses), heads), np.nan)
    for row, loss in enumerate(losses):
        grid[row, : len(loss)] = loss.mean(-1).numpy()
    return grid


def _stays(found: Eviction, policy: int, budget: int) -> Array:
    """How long keys stay, 0 to 1 of all steps, (heads of keys of all layers, pixels)."""
    parts = []
    for layer in found.layers.values():
        after = layer.evicted_after[policy, budget].numpy()
        there = (after - (found.prompt - 1)) / max(found.steps, 1)
        stays = np.where(after < 0, 1.0, there)
        if not found.each_step:
            stays[:, found.prompt :] = _LATER
        parts.append(stays)
    cells = np.concatenate(parts)
    if cells.shape[1] <= _PIXELS:
        return cells
    # Means of keys side by side, as many in a pixel as fall into it.
    edges = np.linspace(0, cells.shape[1], _PIXELS + 1).astype(int)
    means: Array = np.add.reduceat(cells, edges[:-1], 1) / np.diff(edges)
    return means


def _policy(
    figure: Figure, sheet: _Sheet, found: Eviction, row: int, budget: int,
    losses: Sequence[Tensor], norm: PowerNorm, colours: Palette,
) -> None:  # fmt: skip
    """One policy: its name and loss, what it keeps, and what every head loses."""
    down, name = sheet.down(row), found.policies[row]
    mean = float(np.concatenate([loss.numpy().ravel() for loss in losses]).mean())
    sheet.text(figure, 0.14, down + 0.08, name, fontsize=9, fontweight="bold", color=colours.ink)
    sheet.text(figure, 0.14, down + 0.27, f"{100 * mean:.2f} %", fontsize=13, color=colours.ink)
    if name == BEST_SET:
        sheet.text(figure, 0.14, down + 0.52, "best single set", fontsize=6.5, color=colours.faint)
    axes = axes_of_cells(figure, _LEFT, down, _WIDE, _HIGH)
    ramp = LinearSegmentedColormap.from_list("weft-keys", [colours.ground, colours.key], 256)
    axes.imshow(_stays(found, row, budget), cmap=ramp, vmin=0, vmax=1, aspect="auto",
                interpolation="nearest")  # fmt: skip
    bare(axes, colours)
    axes = axes_of_cells(figure, _LEFT + _WIDE + _BESIDE, down, _HEADS, _HIGH)
    axes.imshow(_grid(losses), cmap=colours.weight, norm=norm, aspect="auto",
                interpolation="nearest")  # fmt: skip
    bare(axes, colours)


def _foot_of_strips(
    figure: Figure, sheet: _Sheet, found: Eviction, norm: PowerNorm, colours: Palette
) -> None:
    """Positions under the strips, and the scale of the losses."""
    down = sheet.down(len(found.policies)) - _BETWEEN + 0.05
    length = found.prompt + found.steps
    for place, ha in ((0, "left"), (found.prompt, "right")):
        sheet.text(figure, _LEFT + _WIDE * place / length, down, f"{place:,}", ha=ha,
                   fontsize=6.5, color=colours.faint)  # fmt: skip
    sheet.text(figure, _LEFT + _WIDE, down, "steps", ha="right", fontsize=6.5,
               color=colours.faint)  # fmt: skip
    left = _LEFT + _WIDE + _BESIDE
    axes = axes_of_cells(figure, left, down + 0.03, _HEADS, 0.07)
    along = np.linspace(0, 1, 257)
    axes.pcolormesh(along, [0, 1], ((along[1:] + along[:-1]) / 2)[None], cmap=colours.weight,
                    vmin=0, vmax=1, rasterized=True)  # fmt: skip
    bare(axes, colours)
    most = float(norm.vmax or 1.0)
    axes.set_xticks([0, 0.5, 1], ["0", f"{25 * most:.3g} %", f"{100 * most:.3g} %"])
    axes.tick_params(axis="x", length=2, width=0.5, pad=1.5, labelsize=6.5, color=colours.faint,
                     labelcolor=colours.faint)  # fmt: skip


def _inks(policies: Sequence[str], colours: Palette) -> dict[str, str]:
    """A colour for each policy; the best choices are in ink."""
    names = [name for name in policies if name != BEST_SET]
    inks = {name: colours.heads[place % len(colours.heads)] for place, name in enumerate(names)}
    return inks | {BEST_SET: colours.ink, BEST_SETS: colours.faint}


def _curves(
    figure: Figure, sheet: _Sheet, found: Eviction, losses: dict[str, list[Tensor]],
    inks: dict[str, str], colours: Palette,
) -> None:  # fmt: skip
    """The loss from step to step, and at every budget."""
    down = _ABOVE + sheet.strips + _GAP - _BETWEEN
    axes = axes_of_cells(figure, _LEFT - 0.6, down, 4.0, _CURVES)
    group = max(1, found.steps // _POINTS)
    last: dict[str, float] = {}
    for name, of_layers in losses.items():
        steps = np.concatenate([loss.numpy() for loss in of_layers]).mean(0)
        parts = np.array_split(steps, max(1, found.steps // group))
        means = 100 * np.array([part.mean() for part in parts])
        # Each part from its first step to the next one's, the last as well.
        places = found.prompt + np.linspace(0, found.steps, len(parts) + 1)
        axes.step(places, [*means, means[-1]], where="post", color=inks[name], linewidth=1.1,
                  linestyle="--" if name == BEST_SETS else "-")  # fmt: skip
        last[name] = float(means[-1])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _plain(axes, colours, "mass lost, %; position of the step"
           + ("" if group == 1 else f" (means of {group})"))  # fmt: skip
    across = _LEFT + 4.0
    axes = axes_of_cells(figure, across, down, sheet.width - across - 1.1, _CURVES)
    shares = 100 * np.array(found.budgets) / found.prompt  # what stays, not what was asked for
    order = np.argsort(shares)
    ends: dict[str, float] = {}
    for name, ink in inks.items():
        if name not in losses:
            continue
        means = np.array([
            100 * float(np.concatenate([loss.numpy().ravel() for loss in _losses(found, name, b)])
                        .mean())
            for b in range(len(found.budgets))
        ])  # fmt: skip
        axes.plot(shares[order], means[order], color=ink, linewidth=1.3, marker="o", markersize=3,
                  linestyle="--" if name == BEST_SETS else "-")  # fmt: skip
        ends[name] = float(means[order][0])
    _plain(axes, colours, "mass lost, %; keys that stay, % of the prompt")
    ticks = np.unique(shares)
    axes.set_xticks(ticks, [f"{share:.3g}" for share in ticks])
    axes.set_ylim(bottom=0)
    _legend(figure, sheet, ends, inks, sheet.width - 1.02, down)


def _legend(
    figure: Figure, sheet: _Sheet, ends: dict[str, float], inks: dict[str, str], across: float,
    down: float,
) -> None:  # fmt: skip
    """The names in the colours of their lines, highest first."""
    for row, name in enumerate(sorted(ends, key=lambda each: -ends[each])):
        sheet.text(figure, across, down + 0.02 + 0.17 * row, name, fontsize=7.5, color=inks[name],
                   fontweight="bold" if name == BEST_SET else "normal")  # fmt: skip


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
