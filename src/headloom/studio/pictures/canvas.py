"""What every picture begins and ends with: a figure on its ground, a frame, a file."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from headloom.errors import InputError
from headloom.formats.files import atomic_file
from headloom.formats.trace import TraceLayer
from headloom.mechanism.graph import AttentionGraph
from headloom.studio.pictures.palette import Palette

__all__ = [
    "Array",
    "axes_of_cells",
    "bare",
    "new_figure",
    "not_shown",
    "picture_format",
    "save_picture",
    "sized",
    "weight_norm",
    "weight_scale",
    "weights_of",
]

Array = np.ndarray[Any, Any]

#: Cells above which a single matrix is no picture any more.
_CELLS = 2**24
_FORMATS = ("png", "svg", "pdf")
_DPI = 200
#: The width of a frame, in inches.
_FRAME = 0.01


def new_figure(width: float, height: float, colours: Palette) -> Figure:
    """An empty figure of whole pixels; sizes in inches."""
    return Figure(figsize=(_whole(width), _whole(height)), facecolor=colours.ground)


def axes_of_cells(figure: Figure, left: float, top: float, wide: float, high: float) -> Axes:
    """Axes for a matrix, in inches from the left and from the top.

    On whole pixels at the resolution that pictures are saved in, so that no cell at the edge is
    mixed with what is beside it.
    """
    width, height = figure.get_size_inches()
    left, top, wide, high = (_whole(inches) for inches in (left, top, wide, high))
    return figure.add_axes((left / width, 1 - (top + high) / height, wide / width, high / height))


def _whole(inches: float) -> float:
    return round(inches * _DPI) / _DPI


def weight_norm() -> PowerNorm:
    """The scale of weights, 0 to 1: square-root, so that small ones are seen."""
    return PowerNorm(0.5, 0.0, 1.0)


def bare(axes: Axes, colours: Palette, frame: bool = True) -> None:
    """No ticks, and a thin frame around them or none.

    The frame lies outside: a line along the edge would hide half of the outermost cells.
    """
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_facecolor(colours.ground)
    for spine in axes.spines.values():
        spine.set_visible(False)
    figure = axes.get_figure()
    if not frame or not isinstance(figure, Figure):
        return
    box = axes.get_position()
    wide, high = (_FRAME / inches for inches in figure.get_size_inches())
    figure.add_artist(
        Rectangle(
            (box.x0 - wide, box.y0 - high), box.width + 2 * wide, box.height + 2 * high,
            transform=figure.transFigure, facecolor=colours.line, linewidth=0, zorder=-1,
        )
    )  # fmt: skip


def weight_scale(
    figure: Figure,
    place: tuple[float, float, float, float],
    colours: Palette,
) -> None:
    """The legend of the weight ramp: a bar from 0 to 1, at left, bottom, width, height."""
    axes = figure.add_axes(place)
    values = np.linspace(0, 1, 256)
    axes.pcolormesh(
        np.linspace(0, 1, 257), [0, 1], values[None], cmap=colours.weight, rasterized=True
    )
    bare(axes, colours)
    ticks = (0.0, 0.01, 0.1, 0.25, 0.5, 1.0)
    axes.set_xticks(np.sqrt(ticks), ["0", ".01", ".1", ".25", ".5", "1"])
    axes.tick_params(axis="x", length=2, width=0.5, pad=1.5, labelsize=6,
                     color=colours.faint, labelcolor=colours.faint)  # fmt: skip
    axes.set_title("weight", fontsize=6.5, color=colours.faint, pad=3, loc="left")


def weights_of(
    what: TraceLayer | AttentionGraph | Tensor | Array, head: int | None
) -> tuple[Array, float]:
    """The weights of a head as a matrix (queries, keys), and the share of their mass not in it.

    head: None: the mean of all heads. Of a layer that has its queries and keys, the weights are
    exact; else those of the kept edges.

    Raises: InputError: no such head, a batch, or a matrix too large for a picture.
    """
    graph = what.graph if isinstance(what, TraceLayer) else what
    if isinstance(graph, AttentionGraph):
        heads, queries, keys = graph.shape[-3:]
        if queries * keys > _CELLS:
            raise InputError(
                f"picture: {queries} queries by {keys} keys are too many cells for one picture. "
                "Choose fewer tokens, or look at all heads: headloom.studio.pictures.heads."
            )
        chosen = range(heads) if head is None else (head,)
        parts = [graph.adjacency(number).toarray() for number in chosen]
        kept = np.mean(parts, 0, dtype=float) if parts else np.zeros((queries, keys))
        numbers = list(chosen)
        partial = graph.count[numbers] > (graph.keys[numbers] >= 0).sum(-1)
        if not bool(partial.any()):
            return kept, 0.0
        whole = what.matrix if isinstance(what, TraceLayer) else None
        if whole is not None:
            total = np.zeros((queries, keys))
            for number in chosen:
                total += whole[number % heads, :, :].numpy()
            return total / len(chosen), 0.0
        rows = max(int((graph.count[numbers] > 0).sum()), 1)
        return kept, float((graph.rest[numbers] * partial).sum()) / rows
    matrix = np.asarray(graph.detach().cpu().float() if isinstance(graph, Tensor) else graph)
    if matrix.ndim == 3:
        if head is not None and not -len(matrix) <= head < len(matrix):
            raise InputError(f"picture: head {head}; there are heads 0 to {len(matrix) - 1}.")
        matrix = matrix.mean(0) if head is None else matrix[head]
    if matrix.ndim != 2:
        raise InputError(
            f"picture: weights of shape {matrix.shape}; expected (queries, keys) or (heads, "
            "queries, keys)."
        )
    return matrix.astype(float), 0.0


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


def sized(tokens: Sequence[str] | None, size: int, what: str) -> list[str]:
    """Tokens for an axis, or positions where there are none."""
    if tokens is None:
        return [str(position) for position in range(size)]
    if len(tokens) != size:
        raise InputError(f"picture: {len(tokens)} {what} tokens for {size} {what}.")
    return list(tokens)


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
