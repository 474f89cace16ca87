"""`heads`: every head of a trace at a glance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from headloom.analysis.overview import Overview, overview
from headloom.errors import InputError
from headloom.formats.trace import TraceData, TraceLayer
from headloom.studio.pictures.canvas import (
    axes_of_cells,
    bare,
    new_figure,
    not_shown,
    weight_norm,
    weight_scale,
)
from headloom.studio.pictures.fonts import lettering
from headloom.studio.pictures.palette import Palette, Theme, palette

__all__ = ["heads"]

#: Rows and columns of a tile at most: of longer matrices a dot is the mean of a block of weights.
_DOTS = 64
#: Inches: left of the heads, above and below them, and above each kind.
_LEFT, _TOP, _FOOT, _HEADING = 0.72, 0.36, 0.52, 0.62
#: Inches right of the heads; where what stands beside the scale begins; between two lines; and
#: letters of the small print in an inch, at least.
_RIGHT, _BESIDE, _LINE, _LETTERS = 0.12, 1.8, 0.12, 21
#: What layers of a kind do, by the names of their sequences: one text, or one of many.
_KINDS = {
    "encoder": ("the {0} looks at itself", "the {0} look at each other"),
    "decoder": ("the {0} looks at what it has written", "the {0} look at those before them"),
    "cross": ("the {0} looks at the {1}", "the {0} look at the {1}"),
}


def heads(trace: TraceData, *, title: str | None = None, theme: Theme = "light") -> Figure:
    """All heads as small multiples: layers are rows, heads columns, and each kind stands apart.

    In every tile, rows are queries and columns keys. With more than 64 tokens a dot is the mean of
    a block of weights. Layers that have their queries and keys are shown whole; of kept edges
    alone, each head says how much of its mass is not shown.

    Args:
        trace: whose heads.
        title: above them; None: says how many there are.
        theme: "light" or "dark".

    Raises: InputError: the trace has no layers.
    """
    if not trace.layers:
        raise InputError("heads: the trace has no layers.")
    colours = palette(theme)
    sheet = _Sheet.of(trace)
    figure = new_figure(sheet.width, sheet.height, colours)
    if title is None:
        lengths = " and ".join(
            _counted(len(tokens), "token" if name == "tokens" else f"{name} token")
            for name, tokens in trace.sequences.items()
        )
        title = f"{_counted(sum(layer.heads for layer in trace.layers), 'head')} · {lengths}"
    letters = lettering([title])
    figure.text(
        0.14 / sheet.width, 1 - 0.14 / sheet.height, letters.text(title), fontsize=10, va="top",
        fontweight="bold", color=colours.ink, family=list(letters.families),
    )  # fmt: skip
    down = _TOP
    for kind, layers in sheet.groups.items():
        of = [(layer.queries_from, layer.keys_from) for layer, _ in layers]
        # Each pair of sequences once, in the order of the layers.
        said = [_KINDS[kind][pair[0].endswith("s")].format(*pair) for pair in dict.fromkeys(of)]
        name = f"{kind.capitalize()}: {'; '.join(said)}"
        _heading(figure, sheet, name, max(layer.heads for layer, _ in layers), down, colours)
        down += _HEADING
        for layer, view in layers:
            label = f"layer {trace.label(trace.layers.index(layer))}".replace(" (", "\n(")
            _row(figure, sheet, label, layer, view, down, colours)
            down += sheet.tile + sheet.below
    _caption(figure, sheet, colours)
    return figure


def _counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


@dataclass(frozen=True)
class _Sheet:
    """The layers of each kind with what is shown of them; and where things stand, in inches.

    tile: a side of a head; gap: between two of them; below: between two layers.
    caption: what a dot is, in lines; under: their height below the scale, 0 where they stand
        beside it.
    """

    groups: dict[str, list[tuple[TraceLayer, Overview]]]
    tile: float
    gap: float
    below: float
    width: float
    height: float
    caption: list[str]
    under: float

    @classmethod
    def of(cls, trace: TraceData) -> _Sheet:
        """The sheet for all heads of a trace."""
        seen = [(layer, overview(layer, _DOTS)) for layer in trace.layers]
        kinds = [kind for kind in _KINDS if any(layer.kind == kind for layer in trace.layers)]
        groups = {kind: [pair for pair in seen if pair[0].kind == kind] for kind in kinds}
        columns = max(layer.heads for layer in trace.layers)
        partial = any(not_shown(share) for _, view in seen for share in view.left_out)
        # Inches that are whole pixels, and whole dots, at 200 a inch.
        tile, gap = (0.96, 0.1) if columns <= 8 else (0.64, 0.08)
        below = gap + (0.1 if partial else 0.0)
        rows = sum(map(len, groups.values()))
        room = max(columns * (tile + gap), 3.4)
        said = _said_of_dots([view for _, view in seen], partial)
        beside = len("; ".join(said)) <= (room - _BESIDE) * _LETTERS
        caption = ["; ".join(said)] if beside else said
        under = 0.0 if beside else len(caption) * _LINE
        width = _LEFT + room + _RIGHT
        height = _TOP + rows * (tile + below) + len(groups) * _HEADING + _FOOT + under
        return cls(groups, tile, gap, below, width, height, caption, under)

    def across(self, head: int) -> float:
        """The left side of the tiles of a head."""
        return _LEFT + head * (self.tile + self.gap)


def _heading(
    figure: Figure, sheet: _Sheet, name: str, heads: int, down: float, colours: Palette
) -> None:
    """The name of a kind of layers, and the numbers of its heads."""
    width, height = sheet.width, sheet.height
    letters = lettering([name])
    figure.text(_LEFT / width, 1 - (down + 0.16) / height, letters.text(name), fontsize=7.5,
                va="top", color=colours.ink, family=list(letters.families))  # fmt: skip
    for head in range(heads):
        figure.text(
            (sheet.across(head) + sheet.tile / 2) / width, 1 - (down + _HEADING - 0.06) / height,
            f"head {head}" if head == 0 else f"{head}", fontsize=6.5, ha="center",
            color=colours.faint,
        )  # fmt: skip


def _row(
    figure: Figure, sheet: _Sheet, label: str, layer: TraceLayer, view: Overview, down: float,
    colours: Palette,
) -> None:  # fmt: skip
    """The heads of a layer."""
    width, height, tile = sheet.width, sheet.height, sheet.tile
    figure.text(
        (_LEFT - 0.1) / width, 1 - (down + tile / 2) / height, label,
        fontsize=6.5, ha="right", va="center", color=colours.faint,
    )  # fmt: skip
    for head in range(layer.heads):
        across = sheet.across(head)
        axes = axes_of_cells(figure, across, down, tile, tile)
        if view.masses[head].size:  # of no tokens there are no dots
            axes.imshow(
                view.masses[head], cmap=colours.weight, norm=weight_norm(), aspect="auto",
                interpolation="nearest",
            )  # fmt: skip
        bare(axes, colours)
        figure.text(
            across / width, 1 - (down + tile + 0.03) / height, not_shown(view.left_out[head]),
            fontsize=5, va="top", color=colours.faint,
        )  # fmt: skip


def _caption(figure: Figure, sheet: _Sheet, colours: Palette) -> None:
    """The scale of the weights, the size of a dot, and the names of the axes."""
    width, height, under = sheet.width, sheet.height, sheet.under
    place = (_LEFT / width, (0.2 + under) / height, 1.6 / width, 0.085 / height)
    weight_scale(figure, place, colours)
    small = [
        (_BESIDE, 0.2 + under, "rows: queries ↓", colours.query),
        (_BESIDE + 0.75, 0.2 + under, "columns: keys →", colours.key),
    ]
    for number, line in enumerate(reversed(sheet.caption)):
        small.append((0.0 if under else _BESIDE, 0.08 + number * _LINE, line, colours.faint))
    for across, up, text, colour in small:
        figure.text((_LEFT + across) / width, up / height, text, fontsize=6.5, color=colour)


def _said_of_dots(views: Sequence[Overview], partial: bool) -> list[str]:
    """What a dot is, and what is drawn."""
    sizes = sorted({view.sizes for view in views if view.sizes != (1, 1)})
    said = [
        f"a dot: the mass of a row in {columns} keys, mean of {rows} rows"
        for rows, columns in sizes
    ]
    return [*said, "drawn from the kept edges"] if partial else said
