"""Ground of every picture: a figure or somebody's axes, letters for every script, cells, a file.

What is fixed in inches and points is so where ``rcParams["font.size"]`` is 10, as Matplotlib has
it; with another size it grows along.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib import font_manager, rcParams, rcParamsDefault
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize, PowerNorm
from matplotlib.figure import Figure, SubFigure
from matplotlib.ft2font import FT2Font
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from headloom.errors import InputError
from headloom.formats.files import atomic_file
from headloom.formats.tokens import visible
from headloom.studio.pictures.palette import Palette

Array = np.ndarray[Any, Any]
#: What a picture is drawn onto: axes, or a figure that takes its size; None: a figure of its own,
#: which pyplot does not know.
Onto = Axes | Figure | None

_FORMATS = ("png", "svg", "pdf")
_DPI = 200
#: The width of a frame, in inches.
_FRAME = 0.01
#: The font that matplotlib brings along.
_FIRST = "DejaVu Sans"


def unit() -> float:
    """Inches for what is an inch where letters have Matplotlib's own size."""
    return float(rcParams["font.size"]) / 10


def room(onto: Onto, width: float | None) -> tuple[float | None, float | None]:
    """Width and height that a picture has, in units; None: as much as it needs.

    width: of a new figure, in millimetres.
    Raises: InputError: the width of a figure that is there already.
    """
    if not isinstance(onto, Axes):
        return (None if width is None else width / 25.4 / unit()), None
    if width is not None:
        raise InputError("plot: width is of a new figure; axes have theirs. Leave one of the two.")
    inches = onto.bbox.size / onto.figure.dpi / unit()
    return float(inches[0]), float(inches[1])


def fitting(
    size: float, room: tuple[float | None, float | None], *needed: tuple[float, float]
) -> float:
    """A size so that a picture fits its room: what else it needs, and how many times the size.

    >>> fitting(1.0, (None, None), (0.5, 4), (1, 2)), fitting(1.0, (2.5, None), (0.5, 4), (1, 2))
    (1.0, 0.5)
    """
    sizes = [
        (there - fixed) / times
        for there, (fixed, times) in zip(room, needed, strict=True)
        if there is not None
    ]
    return max(min(sizes, default=size), 0.02)


def whole(inches: float) -> float:
    """Whole pixels, so that no cell at the edge of a matrix is mixed with what is beside it."""
    return round(inches * _DPI) / _DPI


