"""`heads`: every head of a trace, or of a layer, at a glance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from headloom.errors import InputError
from headloom.formats.trace import TraceData, TraceLayer
from headloom.studio.pictures.canvas import Array, Page, picture
from headloom.studio.pictures.masses import Masses, Weights, masses_of, not_shown

#: Rows and columns of a tile at most: in longer matrices a dot is the mean of a block of weights.
_DOTS = 64
#: Units: left of the heads, above and below them, above each kind, and right of them.
_LEFT, _TOP, _FOOT, _HEADING, _RIGHT = 0.72, 0.36, 0.52, 0.62, 0.12
#: Distance of tiles, in tiles. Tiles in a row for one layer; space above them.
_PITCH, _ACROSS, _ABOVE = 1.1, 8, 0.2
#: Distance of lines below the scale.
_LINE = 0.12
#: Headings of the kinds of layers: for a sequence in the singular, and in the plural.
_KINDS = {
    "encoder": ("the {0} looks at itself", "the {0} look at each other"),
    "decoder": ("the {0} looks at what it has written", "the {0} look at those before them"),
    "cross": ("the {0} looks at the {1}", "the {0} look at the {1}"),
}


@dataclass(frozen=True)
class _Row:
    """Row of tiles.

    place: its index; heading: text above it; above: space for that; label: text on the left.
    """

    place: int
    heads: range
    masses: Masses
    heading: str = ""
    above: float = 0.0
    label: str = ""


@picture
def heads(
    page: Page, what: TraceData | Weights, *, title: str | None = None, **imshow: Any
) -> Array:
    """Draw all heads as small multiples: layers are rows, heads columns, grouped by kind.

    Returns: the axes of the heads, (layers, heads), or (heads,) for a layer; None where a layer
        has fewer heads.
    """
    rows = _of_trace(what) if isinstance(what, TraceData) else _of_layer(what)
    if not rows:
        raise InputError("heads: the trace has no layers.")
    columns, colours = max(len(row.heads) for row in rows), page.colours
    title = _title(what, sum(len(row.heads) for row in rows)) if title is None else title
    below = 0.1 * any(row.masses.partial for row in rows)
    lines = list(dict.fromkeys(note for row in rows for note in row.masses.notes))
    of_layers = isinstance(what, TraceData)
    left = _LEFT if of_layers else _RIGHT + 0.02
    fixed = _TOP + sum(row.above for row in rows) + len(rows) * below
    under = (1 + len(lines)) * _LINE
    # The tile size in whole pixels at 200 dots per inch.
    tile = page.fits(
        0.96 if columns <= _ACROSS else 0.64,
        (left + _RIGHT, _PITCH * columns), (fixed + _FOOT + under, _PITCH * len(rows)),
    )  # fmt: skip
    across = (page.room[0] or left + max(_PITCH * columns * tile, 3.4) + _RIGHT) - left - _RIGHT
    high = fixed + len(rows) * _PITCH * tile
    page.letters([title, *(what.sequences if isinstance(what, TraceData) else ())])
    page.lay(left + across + _RIGHT, high + _FOOT + under)
    page.title(title)
    how, top = page.weights(imshow), _TOP
    drawn = np.full((max(row.place for row in rows) + 1, columns), None, object)
    for row in rows:
        page.say(left, top + 0.16, page.written(row.heading), 7.5, colours.ink)
        top += row.above
        page.say(left - 0.1, top + tile / 2, row.label, 6.5, ha="right", va="center")
        for column, head in enumerate(row.heads):
            place = left + column * _PITCH * tile
            axes = page.matrix(place, top, tile, tile, row.masses.values[head], **how)
            drawn[row.place, column] = axes
            if row.above:
                name = f"{head}" if head else "head 0"
                axes.set_title(name, fontsize=6.5 * page.unit, color=colours.faint, pad=3)
            page.say(place, top + tile + 0.03, not_shown(row.masses.left_out[head]), 5)
        top += _PITCH * tile + below
    page.scale(left, page.height - top - 0.24, min(1.6, across), how, "weight")
    top += _FOOT
    page.say(left, top, "rows: queries ↓", 6.5, colours.query, va="baseline")
    page.say(left + 0.75, top, "columns: keys →", 6.5, colours.key, va="baseline")
    page.say(left, top + 0.04, "\n".join(lines), 6.5)
    return drawn if of_layers else drawn.ravel()[: sum(len(row.heads) for row in rows)]


def _of_trace(trace: TraceData) -> list[_Row]:
    """Return a row for each layer, grouped by kind."""
    rows = []
    for kind, headings in _KINDS.items():
        layers = [(n, layer) for n, layer in enumerate(trace.layers) if layer.kind == kind]
        # Each pair of sequences once, in the order of the layers.
        pairs = dict.fromkeys((layer.queries_from, layer.keys_from) for _, layer in layers)
        heading = "; ".join(headings[pair[0].endswith("s")].format(*pair) for pair in pairs)
        heading, above = f"{kind.capitalize()}: {heading}", _HEADING
        for number, layer in layers:
            label = f"layer {trace.label(number)}".replace(" (", "\n(")
            masses = masses_of(layer, None, _DOTS)
            rows.append(_Row(number, range(layer.heads), masses, heading, above, label))
            heading, above = "", 0.0
    return rows


def _of_layer(layer: Weights) -> list[_Row]:
    """Return the heads of a layer in as many rows as needed."""
    masses = masses_of(layer, None, _DOTS)
    heads = range(len(masses.values))
    across = -(-len(heads) // -(-len(heads) // _ACROSS))
    return [
        _Row(place, heads[start : start + across], masses, above=_ABOVE)
        for place, start in enumerate(range(0, len(heads), across))
    ]


def _title(what: TraceData | Weights, heads: int) -> str:
    """Return the title: the number of heads, and of tokens or the layer."""
    if isinstance(what, TraceData):
        lengths = (
            _counted(len(tokens), "token" if name == "tokens" else f"{name} token")
            for name, tokens in what.sequences.items()
        )
        return f"{_counted(heads, 'head')} · {' and '.join(lengths)}"
    layer = f"{what.kind} layer {what.index}, " if isinstance(what, TraceLayer) else ""
    return layer + _counted(heads, "head")


def _counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
