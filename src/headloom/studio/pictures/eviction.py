"""`eviction`: keys kept by eviction policies, and the loss of every head."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import MaxNLocator

from headloom.analysis.eviction.evict import BEST_SET, BEST_SETS, Eviction
from headloom.mechanism.shapes import place_of
from headloom.studio.pictures.canvas import Array, Page, picture, weight_norm

#: Units: a strip of kept keys, the heads beside it, and margins.
_LEFT, _WIDE, _HIGH, _BETWEEN, _ABOVE = 1.32, 5.6, 0.72, 0.14, 0.98
_HEADS, _BESIDE, _RIGHT = 1.5, 0.16, 0.22
_CURVES, _GAP, _BELOW = 1.7, 0.86, 0.5
#: Shade of keys after the prompt, which are all kept.
_LATER = 0.35
#: Columns for keys at least.
_COLUMNS = 2_000
#: Steps of a curve that are averaged where there are many.
_POINTS = 64


@picture
def eviction(page: Page, result: Eviction, budget: int | None = None) -> Array:
    """Draw the keys that each policy keeps in every layer, and the mass that every head loses.

    Left, for each policy: keys by position, with the key heads of all layers below each other.
    Beside it: the mean loss of every head. Below: the loss at each step and at each budget. See
    `headloom.analysis.eviction.evict.Eviction.plot`.
    """
    count = len(result.budgets)
    budget = place_of("eviction", "plot", "budget", count // 2 if budget is None else budget, count)
    drawn, colours = result.policies[:-1], page.colours
    stretch = page.fits(
        1.0, (_LEFT + _BESIDE + _RIGHT, _WIDE + _HEADS),
        (_ABOVE + len(drawn) * _BETWEEN + _GAP + _BELOW, len(drawn) * _HIGH + _CURVES),
    )  # fmt: skip
    wide, beside = stretch * _WIDE, stretch * _HEADS
    # A strip needs room for three lines of text, even in a narrow figure.
    high, curves = (max(stretch, 0.86) * _HIGH, _CURVES) if page.given is None else (
        stretch * _HIGH, stretch * _CURVES)  # fmt: skip
    down, across = _ABOVE + len(drawn) * (high + _BETWEEN), _LEFT + wide + _BESIDE
    page.lay(across + beside + _RIGHT, down + _GAP + curves + _BELOW)
    share = 100 * result.budgets[budget] / result.prompt
    page.title(
        f"What a cache of {share:.3g} % of the keys keeps, and what every head loses", str(result)
    )
    page.say(0.14, 0.72, "policy, mass lost")
    strips = "keys that stay; a row: a head of keys, layer 0 on top (paler: keys of later tokens)"
    page.say(_LEFT, 0.72, strips if wide > 4.5 else "keys that stay", colour=colours.key)
    page.say(across, 0.72, "mass lost; a cell: a head" if beside > 1.2 else "mass lost")
    grids = [_grid(result, number, budget) for number in range(len(drawn))]
    most = max(*(float(np.nanmax(grid)) for grid in grids), 1e-6)
    how: dict[str, Any] = {"norm": weight_norm(most), "cmap": colours.weight}
    keys = LinearSegmentedColormap.from_list("headloom-keys", [colours.ground, colours.key], 256)
    for row, (name, grid) in enumerate(zip(drawn, grids, strict=True)):
        top = _ABOVE + row * (high + _BETWEEN)
        mean = float(result.lost_by_heads[row, budget].mean())
        page.say(0.14, top + 0.08, name, 9, colours.ink, fontweight="bold")
        page.say(0.14, top + 0.27, f"{100 * mean:.2f} %", 13, colours.ink)
        page.say(0.14, top + 0.52, "best single set" * (name == BEST_SET), 6.5)
        # Kept keys, (key heads of all layers, keys); keys that share a pixel are averaged. If there
        # are few keys, each takes several columns, for sharp edges.
        held = np.concatenate([layer[row, budget].numpy() for layer in result.kept.values()])
        stays = np.pad(held.astype(float), ((0, 0), (0, result.steps)), constant_values=_LATER)
        stays = stays.repeat(-(-_COLUMNS // stays.shape[1]), axis=1)
        page.matrix(_LEFT, top, wide, high, stays, cmap=keys, vmin=0, vmax=1, interpolation="auto",
                    interpolation_stage="data")  # fmt: skip
        page.matrix(across, top, beside, high, grid, **how)
    below, length = down - _BETWEEN + 0.05, result.prompt + result.steps
    for place, text in ((0, "0"), (result.prompt, f"{result.prompt:,}"), (length, "steps")):
        at = _LEFT + wide * place / length
        page.say(at, below, text, 6.5, ha="right" if place else "left")
    ticks = {0: "0", most / 4: f"{25 * most:.3g} %", most: f"{100 * most:.3g} %"}
    page.scale(across, page.height - below - 0.1, beside, how, "", ticks)
    return _curves(page, result, budget, down + _GAP - _BETWEEN, curves)


def _grid(result: Eviction, policy: int, budget: int) -> Array:
    """Return the mean loss of each head, (layers, heads); NaN where a layer has fewer heads."""
    grid = np.full((len(result.lost), max(lost.shape[2] for lost in result.lost.values())), np.nan)
    for row, lost in enumerate(result.lost.values()):
        grid[row, : lost.shape[2]] = lost[policy, budget].double().mean(-1).numpy()
    return grid


def _curves(page: Page, result: Eviction, budget: int, down: float, high: float) -> Array:
    """Draw the loss at each step and at each budget, with the names in the lines' colours."""
    colours, lost = page.colours, 100 * result.lost_by_heads.numpy()
    by_steps, by_budgets = lost[:, budget].mean(1), lost.mean((2, 3))
    shares = 100 * np.array(result.budgets) / result.prompt  # actually kept
    order = np.argsort(shares)
    parts = min(result.steps, _POINTS)
    # Each part ends where the next one starts.
    places = result.prompt + np.linspace(0, result.steps, parts + 1)
    # Two plots, and the names on the right.
    wide = page.width - (_LEFT - 0.6) - 0.6 - 1.1
    left = page.axes(_LEFT - 0.6, down, 0.63 * wide, high)
    right = page.axes(_LEFT + 0.63 * wide, down, 0.37 * wide, high)
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
        bold = "bold" if name == BEST_SET else "normal"
        place = down + 0.02 + 0.17 * highest.index(number)
        page.say(page.width - 1.02, place, name, 7.5, ink, fontweight=bold)
    left.xaxis.set_major_locator(MaxNLocator(max(2, int(wide * 0.63 / 0.45)), integer=True))
    right.set_xticks(np.unique(shares), [f"{share:.3g}" for share in np.unique(shares)])
    right.set_ylim(bottom=0)
    averaged = "" if parts == result.steps else f" (means of {result.steps / parts:.3g})"
    for axes, title in ((left, f"position of the step{averaged}"), (right, "keys that stay, %")):
        page.plain(axes)
        page.small(axes, 6.5 * page.unit, axis="both")
        axes.set_title(f"mass lost, %; {title}", fontsize=7 * page.unit, loc="left", pad=5,
                       color=colours.faint)  # fmt: skip
        axes.margins(x=0.02)
    return np.array([left, right])