class Sheet:
    """Where a picture of several parts is drawn; places are in units from its upper left corner.

    onto, width, height: a figure gets this size, in units; axes keep theirs.
    families: the fonts of its texts, one that is always there and installed ones for the rest.
    texts: whatever will be written.
    """

    def __init__(
        self, onto: Onto, width: float, height: float, colours: Palette, texts: Iterable[str] = ()
    ) -> None:
        self.unit, self.colours = unit(), colours
        self.families, self._missing = fonts(texts)
        self.figure: Figure | SubFigure
        self._given = onto if isinstance(onto, Axes) else None
        if isinstance(onto, Axes):
            onto.set_axis_off()
            self.figure, self._whole = onto.figure, onto.transAxes
            self._text, self._artist, self._axes = onto.text, onto.add_artist, onto.inset_axes
            size = onto.bbox.size / onto.figure.dpi
        else:
            figure = new_figure(onto, colours)
            figure.set_size_inches(width * self.unit, whole(height * self.unit))
            self.figure, self._whole, size = figure, figure.transFigure, figure.get_size_inches()
            self._text, self._artist, self._axes = figure.text, figure.add_artist, figure.add_axes
        self.width, self.height = size / self.unit

    def written(self, text: str, limit: int = 200) -> str:
        """A text as it can be drawn: a letter without a font becomes its code point.

        Dollar signs are no formulas.
        """
        return written(text, self._missing, limit)

    def say(
        self, across: float, down: float, text: str, size: float = 7, colour: str = "", **how: Any
    ) -> None:
        """Write a text that can be drawn: see `written`; faint, and hung from above."""
        how = {"va": "top", "color": colour or self.colours.faint, "family": self.families} | how
        self._text(
            across / self.width, 1 - down / self.height, text, fontsize=size * self.unit,
            transform=self._whole, **how,
        )  # fmt: skip

    def title(self, text: str, size: float = 10) -> None:
        """Write a title above all."""
        if self._given is not None:
            title = self._given.set_title(self.written(text), color=self.colours.ink)
            title.set_family(self.families)
        else:
            self.say(0.14, 0.14, self.written(text), size, self.colours.ink, fontweight="bold")

    def axes(self, left: float, top: float, wide: float, high: float) -> Axes:
        """Empty axes on whole pixels at the resolution that pictures are saved in."""
        left, top, wide, high = (whole(x * self.unit) / self.unit for x in (left, top, wide, high))
        return self._axes(
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
            how = {"interpolation": "nearest", "cmap": ramp, "norm": norm} | how
            axes.imshow(values, aspect="auto", **how)
        bare(axes, self.colours)
        return axes

    def thread(self, x: Array, y: Array) -> None:
        """A thin line through places of the sheet."""
        thread = Line2D(
            x / self.width, 1 - y / self.height, color=self.colours.line, transform=self._whole,
            linewidth=0.8 * self.unit, solid_capstyle="butt",
        )  # fmt: skip
        self._artist(thread)

    def scale(
        self, left: float, bottom: float, wide: float, colours: ScalarMappable,
        ticks: Mapping[float, str] | None = None, title: str = "", *, high: float = 0.085,
        size: float = 6,
    ) -> None:  # fmt: skip
        """The legend of colours: a bar, the values in it, what it is above it.

        bottom: inches from the lower edge of the sheet.
        """
        axes = self._axes(
            (left / self.width, bottom / self.height, wide / self.width, high / self.height)
        )
        scale_in(axes, colours, self.colours, ticks, title, size)


def new_figure(onto: Figure | None, colours: Palette) -> Figure:
    """The figure that a picture is drawn onto, empty, on its ground."""
    figure = onto or Figure()
    figure.set_facecolor(colours.ground)
    return figure


def scale_in(
    axes: Axes, image: ScalarMappable, colours: Palette, ticks: Mapping[float, str] | None = None,
    title: str = "weight", size: float = 6,
) -> None:  # fmt: skip
    """Fill axes with the legend of colours; ticks: values and their labels, None: of its own."""
    bar = axes.figure.colorbar(image, cax=axes, orientation="horizontal")
    bar.outline.set_visible(False)  # type: ignore[operator]
    bare(axes, colours)
    if ticks is not None:
        bar.set_ticks([*ticks], labels=[*ticks.values()])
    size *= unit()
    axes.minorticks_off()
    axes.tick_params(axis="x", length=2 * unit(), width=0.5, pad=1.5 * unit(), labelsize=size,
                     color=colours.faint, labelcolor=colours.faint)  # fmt: skip
    axes.set_title(title, fontsize=size + 0.5 * unit(), color=colours.faint, pad=3 * unit(),
                   loc="left")  # fmt: skip


def bare(axes: Axes, colours: Palette, frame: bool = True) -> None:
    """No ticks, and a thin frame around them or none.

    The frame lies outside, half of a line beneath what is drawn: one along the edge would hide half
    of the outermost cells.
    """
    axes.set(xticks=[], yticks=[], facecolor=colours.ground)
    axes.spines[:].set_visible(False)
    if frame:
        box = Rectangle((0, 0), 1, 1, transform=axes.transAxes, fill=False, zorder=-1,
                        edgecolor=colours.line, linewidth=144 * _FRAME * unit(), clip_on=False,
                        snap=False, gid="frame")  # fmt: skip
        axes.add_artist(box)


def plain(axes: Axes, colours: Palette, title: str = "") -> None:
    """Axes of curves: their letters small, as few lines as one needs to read them."""
    size = 6.5 * unit()
    axes.set_facecolor(colours.ground)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(colours.line)
    axes.tick_params(length=2, width=0.5, labelsize=size, color=colours.faint,
                     labelcolor=colours.faint)  # fmt: skip
    axes.set_title(title, fontsize=size + 0.5 * unit(), color=colours.faint, loc="left", pad=5)
    axes.grid(axis="y", color=colours.line, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.margins(x=0.02)


def weight_norm(most: float = 1.0, least: float = 0.0) -> PowerNorm:
    """The scale of weights, 0 to 1: square-root, so that small ones are seen."""
    return PowerNorm(0.5, least, most)


#: The values that the legend of weights names.
WEIGHTS = {0: "0", 0.01: ".01", 0.1: ".1", 0.25: ".25", 0.5: ".5", 1: "1"}


def weight_colours(options: Mapping[str, Any], colours: Palette) -> ScalarMappable:
    """Colours of weights, as options of `Axes.imshow` want them: cmap, norm, vmin, vmax.

    Our ramp where no cmap is given and ``rcParams["image.cmap"]`` is as Matplotlib has it; square
    roots where no norm is given.
    """
    own = rcParams["image.cmap"] != rcParamsDefault["image.cmap"]
    ramp = options.get("cmap") or (rcParams["image.cmap"] if own else colours.weight)
    limits = {"most": options.get("vmax"), "least": options.get("vmin")}
    norm = weight_norm(**{name: value for name, value in limits.items() if value is not None})
    return ScalarMappable(options.get("norm") or norm, ramp)


def of_cells(options: Mapping[str, Any], colours: Palette) -> dict[str, Any]:
    """All options of `Axes.imshow` for weights; see `weight_colours`."""
    weights = weight_colours(options, colours)
    left = {name: value for name, value in options.items() if name not in ("vmin", "vmax")}
    how = {"interpolation": "nearest", "norm": weights.norm, "cmap": weights.cmap}
    return how | {name: value for name, value in left.items() if value is not None}


def ticks_of(colours: ScalarMappable) -> Mapping[float, str] | None:
    """Values that the legend names; None: those that Matplotlib chooses for a scale of its own."""
    norm = colours.norm
    whole = isinstance(norm, PowerNorm) and (norm.gamma, norm.vmin, norm.vmax) == (0.5, 0, 1)
    return WEIGHTS if whole else None


def written(text: str, missing: frozenset[str] = frozenset(), limit: int = 200) -> str:
    """A text as it can be drawn; missing: the letters without a font, drawn as code points."""
    text = visible(text, limit) if text else ""
    drawn = "".join(f"‹{ord(c):04X}›" if c in missing else c for c in text)
    return drawn.replace("◌‹", "‹").replace("$", r"\$")


@lru_cache(maxsize=512)
def _letters(path: str) -> frozenset[int]:
    """The code points that a font file has; none where it cannot be drawn with."""
    try:
        font = FT2Font(path)
    except (OSError, RuntimeError, ValueError):
        return frozenset()
    return frozenset(font.get_charmap()) if font.scalable else frozenset()


def fonts(texts: Iterable[str]) -> tuple[list[str], frozenset[str]]:
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
    chosen = font_manager.FontProperties(family=rcParams["font.family"]).get_name()
    families = []
    # Noto after what is always there: it is made to cover what others lack.
    for family in sorted(
        installed,
        key=lambda name: (name != chosen, name != _FIRST, not name.startswith("Noto Sans"), name),
    ):
        if missing and (known := missing & _letters(installed[family])):
            families.append(family)
            missing -= known
    return families, frozenset(map(chr, missing))


def picture_format(path: Path) -> str:
    """What a picture is written as, by its suffix: "png", "svg" or "pdf".

    Raises: InputError: another suffix.
    """
    kind = path.suffix.lower().lstrip(".")
    if kind not in _FORMATS:
        raise InputError(f"{path}: a picture is written as .png, .svg or .pdf.")
    return kind


def figure_of(drawn: Figure | Axes | Array) -> Figure:
    """The figure of what a picture returned: axes, or an array of them."""
    while not isinstance(drawn, Figure):
        drawn = drawn.figure if isinstance(drawn, Axes | SubFigure) else drawn.flat[0]
    return drawn


def save_picture(drawn: Figure | Axes | Array, path: Path | str, dpi: float = _DPI) -> None:
    """Write a figure to a file, whole or not at all; its suffix chooses PNG, SVG or PDF.

    In SVG and PDF, text stays text.

    Args:
        drawn: a figure; or its axes, as pictures return them.
        path: the file to be, .png, .svg or .pdf; replaced if it is there.
        dpi: dots per inch of a PNG.

    Raises: InputError: another suffix; DataError: the file cannot be written.
    """
    path, figure = Path(path), figure_of(drawn)
    kind = picture_format(path)
    # The same picture gives the same bytes: no dates, no random names.
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": "headloom", "pdf.fonttype": 42}
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[kind]
    # Not to the file: where the disk is full, Matplotlib's PDF ends in an error of its own.
    drawing = io.BytesIO()
    with matplotlib.rc_context(settings):
        figure.savefig(
            drawing, format=kind, dpi=dpi, facecolor=figure.get_facecolor(), metadata=metadata
        )
    with atomic_file(path) as temporary:
        temporary.write_bytes(drawing.getvalue())
