"""`heads`: every head of a trace at a glance."""

from __future__ import annotations

from matplotlib.figure import Figure

from headloom.analysis.overview import overview
from headloom.errors import InputError
from headloom.formats.trace import TraceData
from headloom.studio.pictures.canvas import Sheet, not_shown, weight_norm
from headloom.studio.pictures.palette import Theme, palette

#: Rows and columns of a tile at most: of longer matrices a dot is the mean of a block of weights.
_DOTS = 64
#: Inches: left of the heads, above and below them, above each kind, and right of them.
_LEFT, _TOP, _FOOT, _HEADING, _RIGHT = 0.72, 0.36, 0.52, 0.62, 0.12
#: Where what stands beside the scale begins; between two lines; and letters in an inch, at least.
_BESIDE, _LINE, _LETTERS = 1.8, 0.12, 21
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
    seen = [(number, layer, overview(layer, _DOTS)) for number, layer in enumerate(trace.layers)]
    groups = {kind: [each for each in seen if each[1].kind == kind] for kind in _KINDS}
    groups = {kind: layers for kind, layers in groups.items() if layers}
    columns = max(layer.heads for layer in trace.layers)
    partial = any(not_shown(share) for _, _, view in seen for share in view.left_out)
    if title is None:
        lengths = " and ".join(
            _counted(len(tokens), "token" if name == "tokens" else f"{name} token")
            for name, tokens in trace.sequences.items()
        )
        title = f"{_counted(sum(layer.heads for layer in trace.layers), 'head')} · {lengths}"
    # Inches that are whole pixels, and whole dots, at 200 a inch.
    tile, gap = (0.96, 0.1) if columns <= 8 else (0.64, 0.08)
    below = gap + 0.1 * partial
    room = max(columns * (tile + gap), 3.4)
    dots = [
        f"a dot: the mass of a row in {across} keys, mean of {down} rows"
        for down, across in sorted({view.sizes for _, _, view in seen} - {(1, 1)})
    ] + ["drawn from the kept edges"] * partial
    caption = "; ".join(dots)
    #: Where there is no room beside the scale, lines stand below it.
    lines = [caption] if len(caption) <= (room - _BESIDE) * _LETTERS else dots
    under = 0.0 if lines == [caption] else len(lines) * _LINE
    height = _TOP + len(seen) * (tile + below) + len(groups) * _HEADING + _FOOT + under
    sheet = Sheet(_LEFT + room + _RIGHT, height, palette(theme), [title, *trace.sequences])
    colours = sheet.colours
    sheet.title(title)
    top = _TOP
    for kind, layers in groups.items():
        # Each pair of sequences once, in the order of the layers.
        pairs = dict.fromkeys((layer.queries_from, layer.keys_from) for _, layer, _ in layers)
        looks = "; ".join(_KINDS[kind][pair[0].endswith("s")].format(*pair) for pair in pairs)
        name = sheet.written(f"{kind.capitalize()}: {looks}")
        sheet.say(_LEFT, top + 0.16, name, 7.5, colours.ink)
        for head in range(max(layer.heads for _, layer, _ in layers)):
            across = _LEFT + head * (tile + gap) + tile / 2
            name = f"{head}" if head else "head 0"
            sheet.say(across, top + _HEADING - 0.06, name, 6.5, ha="center", va="baseline")
        top += _HEADING
        for number, layer, view in layers:
            label = f"layer {trace.label(number)}".replace(" (", "\n(")
            sheet.say(_LEFT - 0.1, top + tile / 2, label, 6.5, ha="right", va="center")
            for head in range(layer.heads):
                left, masses = _LEFT + head * (tile + gap), view.masses[head]
                sheet.matrix(left, top, tile, tile, masses, colours.weight, weight_norm())
                sheet.say(left, top + tile + 0.03, not_shown(view.left_out[head]), 5)
            top += tile + below
    sheet.weight_scale(_LEFT, 0.2 + under)
    beside, bottom = _LEFT + _BESIDE, sheet.height - 0.2 - under
    sheet.say(beside, bottom, "rows: queries ↓", 6.5, colours.query, va="baseline")
    sheet.say(beside + 0.75, bottom, "columns: keys →", 6.5, colours.key, va="baseline")
    for number, line in enumerate(reversed(lines)):
        left = _LEFT if under else beside
        sheet.say(left, sheet.height - 0.08 - number * _LINE, line, 6.5, va="baseline")
    return sheet.figure


def _counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
