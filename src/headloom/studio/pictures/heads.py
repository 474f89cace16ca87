"""`heads`: every head of a trace, or of a layer, at a glance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from headloom.errors import InputError
from headloom.formats.trace import TraceData, TraceLayer
from headloom.studio.pictures.canvas import (
    Array,
    Onto,
    Sheet,
    fitting,
    of_cells,
    room,
    ticks_of,
    weight_colours,
)
from headloom.studio.pictures.masses import Masses, Weights, masses_of, not_shown
from headloom.studio.pictures.palette import Theme, palette

#: Rows and columns of a tile at most: of longer matrices a dot is the mean of a block of weights.
_DOTS = 64
#: Units: left of the heads, above and below them, above each kind, and right of them.
_LEFT, _TOP, _FOOT, _HEADING, _RIGHT = 0.72, 0.36, 0.52, 0.62, 0.12
#: Where what stands beside the scale begins; between two lines; and letters in a unit, at least.
_BESIDE, _LINE, _LETTERS = 1.8, 0.12, 21
#: What layers of a kind do, by the names of their sequences: one text, or one of many.
_KINDS = {
    "encoder": ("the {0} looks at itself", "the {0} look at each other"),
    "decoder": ("the {0} looks at what it has written", "the {0} look at those before them"),
    "cross": ("the {0} looks at the {1}", "the {0} look at the {1}"),
}


def heads(
    what: TraceData | Weights,
    *,
    onto: Onto = None,
    width: float | None = None,
    title: str | None = None,
    theme: Theme | None = None,
    **options: Any,
) -> Array:
    """All heads as small multiples: layers are rows, heads columns, and each kind stands apart.

    In every tile, rows are queries and columns keys. With more than 64 tokens a dot is the mean of
    a block of weights. Layers that have their queries and keys are shown whole; of kept edges
    alone, each head says how much of its mass is not shown.

    Args:
        what: a trace, or a layer.
        onto, width, theme, options: as of `headloom.studio.pictures.alignment.alignment`.
        title: above them; None: says how many there are.

    Returns: the axes of the heads, (layers, heads), or (heads,) of a layer; None where a layer has
        fewer.
    Raises: InputError: the trace has no layers.
    """
    rows = _rows_of_trace(what) if isinstance(what, TraceData) else _rows_of_layer(what)
    if not rows:
        raise InputError("heads: the trace has no layers.")
    every, columns = [row.masses for row in rows], max(len(row.heads) for row in rows)
    title = _title(what, sum(len(row.heads) for row in rows)) if title is None else title
    partial = any(masses.partial for masses in every)
    caption = list(dict.fromkeys(note for masses in every for note in masses.notes))
    of_layers = bool(rows[0].label)
    left = _LEFT if of_layers else _RIGHT + 0.02
    # Units that are whole pixels, and whole dots, at 200 an inch.
    tile, below = 0.96 if columns <= 8 else 0.64, 0.1 * partial
    headings = sum(row.above for row in rows)
    space, under = room(onto, width), len(caption) * _LINE
    wide, high = 1.1 * columns, 1.1 * len(rows)
    fixed = _TOP + headings + _FOOT + under + len(rows) * below
    tile = fitting(tile, space, (left + _RIGHT, wide), (fixed, high))
    across = (space[0] or left + max(wide * tile, 3.4) + _RIGHT) - left - _RIGHT
    #: Where there is no room beside the scale, lines stand below it.
    beside = _BESIDE + max(1.8, len("; ".join(caption)) / _LETTERS) < across
    caption = ["; ".join(caption)] if beside else caption
    under = 0.0 if beside else under + _LINE * (across < _BESIDE + 1.8)
    height = _TOP + headings + len(rows) * (below + 1.1 * tile) + _FOOT + under
    colours = palette(theme)
    texts = [title, *(what.sequences if isinstance(what, TraceData) else ())]
    sheet = Sheet(onto, left + across + _RIGHT, height, colours, texts)
    sheet.title(title)
    how, top = of_cells(options, colours), _TOP
    drawn = np.full((max(row.place for row in rows) + 1, columns), None, object)
    for row in rows:
        if row.heading:
            sheet.say(left, top + 0.16, sheet.written(row.heading), 7.5, colours.ink)
        top += row.above
        label = row.label.replace(" (", "\n(")
        sheet.say(left - 0.1, top + tile / 2, label, 6.5, ha="right", va="center")
        for column, head in enumerate(row.heads):
            place = left + column * 1.1 * tile
            axes = sheet.matrix(place, top, tile, tile, row.masses.values[head], **how)
            drawn[row.place, column] = axes
            if row.above:
                name = f"{head}" if head else "head 0"
                axes.set_title(name, fontsize=6.5 * sheet.unit, color=colours.faint, pad=3)
            sheet.say(place, top + tile + 0.03, not_shown(row.masses.left_out[head]), 5)
        top += 1.1 * tile + below
    scale = weight_colours(options, colours)
    sheet.scale(left, sheet.height - top - 0.24, min(1.6, across), scale, ticks_of(scale), "weight")
    place, down = (left + _BESIDE, top + 0.32) if across > _BESIDE + 1.8 else (left, top + 0.52)
    sheet.say(place, down, "rows: queries ↓", 6.5, colours.query, va="baseline")
    sheet.say(place + 0.75, down, "columns: keys →", 6.5, colours.key, va="baseline")
    for number, line in enumerate(caption, 1):
        sheet.say(place if beside else left, down + number * _LINE, line, 6.5, va="baseline")
    return drawn if of_layers else drawn.ravel()[: len(every[0].values)]


@dataclass(frozen=True)
class _Row:
    """Tiles beside each other.

    place: of the row among all; heading, above: what stands above it, and its room; label: left.
    """

    place: int
    heads: range
    masses: Masses
    heading: str = ""
    above: float = 0.0
    label: str = ""


def _rows_of_trace(trace: TraceData) -> list[_Row]:
    """A row for each layer, the layers of a kind together."""
    rows = []
    for kind, looks in _KINDS.items():
        layers = [(n, layer) for n, layer in enumerate(trace.layers) if layer.kind == kind]
        # Each pair of sequences once, in the order of the layers.
        pairs = dict.fromkeys((layer.queries_from, layer.keys_from) for _, layer in layers)
        heading = "; ".join(looks[pair[0].endswith("s")].format(*pair) for pair in pairs)
        heading, above = f"{kind.capitalize()}: {heading}", _HEADING
        for number, layer in layers:
            masses, label = masses_of(layer, None, _DOTS), f"layer {trace.label(number)}"
            rows.append(_Row(number, range(layer.heads), masses, heading, above, label))
            heading, above = "", 0.0
    return rows


def _rows_of_layer(layer: Weights) -> list[_Row]:
    """The heads of a layer, as many rows as they need."""
    masses = masses_of(layer, None, _DOTS)
    heads = range(len(masses.values))
    across = -(-len(heads) // max(1, -(-len(heads) // 8)))
    starts = range(0, len(heads), max(across, 1))
    return [
        _Row(place, heads[start : start + across], masses, above=0.2)
        for place, start in enumerate(starts)
    ]


def _title(what: TraceData | Weights, heads: int) -> str:
    """How many heads there are, of what."""
    counted = _counted(heads, "head")
    if isinstance(what, TraceData):
        lengths = (
            _counted(len(tokens), "token" if name == "tokens" else f"{name} token")
            for name, tokens in what.sequences.items()
        )
        return f"{counted} · {' and '.join(lengths)}"
    return f"{what.kind} layer {what.index}, {counted}" if isinstance(what, TraceLayer) else counted


def _counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
