"""Elements of every picture: page, fonts for every script, cells, legend, and file.

A picture is a function of a `Page`, which `picture` creates from axes, from a figure or without
either. Inches and points hold for Matplotlib's default ``rcParams["font.size"]`` of 10, and scale
with it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any, Concatenate, Literal, TypeVar

import matplotlib
import numpy as np
from matplotlib import font_manager, rcParams, rcParamsDefault
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from headloom.errors import InputError
from headloom.formats.files import atomic_file
from headloom.formats.tokens import visible
from headloom.studio.pictures.palette import Theme, palette

Array = NDArray[Any]
T = TypeVar("T")

_FORMATS = ("png", "svg", "pdf")
_DPI = 200
#: Width of a frame, in inches.
_FRAME = 0.01
#: Height of a legend, in units.
_BAR = 0.085
#: The font that is included in Matplotlib.
_FIRST = "DejaVu Sans"
#: Labelled values in the legend of weights.
_WEIGHTS = {0: "0", 0.01: ".01", 0.1: ".1", 0.25: ".25", 0.5: ".5", 1: "1"}


def picture(draw: Callable[Concatenate[Page, ...], T]) -> Callable[..., T]:
    """Turn a function of a page into a function of `onto`, `width` and `theme`: see `Page`."""

    @wraps(draw)
    def drawn(*args: object, **options: Any) -> T:
        page = Page(*(options.pop(name, None) for name in ("onto", "width", "theme")))
        return draw(page, *args, **options)

    return drawn


def whole(inches: float) -> float:
    """Round to whole pixels, so that cells at the edge of a matrix stay sharp."""
    return round(inches * _DPI) / _DPI


class Page:
    """Drawing area of a picture; positions are in units from its upper left corner.

    A unit is an inch at Matplotlib's default font size.

    Args:
        onto: axes; or a figure, which is resized to the picture; None: a new figure outside of
            pyplot.
        width: of a figure, in millimetres; None: as needed.
        theme: "light" or "dark"; None: by the background colour of ``rcParams``.

    Raises: InputError: onto is neither, or a width is given for axes.
    """

    def __init__(self, onto: object, width: float | None, theme: Theme | None) -> None:
        if onto is not None and not isinstance(onto, Axes | Figure):
            kind = type(onto).__name__
            raise InputError(f"plot: ax is a {kind}; expected axes, as axes[0], or a figure.")
        self.unit, self.colours = float(rcParams["font.size"]) / 10, palette(theme)
        self.given = onto if isinstance(onto, Axes) else None
        #: Width and height where known.
        self.room: tuple[float | None, float | None] = None, None
        if self.given is None:
            self.figure = onto if isinstance(onto, Figure) else Figure()
            self.figure.set_facecolor(self.colours.ground)
            self.room = None if width is None else width / 25.4 / self.unit, None
        elif width is not None:
            raise InputError("plot: width is for a new figure; give either width or axes.")
        else:
            self.figure = figure_of(self.given)
            self.room = self.inches(self.given) / self.unit
        self.letters(())

    @staticmethod
    def inches(axes: Axes) -> Any:
        """Return width and height of axes."""
        return np.asarray(axes.bbox.size) / figure_of(axes).dpi

    def fits(self, size: float, *needed: tuple[float, float] | None) -> float:
        """Return the largest size with which the picture fits.

        needed: across and down, the fixed part and the multiple of the size; None: unlimited.
        """
        sizes = [
            (room - need[0]) / need[1]
            for room, need in zip(self.room, needed, strict=False)
            if room is not None and need is not None
        ]
        return max(min(sizes, default=size), 0.02)

    def letters(self, texts: Iterable[str]) -> None:
        """Choose fonts for the texts of the picture."""
        self.families, self._missing = _fonts(texts)

    def lay(self, width: float, height: float) -> None:
        """Set the size of a figure, in units; axes keep their size."""
        ground: Any = self.given or self.figure
        if self.given is None:
            wide, high = (whole(size * self.unit) for size in (width, height))
            self.figure.set_size_inches(wide if self.room[0] is None else width * self.unit, high)
            self._whole, self._add = ground.transFigure, ground.add_axes
            size = self.figure.get_size_inches()
        else:
            self.given.set_axis_off()
            self._whole, self._add = ground.transAxes, ground.inset_axes
            size = self.inches(self.given)
        self._text, self._artist = ground.text, ground.add_artist
        self.width, self.height = (float(inches) / self.unit for inches in size)

    def written(self, text: str, limit: int = 200) -> str:
        """Return a text for drawing: a letter without a font becomes its code point.

        Dollar signs are escaped.
        """
        text = visible(text, limit) if text else ""
        drawn = "".join(f"‹{ord(c):04X}›" if c in self._missing else c for c in text)
        return drawn.replace("◌‹", "‹").replace("$", r"\$")

    def say(
        self, across: float, down: float, text: str, size: float = 7, colour: str = "", **how: Any
    ) -> None:
        """Write a text prepared by `written`; by default faint and aligned at the top."""
        how = {"va": "top", "color": colour or self.colours.faint, "family": self.families} | how
        self._text(across / self.width, 1 - down / self.height, text, transform=self._whole,
                   fontsize=size * self.unit, **how)  # fmt: skip

    def title(self, text: str, about: str = "") -> None:
        """Write a title at the top, and a line about it below."""
        text, ink = self.written(text), self.colours.ink
        if self.given is None:
            size = min(10.0, max(5, (self.width - 0.28) / (0.0096 * max(len(text), 1))))
            self.say(0.14, 0.14, text, size, ink, fontweight="bold")
        else:
            self.given.set_title(text, color=ink, family=self.families)
        if about:
            size = min(7.0, max(4, (self.width - 0.28) / (0.0083 * len(about))))
            self.say(0.14, 0.38, self.written(about), size)

    def axes(self, left: float, top: float, wide: float, high: float) -> Axes:
        """Add empty axes on whole pixels at the resolution of saved pictures."""
        left, top, wide, high = (whole(x * self.unit) / self.unit for x in (left, top, wide, high))
        axes: Axes = self._add((left / self.width, 1 - (top + high) / self.height,
                                wide / self.width, high / self.height))  # fmt: skip
        return axes

    def matrix(
        self, left: float, top: float, wide: float, high: float, values: Array, **how: Any
    ) -> Axes:
        """Draw the cells of a matrix, or colours (rows, columns, 3), in a thin frame."""
        axes = self.axes(left, top, wide, high)
        if values.size:
            axes.imshow(values, **({"aspect": "auto", "interpolation": "nearest"} | how))
        self.bare(axes)
        return axes

    def bare(self, axes: Axes, frame: bool = True) -> None:
        """Remove the ticks, and draw a thin frame around axes or none.

        The frame is outside of the cells: a line along the edge would hide half of the outermost
        ones.
        """
        axes.set(xticks=[], yticks=[], facecolor=self.colours.ground)
        axes.spines[:].set_visible(False)
        if frame:
            box = Rectangle((0, 0), 1, 1, transform=axes.transAxes, fill=False, zorder=-1,
                            edgecolor=self.colours.line, linewidth=144 * _FRAME * self.unit,
                            clip_on=False, snap=False, gid="frame")  # fmt: skip
            axes.add_artist(box)

    def plain(self, axes: Axes) -> None:
        """Style the axes of curves, with few lines."""
        axes.set(facecolor=self.colours.ground, axisbelow=True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color=self.colours.line, linewidth=0.5)

    def small(self, axes: Axes, size: float, axis: Literal["x", "y", "both"] = "x") -> None:
        """Set faint ticks with labels of a size in points."""
        faint = self.colours.faint
        axes.tick_params(axis, length=2 * self.unit, width=0.5, pad=2 * self.unit, labelsize=size,
                         color=faint, labelcolor=faint)  # fmt: skip

    def thread(self, x: Array, y: Array) -> None:
        """Draw a thin line through positions of the page."""
        self._artist(Line2D(x / self.width, 1 - y / self.height, color=self.colours.line,
                            linewidth=0.8 * self.unit, transform=self._whole))  # fmt: skip

    def weights(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return options of `Axes.imshow` for weights: the given ones, and defaults.

        The default colours apply without a cmap while ``rcParams["image.cmap"]`` is unchanged; the
        default norm is a square-root scale from 0 (vmin) to 1 (vmax).
        """
        chosen = rcParams["image.cmap"] != rcParamsDefault["image.cmap"]
        ours = {"cmap": rcParams["image.cmap"] if chosen else self.colours.weight,
                "norm": weight_norm(options.get("vmax", 1.0), options.get("vmin", 0.0)),
                "interpolation": "nearest"}  # fmt: skip
        return ours | {name: x for name, x in options.items() if name not in ("vmin", "vmax")}

    def scale(
        self, left: float, bottom: float, wide: float, how: Mapping[str, Any], title: str = "",
        ticks: Mapping[float, str] | None = None,
    ) -> None:  # fmt: skip
        """Draw the legend of a norm and a cmap: a colour bar with ticks and a title.

        bottom: units from the lower edge of the page. ticks: values and their labels; None: those
        of weights, or Matplotlib's for other scales.
        """
        axes, norm = self.axes(left, self.height - bottom - _BAR, wide, _BAR), how["norm"]
        image = ScalarMappable(norm, how["cmap"])
        bar = self.figure.colorbar(image, cax=axes, orientation="horizontal")
        self.bare(axes)
        if ticks is None and isinstance(norm, PowerNorm) and (norm.vmin, norm.vmax) == (0, 1):
            ticks = _WEIGHTS
        if ticks is not None:
            bar.set_ticks([*ticks], labels=[*ticks.values()])
        axes.minorticks_off()
        self.small(axes, 6 * self.unit)
        axes.set_title(title, fontsize=6.5 * self.unit, color=self.colours.faint, pad=3 * self.unit,
                       loc="left")  # fmt: skip


