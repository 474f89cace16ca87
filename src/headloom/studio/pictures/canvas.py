"""What every picture is made of: a sheet in inches, letters for every script, matrices, a file."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.patches import Rectangle
from torch import Tensor

from headloom.analysis.weights import keeps_all, mean_left_out
from headloom.errors import InputError
from headloom.formats.files import atomic_file
from headloom.formats.tokens import visible
from headloom.formats.trace import TraceLayer
from headloom.mechanism.graph import AttentionGraph
from headloom.studio.pictures.palette import Palette

Array = np.ndarray[Any, Any]

#: Cells above which a single matrix is no picture any more.
_CELLS = 2**24
_FORMATS = ("png", "svg", "pdf")
_DPI = 200
#: The width of a frame, in inches.
_FRAME = 0.01
#: The font that matplotlib brings along.
_FIRST = "DejaVu Sans"


def _whole(inches: float) -> float:
    """So that no cell at the edge of a matrix is mixed with what is beside it: whole pixels."""
    return round(inches * _DPI) / _DPI


class Sheet:
    """A figure on its ground; places are in inches from its upper left corner.

    families: the fonts of its texts, one that is always there and installed ones for the rest.
    texts: whatever will be written.
    """

    def __init__(
        self, width: float, height: float, colours: Palette, texts: Iterable[str] = ()
    ) -> None:
        self.figure = Figure(figsize=(_whole(width), _whole(height)), facecolor=colours.ground)
        self.width, self.height = self.figure.get_size_inches()
        self.colours = colours
        self.families, self._missing = _fonts(texts)

    def written(self, text: str, limit: int = 200) -> str:
        """A text as it can be drawn: a letter without a font becomes its code point.

        Dollar signs are no formulas.
        """
        text = visible(text, limit) if text else ""
        drawn = "".join(f"‹{ord(c):04X}›" if c in self._missing else c for c in text)
        return drawn.replace("◌‹", "‹").replace("$", r"\$")

    def say(
        self, across: float, down: float, text: str, size: float = 7, colour: str = "", **how: Any
    ) -> None:
        """Write a text that can be drawn: see `written`; faint, and hung from above."""
        how = {"va": "top", "color": colour or self.colours.faint, "family": self.families} | how
        self.figure.text(
            across / self.width, 1 - down / self.height, text, fontsize=size, **how
        )  # fmt: skip

    def title(self, text: str, size: float = 10) -> None:
        """Write a title above all."""
        self.say(0.14, 0.14, self.written(text), size, self.colours.ink, fontweight="bold")

    def axes(self, left: float, top: float, wide: float, high: float) -> Axes:
        """Empty axes on whole pixels at the resolution that pictures are saved in."""
        left, top, wide, high = (_whole(inches) for inches in (left, top, wide, high))
        return self.figure.add_axes(
            (left / self.width, 1 - (top + high) / self.height, wide / self.width,
             high / self.height)
        )  # fmt: skip

    def matrix(
        self, left: float, top: float, wide: float, high: float, values: Array,
        ramp: Colormap | None = None, norm: Normalize | None = None, **how: Any,
    ) -> Axes:  # fmt: skip
        """The cells of a matrix, or colours (rows, columns, 3), within a thin frame."""
        axes = self.axes(left, top, wide, high)
        if values.size:
            how = {"interpolation": "nearest"} | how
            axes.imshow(values, cmap=ramp, norm=norm, aspect="auto", **how)
        self.bare(axes)
        return axes

    def bare(self, axes: Axes, frame: bool = True) -> None:
        """No ticks, and a thin frame around them or none.

        The frame lies outside: a line along the edge would hide half of the outermost cells.
        """
        axes.set(xticks=[], yticks=[], facecolor=self.colours.ground)
        axes.spines[:].set_visible(False)
        if frame:
            box, wide, high = axes.get_position(), _FRAME / self.width, _FRAME / self.height
            self.figure.add_artist(
                Rectangle(
                    (box.x0 - wide, box.y0 - high), box.width + 2 * wide, box.height + 2 * high,
                    transform=self.figure.transFigure, facecolor=self.colours.line, linewidth=0,
                    zorder=-1,
                )
            )  # fmt: skip

    def scale(
        self, left: float, bottom: float, wide: float, ramp: Colormap, ticks: Mapping[float, str],
        title: str = "", *, high: float = 0.085, size: float = 6,
    ) -> None:  # fmt: skip
        """The legend of a ramp: a bar, its labels at places from 0 to 1, what it is above it.

        bottom: inches from the lower edge of the sheet.
        """
        axes = self.figure.add_axes(
            (left / self.width, bottom / self.height, wide / self.width, high / self.height)
        )
        along = np.linspace(0, 1, 257)
        values = (along[1:] + along[:-1])[None] / 2
        axes.pcolormesh(along, [0, 1], values, cmap=ramp, vmin=0, vmax=1, rasterized=True)
        self.bare(axes)
        axes.set_xticks([*ticks], [*ticks.values()])
        axes.tick_params(axis="x", length=2, width=0.5, pad=1.5, labelsize=size,
                         color=self.colours.faint, labelcolor=self.colours.faint)  # fmt: skip
        axes.set_title(title, fontsize=size + 0.5, color=self.colours.faint, pad=3, loc="left")

    def weight_scale(self, left: float, bottom: float) -> None:
        """The legend of weights, on the scale of `weight_norm`."""
        labels = {0: "0", 0.01: ".01", 0.1: ".1", 0.25: ".25", 0.5: ".5", 1: "1"}
        ticks = {weight**0.5: label for weight, label in labels.items()}
        self.scale(left, bottom, 1.6, self.colours.weight, ticks, "weight")


def weight_norm(most: float = 1.0) -> PowerNorm:
    """The scale of weights, 0 to 1: square-root, so that small ones are seen."""
    return PowerNorm(0.5, 0.0, most)


@lru_cache(maxsize=512)
def _letters(path: str) -> frozenset[int]:
    """The code points that a font file has; none where it cannot be drawn with."""
    try:
        font = FT2Font(path)
    except (OSError, RuntimeError, ValueError):
        return frozenset()
    return frozenset(font.get_charmap()) if font.scalable else frozenset()


def _fonts(texts: Iterable[str]) -> tuple[list[str], frozenset[str]]:
    """Fonts that have the letters of some texts, and the letters that no installed font has."""
    missing = {ord(c) for text in texts for c in visible(text, 200)}
    missing |= {ord(c) for c in "‹›0123456789ABCDEF…"}
    installed = {
        entry.name: entry.fname
        for entry in font_manager.fontManager.ttflist
        if entry.style == "normal"
        and entry.weight in (400, "normal", "regular", "book")
        and entry.stretch in ("normal", 400, 100)
        and "Last Resort" not in entry.name
    }
    families = []
    # Noto after what is always there: it is made to cover what others lack.
    for family in sorted(
        installed, key=lambda name: (name != _FIRST, not name.startswith("Noto Sans"), name)
    ):
        if missing and (known := missing & _letters(installed[family])):
            families.append(family)
            missing -= known
    return families, frozenset(map(chr, missing))


def weights_of(
    what: TraceLayer | AttentionGraph | Tensor | Array, head: int | None
) -> tuple[Array, float]:
    """The weights of a head as a matrix (queries, keys), and the share of their mass not in it.

    head: None: the mean of all heads. Of a layer that has its queries and keys, the weights are
    exact; else those of the kept edges.

    Raises: InputError: no such head, or a matrix that is none, or too large for a picture.
    """
    graph = what.graph if isinstance(what, TraceLayer) else what
    if isinstance(graph, AttentionGraph):
        heads, queries, keys = graph.shape
        if queries * keys > _CELLS:
            raise InputError(
                f"picture: {queries} queries by {keys} keys are too many cells for one picture. "
                "Choose fewer tokens, or look at all heads: headloom.studio.pictures.heads."
            )
        chosen = [*range(heads)] if head is None else [head]
        kept = np.mean([graph.adjacency(number).toarray() for number in chosen], 0, dtype=float)
        if keeps_all(graph):
            return kept, 0.0
        matrix = what.matrix if isinstance(what, TraceLayer) else None
        if matrix is None:
            return kept, float(mean_left_out(graph)[chosen].mean())
        return np.mean([matrix[number, :, :].numpy() for number in chosen], 0, dtype=float), 0.0
    dense = np.asarray(graph.detach().cpu().float() if isinstance(graph, Tensor) else graph)
    if dense.ndim == 3:
        dense = dense.mean(0) if head is None else dense[head]
    if dense.ndim != 2:
        raise InputError(
            f"picture: weights of shape {dense.shape}; expected (queries, keys) or (heads, "
            "queries, keys)."
        )
    return dense.astype(float), 0.0


def not_shown(share: float) -> str:
    """How much of the mass a picture of kept edges leaves out, in words; "": nothing to speak of.

    >>> not_shown(0.714)
    '71 % not shown'
    """
    percent = 100 * share
    if percent < 0.05:
        return ""
    # Something is shown: 100 of all alone.
    percent = min(percent, 99.9) if share < 1 else percent
    digits = 0 if 9.95 <= percent < 99.5 or share >= 1 else 1
    return f"{percent:.{digits}f} % not shown"


def picture_format(path: Path) -> str:
    """What a picture is written as, by its suffix: "png", "svg" or "pdf".

    Raises: InputError: another suffix.
    """
    kind = path.suffix.lower().lstrip(".")
    if kind not in _FORMATS:
        raise InputError(f"{path}: a picture is written as .png, .svg or .pdf.")
    return kind


def save_picture(figure: Figure, path: Path | str, dpi: float = _DPI) -> None:
    """Write a figure to a file, whole or not at all; its suffix chooses PNG, SVG or PDF.

    In SVG and PDF, text stays text.

    Args:
        figure: any of this package's pictures.
        path: the file to be, .png, .svg or .pdf; replaced if it is there.
        dpi: dots per inch of a PNG.

    Raises: InputError: another suffix; DataError: the file cannot be written.
    """
    path = Path(path)
    kind = picture_format(path)
    # The same picture gives the same bytes: no dates, no random names.
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": "headloom", "pdf.fonttype": 42}
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[kind]
    # Not to the file: where the disk is full, Matplotlib's PDF ends in an error of its own.
    drawn = io.BytesIO()
    with matplotlib.rc_context(settings):
        figure.savefig(
            drawn, format=kind, dpi=dpi, facecolor=figure.get_facecolor(), metadata=metadata
        )
    with atomic_file(path) as temporary:
        temporary.write_bytes(drawn.getvalue())
