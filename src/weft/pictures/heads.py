"""`heads`: every head of a trace at a glance."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from weft.errors import InputError
from weft.formats.trace import Trace, TraceLayer
from weft.pictures.canvas import bare, new_figure, weight_norm, weight_scale
from weft.pictures.fonts import lettering
from weft.pictures.palette import Theme, palette

__all__ = ["heads"]

#: Rows and columns of a tile at most; longer matrices are binned.
_BINS = 96
_KINDS = {
    "encoder": "Encoder: the source looks at itself",
    "decoder": "Decoder: the target looks at what it has written",
    "cross": "Cross: the target looks at the source",
}
_ALONE = {
    "encoder": "Encoder: the tokens look at each other",
    "decoder": "Decoder: each token looks at those before it",
}


def heads(trace: Trace, *, title: str | None = None, theme: Theme = "light") -> Figure:
    """All heads as small multiples: layers are rows, heads columns, and each kind stands apart.

    In every tile, rows are queries and columns keys. A tile of more than 96 tokens is binned: it
    shows the mass that a row of the bin has in it, on average.

    Args:
        trace: whose heads.
        title: above them; None: says how many there are.
        theme: "light" or "dark".

    Raises: InputError: the trace has no layers.
    """
    if not trace.layers:
        raise InputError("heads: the trace has no layers.")
    colours = palette(theme)
    kinds = [kind for kind in _KINDS if any(layer.kind == kind for layer in trace.layers)]
    groups = {kind: [layer for layer in trace.layers if layer.kind == kind] for kind in kinds}
    columns = max(layer.heads for layer in trace.layers)
    tile, gap = (0.86, 0.1) if columns <= 8 else (0.62, 0.08)
    left, top, heading, foot = 0.72, 0.36, 0.62, 0.52
    rows = sum(map(len, groups.values()))
    width = left + max(columns * (tile + gap), 3.4) + 0.12
    height = top + rows * (tile + gap) + len(groups) * heading + foot
    figure = new_figure(width, height, colours)

    if title is None:
        lengths = " and ".join(
            f"{len(tokens)} {name if name != 'tokens' else ''} tokens".replace("  ", " ")
            for name, tokens in trace.sequences.items()
        )
        total = sum(layer.heads for layer in trace.layers)
        title = f"{total} heads · {lengths}"
    letters = lettering([title])
    figure.text(
        0.14 / width, 1 - 0.14 / height, letters.text(title), fontsize=10, va="top",
        fontweight="bold", color=colours.ink, family=list(letters.families),
    )  # fmt: skip

    single = len(trace.sequences) == 1
    down = top
    for kind, layers in groups.items():
        name = _ALONE.get(kind, _KINDS[kind]) if single else _KINDS[kind]
        figure.text(left / width, 1 - (down + 0.16) / height, name, fontsize=7.5, va="top",
                    color=colours.ink)  # fmt: skip
        for head in range(max(layer.heads for layer in layers)):
            figure.text(
                (left + head * (tile + gap) + tile / 2) / width,
                1 - (down + heading - 0.06) / height,
                f"head {head}" if head == 0 else f"{head}", fontsize=6.5, ha="center",
                color=colours.faint,
            )  # fmt: skip
        down += heading
        for layer in layers:
            figure.text(
                (left - 0.1) / width, 1 - (down + tile / 2) / height, f"layer {layer.index}",
                fontsize=6.5, ha="right", va="center", color=colours.faint,
            )  # fmt: skip
            for head in range(layer.heads):
                place = (
                    (left + head * (tile + gap)) / width, 1 - (down + tile) / height,
                    tile / width, tile / height,
                )  # fmt: skip
                axes = figure.add_axes(place)
                axes.imshow(
                    _tile(layer, head), cmap=colours.weight, norm=weight_norm(), aspect="auto",
                    interpolation="nearest",
                )  # fmt: skip
                bare(axes, colours)
            down += tile + gap
    weight_scale(figure, (left / width, 0.2 / height, 1.6 / width, 0.085 / height), colours)
    figure.text(
        (left + 1.8) / width, 0.2 / height, "rows: queries ↓", fontsize=6.5, color=colours.query
    )
    figure.text(
        (left + 2.55) / width, 0.2 / height, "columns: keys →", fontsize=6.5, color=colours.key
    )
    return figure


def _tile(layer: TraceLayer, head: int) -> np.ndarray:
    """The weights of a head, binned where they are many: mean mass of a row in each bin."""
    _, queries, keys = layer.shape
    matrix = layer.graph.adjacency(head).tocoo()
    high, wide = min(queries, _BINS), min(keys, _BINS)
    rows = matrix.coords[0].astype(np.int64) * high // max(queries, 1)
    columns = matrix.coords[1].astype(np.int64) * wide // max(keys, 1)
    total = np.zeros((max(high, 1), max(wide, 1)))
    np.add.at(total, (rows, columns), matrix.data)
    members = np.bincount(np.arange(queries) * high // max(queries, 1), minlength=max(high, 1))
    return total / np.maximum(members, 1)[:, None]
