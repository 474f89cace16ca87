"""`steps` and `three_kinds`: attention worked through, every matrix with its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from weft.mechanism.multihead import LayerKind as Kind
from weft.mechanism.worked import Worked
from weft.mechanism.worked_back import Learned
from weft.pictures.canvas import Array, axes_of_cells, bare, new_figure, weight_norm
from weft.pictures.fonts import Lettering, lettering
from weft.pictures.palette import Palette, Theme, palette

__all__ = ["steps", "three_kinds"]

#: Columns of a matrix up to which its numbers are written into it.
_WRITTEN = 8
_LEFT, _TOP, _GAP = 2.1, 0.62, 0.2
_CELL, _HIGH = 0.37, 0.235
#: Inches that a column has at least whose name is written, and that a letter of it takes.
_NARROWEST, _LETTER = 0.14, 0.055
#: Letters of a token.
_LONGEST = 10
#: Inches that the curve of the loss is high.
_CURVE = 0.8
#: Inches of a matrix whose numbers are not written.
_WIDEST, _HIGHEST = 1.5, 1.6

#: Who gives what, in the words of a picture.
_SOURCES = {
    "encoder": ("Q from the sentence", "K, V from the same sentence", "mask: none"),
    "decoder": ("Q from the text so far", "K, V from the same text", "mask: no word after it"),
    "cross": ("Q from the decoder's text", "K, V from the encoder's text", "mask: none"),
}


@dataclass(frozen=True, eq=False)
class _Panel:
    """A matrix. before: the sign at its left. of_weights: on the scale of weights."""

    name: str
    values: Array
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    before: str = ""
    of_weights: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, columns = self.values.shape
        return int(rows), int(columns)

    @property
    def written(self) -> bool:
        """Whether its numbers are written."""
        rows, columns = self.shape
        return columns <= _WRITTEN and rows <= 2 * _WRITTEN

    @property
    def wide(self) -> float:
        """Inches of its cells."""
        columns = self.shape[1]
        # Below names a column keeps the width that a letter needs.
        most = columns * 0.16 if self.columns else min(columns * 0.2, _WIDEST)
        return columns * _CELL if self.written else most

    @property
    def high(self) -> float:
        """Likewise."""
        rows = self.shape[0]
        # Beside tokens a row keeps the height that a name needs.
        least = rows * 0.15 if self.rows else min(rows * 0.15, _HIGHEST)
        return rows * _HIGH if self.written else least

    @property
    def turned(self) -> bool:
        """Whether a column is narrower than its name, so that names are turned."""
        longest = max(map(len, self.columns), default=0)
        each = self.wide / self.shape[1]
        return each >= _NARROWEST and min(longest, _LONGEST) * _LETTER > each

    @property
    def above(self) -> float:
        """Inches of its own name, and those of its columns."""
        if not self.turned:
            return 0.34 if self.columns else 0.2
        return 0.26 + _LETTER * min(max(map(len, self.columns)), _LONGEST)

    def left(self, letters: Lettering) -> float:
        """Inches that the sign and the names of its rows take."""
        names = max((len(letters.token(name, _LONGEST)) for name in self.rows), default=0)
        return (0.3 if self.before else 0.0) + (0.062 * names + 0.08 if names else 0.0)


@dataclass(frozen=True, eq=False)
class _Band:
    """A step: its name and formula, and its matrices."""

    name: str
    formula: str
    panels: Sequence[_Panel]
    note: str = ""

    @property
    def high(self) -> float:
        """Inches that it takes."""
        return self.above + max((panel.high for panel in self.panels), default=0.18) + _GAP

    @property
    def above(self) -> float:
        """Inches of the names above its matrices."""
        return max(panel.above for panel in self.panels)


def steps(
    worked: Worked,
    queries: Sequence[str],
    keys: Sequence[str],
    *,
    head: int = 0,
    kind: Kind = "encoder",
    embeddings: tuple[Tensor, Tensor] | None = None,
    title: str = "The six steps of attention",
    origin: str = "",
    learned: Learned | None = None,
    digits: int = 2,
    theme: Theme = "light",
) -> Figure:
    """The six steps of one head from the inputs to the output, a band each, as matrices.

    Below them, where the matrices learned, the way back to them, and what came of it.

    Numbers stand in their cells where there are few; their colour is their sign and size, on a
    scale of each matrix's own; that of weights goes from 0 to 1.

    Args:
        worked: from `weft.mechanism.worked.work`.
        queries, keys: tokens.
        head: whose steps.
        kind: who gives queries, keys and values.
        embeddings: E and P, whose sum is X, where they are known.
        title: above it.
        origin: where the matrices come from.
        learned: what gradient descent made of them.
        digits: decimals.
        theme: "light" or "dark".
    """
    colours = palette(theme)
    letters = lettering([*queries, *keys, title, origin, "Kᵀ√Σ−∞×→"])
    bands = _bands(worked, queries, keys, head, kind, embeddings)
    if learned is not None:
        bands += _learning(worked, learned, queries, keys, head, kind)
    wide = max(_wide(band.panels, letters) for band in bands)
    curve = 0.0 if learned is None else _CURVE + 0.5
    sizes = _LEFT + wide + 0.2, _TOP + sum(band.high for band in bands) + curve + 0.1
    figure = new_figure(*sizes, colours)
    families = list(letters.families)
    _say(figure, 0.16, 0.3, letters.text(title), 11, colours.ink, families, bold=True)
    about = f"{'; '.join(_SOURCES[kind])}. Head {head} of {len(worked.Z)}"
    if origin:
        about += f". {origin[:1].upper()}{origin[1:]}"
    _say(figure, 0.16, 0.49, about, 7, colours.faint, families)
    down = _TOP
    for band in bands:
        above = band.above
        _say(figure, 0.16, down + above + 0.08, band.name, 9, colours.ink, families, bold=True)
        _say(figure, 0.16, down + above + 0.27, band.formula, 8, colours.query, families)
        if band.note:
            _say(figure, 0.16, down + above + 0.44, band.note, 6.5, colours.faint, families)
        _draw(figure, band.panels, _LEFT, down + above, digits, colours, letters)
        down += band.high
    if learned is not None:
        _draw_losses(figure, learned, down, colours, families)
    return figure


def three_kinds(
    walks: Mapping[Kind, tuple[Worked, Sequence[str], Sequence[str]]],
    *,
    head: int = 0,
    digits: int = 2,
    theme: Theme = "light",
) -> Figure:
    """Encoder, decoder and encoder-decoder attention beside each other.

    Args:
        walks: by the kind "encoder", "decoder" or "cross": worked, query tokens, key tokens.
        head: whose scores and weights.
        digits: decimals.
        theme: "light" or "dark".
    """
    colours = palette(theme)
    letters = lettering([*(token for _, *names in walks.values() for each in names
                           for token in each), "−∞√Kᵀ"])  # fmt: skip
    families, columns, across = list(letters.families), [], 0.3
    for kind, (worked, queries, keys) in walks.items():
        panels = [
            _Panel("masked scores", worked.masked[head].numpy(), queries, keys),
            _Panel("weights", worked.weights[head].numpy(), queries, keys, of_weights=True),
        ]
        columns.append((kind, across, panels))
        across += max(2.0, _wide(panels[:1], letters)) + 0.35
    high = max(panel.high for _, _, panels in columns for panel in panels)
    figure = new_figure(across, 2.05 + 2 * high + 0.55, colours)
    _say(figure, 0.3, 0.3, "Three kinds of attention: the same six steps", 11, colours.ink,
         families, bold=True)  # fmt: skip
    for kind, left, panels in columns:
        _say(figure, left, 0.66, kind, 9.5, colours.ink, families, bold=True)
        for line, text in enumerate(_SOURCES[kind]):
            colour = (colours.query, colours.key, colours.faint)[line]
            _say(figure, left, 0.86 + 0.17 * line, text, 7.5, colour, families)
        for line, panel in enumerate(panels):
            down = 1.62 + line * (high + 0.62)
            _draw(figure, [panel], left, down, digits, colours, letters)
    return figure


def _bands(
    worked: Worked,
    queries: Sequence[str],
    keys: Sequence[str],
    head: int,
    kind: str,
    embeddings: tuple[Tensor, Tensor] | None,
) -> list[_Band]:
    p, depth = worked.projections, worked.projections.depth
    X, Y = worked.X.numpy(), worked.Y.numpy()
    Q, K, V = (each[head].numpy() for each in (worked.Q, worked.K, worked.V))
    source = "Y" if kind == "cross" else "X"
    if embeddings is None:
        before = [_Panel("X", X, queries)]
    else:
        E, P = (each.numpy() for each in embeddings)
        before = [_Panel("E", E, queries), _Panel("P", P, before="+"), _Panel("X", X, before="=")]
    if kind == "cross":
        before.append(_Panel("Y", Y, keys, before=" "))
    if worked.Q_turned is not None and worked.K_turned is not None:
        turned = [_Panel("R Q", worked.Q_turned[head].numpy(), queries),
                  _Panel("(R K)ᵀ", worked.K_turned[head].numpy().T, (), keys, "×")]  # fmt: skip
    else:
        turned = [_Panel("Q", Q, queries), _Panel("Kᵀ", K.T, (), keys, "×")]
    added = [] if worked.by_position is None else [
        _Panel("Q Aᵀ", worked.by_position[head].numpy(), (), keys, "+")]  # fmt: skip
    bias = [] if worked.bias is None else [_Panel("B", worked.bias[head].numpy(), (), keys, "+")]
    hidden = not bool(worked.allowed.all())
    ready = "masked" if hidden else "s"
    masked, weights = worked.masked[head].numpy(), worked.weights[head].numpy()
    heads = len(worked.Z)
    joined = {1: "Z", 2: "[Z₀ Z₁]"}.get(heads, f"[Z₀ … Z{_low(heads - 1)}]")
    moved = [] if worked.values_by_position is None else [
        _Panel("Σ A a", worked.values_by_position[head].numpy(), before="+")]  # fmt: skip
    return [
        _Band("Words become vectors", "X = E + P", before) if embeddings
        else _Band("What enters", "X" if kind != "cross" else "X, Y", before),
        *_projections(worked, queries, keys, head, source),
        _Band("2  Score", "S = Q Kᵀ" + (" + Q Aᵀ" if added else ""), [
            *turned, *added,
            _Panel("S", worked.scores[head].numpy(), queries, keys, "=")]),
        _Band("3  Scale,  4  Mask", f"s = S / √{depth}" + (" + B" if bias else ""), [
            _Panel(f"S / √{depth}", worked.scaled[head].numpy(), queries, keys), *bias,
            *([_Panel(ready, masked, (), keys, "→")] if hidden or bias else [])],
            "" if hidden else "nothing is hidden"),
        _Band("5  Softmax", "A = eˢ / sum of the row", [
            _Panel(ready, masked, queries, keys),
            _Panel("A", weights, queries, keys, "→", of_weights=True)], "each row adds up to 1"),
        _Band("6  Weigh", "Z = A V" + (" + Σ A a" if moved else ""), [
            _Panel("A", weights, queries, keys, of_weights=True),
            _Panel("V", V, keys, before="×"), *moved,
            _Panel("Z", worked.Z[head].numpy(), queries, before="=")]),
        _Band("The heads are joined", f"output = {joined} W_O" + (" + b" if p.b_O is not None
                                                                  else ""), [
            _Panel(joined, worked.joined.numpy(), queries),
            _Panel("W_O", p.W_O.numpy(), before="×"), *_bias("b", p.b_O),
            _Panel("output", worked.output.numpy(), queries, before="=")]),
    ]  # fmt: skip


def _projections(
    worked: Worked, queries: Sequence[str], keys: Sequence[str], head: int, source: str
) -> list[_Band]:
    """Q, K and V, a band each."""
    p, bands = worked.projections, []
    for name, inputs, tokens, matrices, made, bias in (
        ("Q", worked.X, queries, p.W_Q, worked.Q, p.b_Q),
        ("K", worked.Y, keys, p.W_K, worked.K, p.b_K),
        ("V", worked.Y, keys, p.W_V, worked.V, p.b_V),
    ):
        origin = "X" if name == "Q" else source
        plus = "" if bias is None else f" + b_{name}"
        panels = [
            _Panel(origin, inputs.numpy(), tokens),
            _Panel(f"W_{name}", matrices[head].numpy(), before="×"),
            *_bias(f"b_{name}", None if bias is None else bias[head]),
            _Panel(name, made[head].numpy(), before="="),
        ]
        step = "1  Project" if name == "Q" else ""
        bands.append(_Band(step, f"{name} = {origin} W_{name}{plus}", panels))
    return bands


def _bias(name: str, bias: Tensor | None) -> list[_Panel]:
    return [] if bias is None else [_Panel(name, bias[None].numpy(), before="+")]


def _learning(
    worked: Worked,
    learned: Learned,
    queries: Sequence[str],
    keys: Sequence[str],
    head: int,
    kind: Kind,
) -> list[_Band]:
    """From the loss back to the matrices, a step down, and what came of them all."""
    back, rate, losses = learned.back, f"{learned.rate:g}", learned.losses
    source = "Y" if kind == "cross" else "X"
    dA, dV, ds, dS, dQ, dK = (
        each[head].numpy()
        for each in (back.weights, back.V, back.scaled, back.scores, back.Q, back.K)
    )
    down: list[_Band] = []
    for name, inputs in (("Q", "X"), ("K", source), ("V", source)):
        before, gradient, after = (
            getattr(projections, f"W_{name}")[head].numpy()
            for projections in (worked.projections, back.projections, learned.next.projections)
        )
        panels = [
            _Panel(f"W_{name}", before),
            _Panel(f"{rate} dW_{name}", learned.rate * gradient, before="−"),
            _Panel("new", after, before="="),
        ]
        step = "" if down else "One step down"
        down.append(_Band(step, f"dW_{name} = {inputs}ᵀ d{name}", panels, f"W := W − {rate} dW"))
    many = f"After {learned.steps:,} step{'s' * (learned.steps != 1)}"
    return [
        _Band("Learning: how wrong?", "dO = (output − T) / n", [
            _Panel("output", worked.output.numpy(), queries),
            _Panel("T, wanted", learned.wanted.numpy(), before="−"),
            _Panel("dO", back.output.numpy(), queries, before="→")], f"loss {losses[0]:.4f}"),
        _Band("Back: weighted sum", "dA = dZ Vᵀ,  dV = Aᵀ dZ", [
            _Panel("dZ", back.Z[head].numpy(), queries), _Panel("dA", dA, queries, keys, "→"),
            _Panel("dV", dV, keys, before=" ")]),
        _Band("Back: softmax", "ds = A (dA − Σ A dA)", [
            _Panel("ds", ds, queries, keys)], "each row adds up to 0"),
        _Band("Back: scale, score", "dQ = dS K,  dK = dSᵀ Q", [
            _Panel("dS", dS, queries, keys), _Panel("dQ", dQ, queries, before=" "),
            _Panel("dK", dK, keys, before=" ")]),
        *down,
        _Band(many, "A before → A after", [
            _Panel("A before", worked.weights[head].numpy(), queries, keys, of_weights=True),
            _Panel("A after", learned.last.weights[head].numpy(), queries, keys, "→", True)],
            f"loss {losses[0]:.4f} → {losses[-1]:.4f}"),
    ]  # fmt: skip


def _draw_losses(
    figure: Figure, learned: Learned, down: float, colours: Palette, families: list[str]
) -> None:
    """The loss before each step and after the last."""
    _say(figure, 0.16, down + 0.25, "The loss, step by step", 9, colours.ink, families, bold=True)
    axes = axes_of_cells(figure, _LEFT, down + 0.15, 2.6, _CURVE)
    axes.plot(range(len(learned.losses)), learned.losses, color=colours.query, linewidth=1.2)
    axes.set_xlim(0, max(learned.steps, 1))
    axes.set_ylim(0, max(learned.losses) * 1.05 or 1)
    axes.set_xlabel("step", fontsize=6.5, color=colours.faint, labelpad=1)
    axes.tick_params(labelsize=6, colors=colours.faint, length=2)
    axes.set_facecolor(colours.ground)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(colours.line)


def _low(number: int) -> str:
    return str(number).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))


def _wide(panels: Sequence[_Panel], letters: Lettering) -> float:
    return sum(panel.left(letters) + panel.wide + 0.12 for panel in panels)


def _say(
    figure: Figure, across: float, down: float, text: str, size: float, colour: str,
    families: list[str], *, bold: bool = False, right: bool = False, middle: bool = False,
    turned: bool = False,
) -> None:  # fmt: skip
    """A text at a place, in inches from the left and the top; turned, it goes up from there."""
    width, height = figure.get_size_inches()
    figure.text(
        across / width, 1 - down / height, text, fontsize=size, color=colour, family=families,
        fontweight="bold" if bold else "normal", va="bottom" if turned else "center",
        rotation=90 if turned else 0,
        ha="right" if right else "center" if middle else "left", parse_math=False,
    )  # fmt: skip


def _draw(
    figure: Figure, panels: Sequence[_Panel], across: float, down: float, digits: int,
    colours: Palette, letters: Lettering,
) -> None:  # fmt: skip
    """Matrices in a row, their middles at one height."""
    families = list(letters.families)
    high = max(panel.high for panel in panels)
    for panel in panels:
        top = down + (high - panel.high) / 2
        if panel.before:
            _say(figure, across + 0.09, down + high / 2, panel.before, 11, colours.faint, families,
                 middle=True)  # fmt: skip
        across += panel.left(letters)
        axes = axes_of_cells(figure, across, top, panel.wide, panel.high)
        _fill(axes, panel, digits, colours)
        bare(axes, colours)
        step = panel.high / len(panel.values)
        size = min(7.0, step * 72 * 0.62)
        for place, name in enumerate(panel.rows):
            _say(figure, across - 0.05, top + (place + 0.5) * step, letters.token(name, _LONGEST),
                 size, colours.ink, families, right=True)  # fmt: skip
        each = panel.wide / panel.values.shape[1]
        names = panel.columns if each >= _NARROWEST else ()
        most = _LONGEST if panel.turned else max(int(each / _LETTER), 1)
        for place, name in enumerate(names):
            _say(figure, across + (place + 0.5) * each, top - (0.03 if panel.turned else 0.08),
                 letters.token(name, most), min(6.0, each * 30), colours.ink, families,
                 middle=True, turned=panel.turned)  # fmt: skip
        shape = f" {panel.values.shape[0]}×{panel.values.shape[1]}" if not panel.written else ""
        name_at = panel.above - 0.12 if names else 0.09
        _say(figure, across, top - name_at, panel.name + shape, 7, colours.faint, families)
        across += panel.wide + 0.12


def _fill(axes: Axes, panel: _Panel, digits: int, colours: Palette) -> None:
    """The cells of a matrix, with their numbers where there is room."""
    finite = np.isfinite(panel.values)
    largest = float(np.abs(panel.values[finite]).max(initial=0)) or 1.0
    ramp = colours.weight if panel.of_weights else colours.difference
    # Half as strong as the ramp goes, so that numbers are read on every cell.
    scale: Normalize | PowerNorm = (
        weight_norm() if panel.of_weights else Normalize(-1.6 * largest, 1.6 * largest)
    )
    shown = np.ma.masked_array(panel.values, ~finite)
    axes.imshow(shown, cmap=ramp, norm=scale, aspect="auto", interpolation="nearest")
    for i, j in zip(*np.nonzero(~finite), strict=True):
        axes.add_patch(
            Rectangle((j - 0.5, i - 0.5), 1, 1, facecolor=colours.ground, edgecolor=colours.line,
                      hatch="////", linewidth=0)
        )  # fmt: skip
    if not panel.written:
        return
    for (i, j), value in np.ndenumerate(panel.values):
        if not np.isfinite(value):
            text, colour = "−∞", colours.faint
        else:
            text = f"{value:.{digits}f}"
            text = text.removeprefix("-") if not text.strip("-0.") else text.replace("-", "−")
            red, green, blue, _ = ramp(scale(value))
            colour = _on(red, green, blue)
        axes.text(j, i, text, ha="center", va="center", fontsize=6.2, color=colour)


def _on(*ground: float) -> str:
    """Black or white, whichever is read better on a colour: by the contrast of WCAG 2.

    >>> _on(1.0, 1.0, 1.0), _on(0.7, 0.3, 0.1)
    ('#101317', '#ffffff')
    """
    light = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in ground]
    luminance = 0.2126 * light[0] + 0.7152 * light[1] + 0.0722 * light[2]
    return "#101317" if luminance > 0.185 else "#ffffff"
