"""`heads`: every head of a trace at a glance."""

from __future__ import annotations

from matplotlib.figure import Figure

from weft.analysis.overview import overview
from weft.errors import InputError
from weft.formats.trace import TraceData
from weft.pictures.canvas import (
    axes_of_cells,
    bare,
    new_figure,
    not_shown,
    weight_norm,
    weight_scale,
)
from weft.pictures.fonts import lettering
from weft.pictures.palette import Theme, palette

__all__ = ["heads"]

#: Rows and columns of a tile at most: of longer matrices a dot is the mean of a block of weights.
_DOTS = 64
_KINDS = {
    "encoder": "Encoder: the source looks at itself",
    "decoder": "Decoder: the target looks at what it has written",
    "cross": "Cross: the target looks at the source",
}
_ALONE = {
    "encoder": "Encoder: the tokens look at each other",
    "decoder": "Decoder: each token looks at those before it",
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
    kinds = [kind for kind in _KINDS if any(layer.kind == kind for layer in trace.layers)]
    groups = {kind: [layer for layer in trace.layers if layer.kind == kind] for kind in kinds}
    columns = max(layer.heads for layer in trace.layers)
    seen = [overview(layer, _DOTS) for layer in trace.layers]
    partial = any(not_shown(share) for view in seen for share in view.left_out)
    # Inches that are whole pixels, and whole dots, at 200 a inch.
    tile, gap = (0.96, 0.1) if columns <= 8 else (0.64, 0.08)
    below = gap + (0.1 if partial else 0.0)
    left, top, heading, foot = 0.72, 0.36, 0.62, 0.52
    rows = sum(map(len, groups.values()))
    width = left + max(columns * (tile + gap), 3.4) + 0.12
    height = top + rows * (tile + below) + len(groups) * heading + foot
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

    views = {id(layer): view for layer, view in zip(trace.layers, seen, strict=True)}
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
                across = left + head * (tile + gap)
                axes = axes_of_cells(figure, across, down, tile, tile)
                view = views[id(layer)]
                axes.imshow(
                    view.masses[head], cmap=colours.weight, norm=weight_norm(), aspect="auto",
                    interpolation="nearest",
                )  # fmt: skip
                bare(axes, colours)
                figure.text(
                    across / width, 1 - (down + tile + 0.03) / height,
                    not_shown(view.left_out[head]), fontsize=5, va="top", color=colours.faint,
                )  # fmt: skip
            down += tile + below
    weight_scale(figure, (left / width, 0.2 / height, 1.6 / width, 0.085 / height), colours)
    sizes = sorted({view.sizes for view in seen if view.sizes != (1, 1)})
    dot = "; ".join(
        f"a dot: the mass of a row in {columns} keys, mean of {rows} rows"
        for rows, columns in sizes
    )
    kept = "drawn from the kept edges" if partial else ""
    figure.text(
        (left + 1.8) / width, 0.08 / height, "; ".join(filter(None, (dot, kept))), fontsize=6.5,
        color=colours.faint,
    )  # fmt: skip
    figure.text(
        (left + 1.8) / width, 0.2 / height, "rows: queries ↓", fontsize=6.5, color=colours.query
    )
    figure.text(
        (left + 2.55) / width, 0.2 / height, "columns: keys →", fontsize=6.5, color=colours.key
    )
    return figure
