"""`threads`: queries at the left, keys at the right, and a thread for every weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, PathPatch
from matplotlib.path import Path as Curve

from weft.errors import InputError
from weft.formats.tokens import shown
from weft.formats.trace import TraceLayer
from weft.pictures.canvas import bare, new_figure, not_shown, weights_of
from weft.pictures.fonts import lettering
from weft.pictures.palette import Theme, palette

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
    colours = palette(theme)
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
            "Use weft.pictures.alignment."
        )
    if title is None:
        which = f"head {chosen[0]}" if len(chosen) == 1 else f"{len(chosen)} heads"
        title = f"{layer.kind} layer {layer.index}, {which}"
    letters = lettering([*shown(layer.query_tokens), *shown(layer.key_tokens), title])
    families = list(letters.families)

    step = float(np.clip(8.0 / max(queries, keys, 1), 0.15, 0.27))
    size = step * 72 * 0.5
    left, middle, right, top, foot = 1.35, 2.6, 1.75, 0.78, 0.2
    rows = max(queries, keys)
    width, height = left + middle + right, top + rows * step + foot
    figure = new_figure(width, height, colours)
    axes = figure.add_axes((0, 0, 1, 1))
    bare(axes, colours, frame=False)
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)

    def places(number: int) -> np.ndarray:
        # The shorter column stands in the middle of the longer one.
        return top + (np.arange(number) + 0.5 + (rows - number) / 2) * step

    starts, ends = places(queries), places(keys)
    received = np.zeros(keys)
    whispers: list[tuple[float, Curve, Any]] = []
    voices: list[tuple[float, Curve, Any]] = []
    scale = 1.0 if query is None else float(layer.graph.weights[chosen, query].max())
    scale = max(scale, 1e-9)
    matrices = [weights_of(layer, head) for head in chosen]
    for head, (weights, _) in zip(chosen, matrices, strict=True):
        if query is None:
            received += weights.mean(0) / len(chosen)
        else:
            received += weights[query] / len(chosen)
        colour = colours.query if len(chosen) == 1 else colours.heads[head % len(colours.heads)]
        for i, j in zip(*np.nonzero(weights >= _LEAST), strict=True):
            weight = weights[i, j]
            forward = query is None or i == query
            curve = Curve(
                [(left + 0.08, starts[i]), (left + middle / 2, starts[i]),
                 (left + middle / 2, ends[j]), (left + middle - 0.08, ends[j])],
                [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4],
            )  # fmt: skip
            # A query brought forward is drawn against its own strongest edge.
            share = min(float(weight) / scale, 1.0)
            strength = (0.08 + 0.82 * share) / len(chosen) ** 0.25 if forward else 0.06
            thread = (share if forward else float(weight), curve, to_rgba(colour, strength))
            (voices if forward else whispers).append(thread)
    for group in (whispers, voices):
        group.sort(key=lambda thread: thread[0])
        for weight, curve, rgba in group:
            axes.add_patch(
                PathPatch(curve, facecolor="none", edgecolor=rgba, capstyle="round",
                          linewidth=0.4 + 2.6 * weight)
            )  # fmt: skip

    for i, token in enumerate(shown(layer.query_tokens)):
        forward = query is None or i == query
        axes.text(
            left, starts[i], letters.token(token, 16), ha="right", va="center", fontsize=size,
            color=colours.query if query == i else colours.ink if forward else colours.faint,
            fontweight="bold" if query == i else "normal", family=families,
        )  # fmt: skip
    strongest = max(float(received.max(initial=0)), 1e-9)
    for j, token in enumerate(shown(layer.key_tokens)):
        share = received[j] / strongest
        if received[j] >= 0.005:
            axes.add_patch(
                FancyBboxPatch(
                    (left + middle, ends[j] - step * 0.38), 0.02 + share * 1.05, step * 0.76,
                    boxstyle="round,pad=0,rounding_size=0.03", linewidth=0,
                    facecolor=to_rgba(colours.key, 0.22),
                )
            )  # fmt: skip
            axes.text(
                width - 0.14, ends[j], f"{received[j]:.2f}", ha="right", va="center",
                fontsize=size * 0.8, color=colours.faint,
            )  # fmt: skip
        axes.text(
            left + middle + 0.05, ends[j], letters.token(token, 16), ha="left", va="center",
            fontsize=size, color=colours.ink, family=families,
        )  # fmt: skip
    axes.text(0.14, 0.24, letters.text(title), fontsize=9.5, fontweight="bold", va="center",
              color=colours.ink, family=families)  # fmt: skip
    if len(chosen) > 1:
        for place, head in enumerate(chosen[:12]):
            axes.text(
                width - 0.14 - 0.2 * (min(len(chosen), 12) - 1 - place), 0.24, str(head),
                ha="right",
                va="center", fontsize=8, fontweight="bold",
                color=colours.heads[head % len(colours.heads)],
            )  # fmt: skip
    axes.text(left, 0.56, "queries: who looks", ha="right", va="center", fontsize=7,
              color=colours.query)  # fmt: skip
    axes.text(left + middle, 0.56, "keys: who is looked at", va="center", fontsize=7,
              color=colours.key)  # fmt: skip
    left_out = float(np.mean([share for _, share in matrices]))
    if not_shown(left_out):
        axes.text(0.14, height - 0.1, f"of the kept edges: {not_shown(left_out)}", va="center",
                  fontsize=6, color=colours.faint)  # fmt: skip
    axes.text(width - 0.14, 0.56, "receives", va="center", ha="right", fontsize=6.5,
              color=colours.faint)  # fmt: skip
    return figure
