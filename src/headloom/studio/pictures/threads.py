"""`threads`: queries at the left, keys at the right, and a curve for every weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, PathPatch
from matplotlib.path import Path as Curve

from headloom.errors import InputError
from headloom.formats.bounds import outward
from headloom.formats.tokens import shown
from headloom.formats.trace import TraceLayer
from headloom.studio.pictures.canvas import Array, bare, new_figure, not_shown, weights_of
from headloom.studio.pictures.fonts import Lettering, lettering
from headloom.studio.pictures.palette import Palette, Theme, palette

__all__ = ["threads"]

#: Tokens of a column at most.
_MOST_TOKENS = 200
#: Weights below this are too faint to be drawn.
_LEAST = 0.01


def threads(
    layer: TraceLayer,
    heads: int | Sequence[int] | None = None,
    *,
    query: int | None = None,
    title: str | None = None,
    theme: Theme = "light",
) -> Figure:
    """Some heads of a layer as threads from queries to keys; width and strength are the weight.

    Beside each key stands what it receives: the mean weight over the queries drawn and the heads.
    A layer that has its queries and keys is drawn whole; of kept edges alone, the picture says how
    much of the mass is not shown.

    Args:
        layer: of a trace.
        heads: which; None: all.
        query: bring the threads of one query forward, by its position; None: all alike.
        title: above it; None: says which layer and heads.
        theme: "light" or "dark".

    Raises: InputError: no such head or query, or more than 200 tokens.
    """
    chosen = _chosen(layer, heads, query)
    if title is None:
        which = f"head {chosen[0]}" if len(chosen) == 1 else f"{len(chosen)} heads"
        title = f"{layer.kind} layer {layer.index}, {which}"
    letters = lettering([*shown(layer.query_tokens), *shown(layer.key_tokens), title])
    sheet = _Sheet(palette(theme), letters, *layer.shape[1:])
    matrices = [weights_of(layer, head) for head in chosen]
    scale = 1.0 if query is None else float(layer.graph.weights[chosen, query].max())
    sheet.draw_threads(chosen, [weights for weights, _ in matrices], query, max(scale, 1e-9))
    sheet.name_queries(shown(layer.query_tokens), query)
    seen = [weights.mean(0) if query is None else weights[query] for weights, _ in matrices]
    received = np.zeros(layer.shape[2])
    for of_head in seen:
        received += of_head / len(chosen)
    missing = not_shown(float(np.mean([share for _, share in matrices])))
    sheet.name_keys(shown(layer.key_tokens), received, least=bool(missing))
    sheet.caption(title, chosen, missing)
    return sheet.figure


def _chosen(layer: TraceLayer, heads: int | Sequence[int] | None, query: int | None) -> list[int]:
    """The heads to draw. Raises: InputError: no such head or query, or too many tokens."""
    count, queries, keys = layer.shape
    chosen = (
        list(range(count)) if heads is None else [heads] if isinstance(heads, int) else [*heads]
    )
    for head in chosen:
        if not 0 <= head < count:
            raise InputError(f"threads: head {head}; the layer has heads 0 to {count - 1}.")
    if query is not None and not 0 <= query < queries:
        raise InputError(f"threads: query {query}; the layer has queries 0 to {queries - 1}.")
    if max(queries, keys) > _MOST_TOKENS:
        raise InputError(
            f"threads: {queries} queries and {keys} keys; at most {_MOST_TOKENS} can be read. "
            "Use headloom.studio.pictures.alignment."
        )
    return chosen


class _Sheet:
    """A figure with a column of queries and one of keys; everything in inches."""

    def __init__(self, colours: Palette, letters: Lettering, queries: int, keys: int) -> None:
        self.colours, self.letters = colours, letters
        self.families = list(letters.families)
        self.step = float(np.clip(8.0 / max(queries, keys, 1), 0.15, 0.27))
        self.size = self.step * 72 * 0.5
        self.left, self.middle, right, top, foot = 1.35, 2.6, 1.75, 0.78, 0.2
        rows = max(queries, keys)
        self.width, self.height = self.left + self.middle + right, top + rows * self.step + foot
        self.figure = new_figure(self.width, self.height, colours)
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        bare(self.axes, colours, frame=False)
        self.axes.set_xlim(0, self.width)
        self.axes.set_ylim(self.height, 0)
        # The shorter column stands in the middle of the longer one.
        self.starts, self.ends = (
            top + (np.arange(number) + 0.5 + (rows - number) / 2) * self.step
            for number in (queries, keys)
        )

    def draw_threads(
        self, chosen: Sequence[int], matrices: Sequence[Array], query: int | None, scale: float
    ) -> None:
        """A curve for each weight; those of a query that is brought forward come last."""
        colours = self.colours
        background: list[tuple[float, Curve, Any]] = []
        foreground: list[tuple[float, Curve, Any]] = []
        for head, weights in zip(chosen, matrices, strict=True):
            colour = colours.query if len(chosen) == 1 else self.colour_of(head)
            for i, j in zip(*np.nonzero(weights >= _LEAST), strict=True):
                forward = query is None or i == query
                # A query brought forward is drawn against its own strongest edge.
                share = min(float(weights[i, j]) / scale, 1.0)
                strength = (0.08 + 0.82 * share) / len(chosen) ** 0.25 if forward else 0.06
                width = share if forward else float(weights[i, j])
                thread = (width, self._curve(i, j), to_rgba(colour, strength))
                (foreground if forward else background).append(thread)
        for group in (background, foreground):
            for weight, curve, rgba in sorted(group, key=lambda thread: thread[0]):
                self.axes.add_patch(
                    PathPatch(curve, facecolor="none", edgecolor=rgba, capstyle="round",
                              linewidth=0.4 + 2.6 * weight)
                )  # fmt: skip

    def _curve(self, i: int, j: int) -> Curve:
        """From query i to key j."""
        left, right, start, end = self.left, self.left + self.middle, self.starts[i], self.ends[j]
        half = self.left + self.middle / 2
        return Curve(
            [(left + 0.08, start), (half, start), (half, end), (right - 0.08, end)],
            [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4],
        )

    def colour_of(self, head: int) -> str:
        """The colour of a head among several."""
        return self.colours.heads[head % len(self.colours.heads)]

    def name_queries(self, tokens: Sequence[str], query: int | None) -> None:
        """The tokens at the left."""
        colours = self.colours
        for i, token in enumerate(tokens):
            forward = query is None or i == query
            self.axes.text(
                self.left, self.starts[i], self.letters.token(token, 16), ha="right", va="center",
                fontsize=self.size, family=self.families,
                color=colours.query if query == i else colours.ink if forward else colours.faint,
                fontweight="bold" if query == i else "normal",
            )  # fmt: skip

    def name_keys(self, tokens: Sequence[str], received: Array, least: bool) -> None:
        """The tokens at the right, each with a bar and a number of the mean weight it receives.

        least: of the kept edges, so that it is that at least.
        """
        right, colours = self.left + self.middle, self.colours
        strongest = max(float(received.max(initial=0)), 1e-9)
        for j, token in enumerate(tokens):
            mass = float(received[j])
            number = f"≥{outward(mass, '.2f')}" if least else f"{mass:.2f}"
            if mass >= 0.005:
                bar = FancyBboxPatch(
                    (right, self.ends[j] - self.step * 0.38),
                    0.02 + received[j] / strongest * 1.05, self.step * 0.76,
                    boxstyle="round,pad=0,rounding_size=0.03", linewidth=0,
                    facecolor=to_rgba(colours.key, 0.22),
                )  # fmt: skip
                self.axes.add_patch(bar)
                self.axes.text(
                    self.width - 0.14, self.ends[j], number, ha="right", va="center",
                    fontsize=self.size * 0.8, color=colours.faint,
                )  # fmt: skip
            self.axes.text(
                right + 0.05, self.ends[j], self.letters.token(token, 16), ha="left", va="center",
                fontsize=self.size, color=colours.ink, family=self.families,
            )  # fmt: skip

    def caption(self, title: str, chosen: Sequence[int], missing: str) -> None:
        """The title, the numbers of the heads, and the names of the columns."""
        colours, text = self.colours, self.axes.text
        text(0.14, 0.24, self.letters.text(title), fontsize=9.5, fontweight="bold", va="center",
             color=colours.ink, family=self.families)  # fmt: skip
        if len(chosen) > 1:
            first = self.width - 0.14 - 0.2 * (min(len(chosen), 12) - 1)
            for place, head in enumerate(chosen[:12]):
                text(first + 0.2 * place, 0.24, str(head), ha="right", va="center", fontsize=8,
                     fontweight="bold", color=self.colour_of(head))  # fmt: skip
        text(self.left, 0.56, "queries: who looks", ha="right", va="center", fontsize=7,
             color=colours.query)  # fmt: skip
        text(self.left + self.middle, 0.56, "keys: who is looked at", va="center", fontsize=7,
             color=colours.key)  # fmt: skip
        if missing:
            text(0.14, self.height - 0.1, f"of the kept edges: {missing}", va="center", fontsize=6,
                 color=colours.faint)  # fmt: skip
        text(self.width - 0.14, 0.56, "receives", va="center", ha="right", fontsize=6.5,
             color=colours.faint)  # fmt: skip