def weight_norm(most: float = 1.0, least: float = 0.0) -> PowerNorm:
    """Return the square-root scale of weights, 0 to 1, which shows small weights."""
    return PowerNorm(0.5, least, most)


@lru_cache(maxsize=512)
def _letters(path: str) -> frozenset[int]:
    """Return the code points of a font file; none if it cannot be used."""
    try:
        font = FT2Font(path)
    except (OSError, RuntimeError, ValueError):
        return frozenset()
    return frozenset(font.get_charmap()) if font.scalable else frozenset()


def _fonts(texts: Iterable[str]) -> tuple[list[str], frozenset[str]]:
    """Return fonts for the letters of some texts, and the letters without an installed font."""
    missing = {ord(c) for text in texts for c in visible(text, 200)}
    missing |= {ord(c) for c in "‹›0123456789ABCDEF…"}
    installed = {
        entry.name: entry.fname
        for entry in font_manager.fontManager.ttflist
        if entry.style == "normal"
        and entry.weight in (400, "normal", "regular", "book")
        and "Last Resort" not in entry.name
    }
    chosen = font_manager.FontProperties(family=rcParams["font.family"]).get_name()
    families = []
    # Noto after the default fonts: it covers letters that others lack.
    for family in sorted(
        installed,
        key=lambda name: (name != chosen, name != _FIRST, not name.startswith("Noto Sans"), name),
    ):
        if missing and (known := missing & _letters(installed[family])):
            families.append(family)
            missing -= known
    return families, frozenset(map(chr, missing))


def picture_format(path: Path) -> str:
    """Return the format of a picture file by its suffix: "png", "svg" or "pdf".

    Raises: InputError: another suffix.
    """
    kind = path.suffix.lower().lstrip(".")
    if kind not in _FORMATS:
        raise InputError(f"{path}: a picture is written as .png, .svg or .pdf.")
    return kind


def figure_of(drawn: Any) -> Figure:
    """Return the figure of axes, or of an array of axes."""
    figure = drawn.flat[0] if isinstance(drawn, np.ndarray) else drawn
    while not isinstance(figure, Figure):
        figure = figure.figure
    return figure


def save_picture(drawn: Figure | Axes | Array, path: Path | str, dpi: float = _DPI) -> None:
    """Write a figure to a file atomically, as PNG, SVG or PDF by its suffix.

    In SVG and PDF, text remains text.

    Args:
        drawn: a figure, or its axes.
        path: of the file, .png, .svg or .pdf; an existing file is replaced.
        dpi: dots per inch of a PNG.

    Raises: InputError: another suffix; DataError: the file cannot be written.
    """
    path, figure = Path(path), figure_of(drawn)
    kind = picture_format(path)
    # The same picture gives the same bytes: no dates, no random names.
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[kind]
    # Not to the file: on a full disk, Matplotlib's PDF backend raises another error.
    file = io.BytesIO()
    with matplotlib.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "headloom", "pdf.fonttype": 42}
    ):
        figure.savefig(
            file, format=kind, dpi=dpi, facecolor=figure.get_facecolor(), metadata=metadata
        )
    with atomic_file(path) as temporary:
        temporary.write_bytes(file.getvalue())
