"""What every picture begins and ends with: a figure on its ground, a frame, a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from torch import Tensor

from weft.errors import InputError
from weft.formats.files import atomic_file
from weft.formats.trace import TraceLayer
from weft.mechanism.graph import AttentionGraph
from weft.pictures.palette import Palette

__all__ = [
    "bare",
    "new_figure",
    "save_picture",
    "sized",
    "weight_norm",
    "weight_scale",
    "weights_of",
]

#: Cells above which a single matrix is no picture any more.
_CELLS = 2**24
_FORMATS = ("png", "svg", "pdf")


def new_figure(width: float, height: float, colours: Palette) -> Figure:
    """An empty figure; sizes in inches."""
    return Figure(figsize=(width, height), facecolor=colours.ground)


def weight_norm() -> PowerNorm:
    """The scale of weights, 0 to 1: square-root, so that small ones are seen."""
    return PowerNorm(0.5, 0.0, 1.0)


def bare(axes: Axes, colours: Palette, frame: bool = True) -> None:
    """No ticks, and a thin frame or none."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_facecolor(colours.ground)
    for spine in axes.spines.values():
        spine.set_visible(frame)
        spine.set_color(colours.line)
        spine.set_linewidth(0.6)


def weight_scale(
    figure: Figure, place: tuple[float, float, float, float], colours: Palette
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


def weights_of(what: TraceLayer | AttentionGraph | Tensor | np.ndarray[Any, Any], head: int | None
               ) -> np.ndarray[Any, Any]:  # fmt: skip
    """The weights of a head as a matrix (queries, keys); head None: the mean of all heads.

    Raises: InputError: no such head, a batch, or a matrix too large for a picture.
    """
    graph = what.graph if isinstance(what, TraceLayer) else what
    if isinstance(graph, AttentionGraph):
        heads, queries, keys = graph.shape[-3:]
        if queries * keys > _CELLS:
            raise InputError(
                f"picture: {queries} queries by {keys} keys are too many cells for one picture. "
                "Choose fewer tokens, or look at all heads: weft.pictures.heads."
            )
        chosen = range(heads) if head is None else (head,)
        total = np.zeros((queries, keys))
        for number in chosen:
            total += graph.adjacency(number).toarray()
        return total / max(len(chosen), 1)
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
    return matrix.astype(float)


def sized(tokens: Sequence[str] | None, size: int, what: str) -> list[str]:
    """Tokens for an axis, or positions where there are none."""
    if tokens is None:
        return [str(position) for position in range(size)]
    if len(tokens) != size:
        raise InputError(f"picture: {len(tokens)} {what} tokens for {size} {what}.")
    return list(tokens)


def save_picture(figure: Figure, path: Path | str, dpi: float = 200) -> None:
    """Write a figure to a file, whole or not at all; its suffix chooses PNG, SVG or PDF.

    In SVG and PDF, text stays text.

    Args:
        figure: any of this package's pictures.
        path: the file to be, .png, .svg or .pdf; replaced if it is there.
        dpi: dots per inch of a PNG.

    Raises: InputError: another suffix; DataError: the file cannot be written.
    """
    path = Path(path)
    kind = path.suffix.lower().lstrip(".")
    if kind not in _FORMATS:
        raise InputError(f"{path}: a picture is written as .png, .svg or .pdf.")
    # The same picture gives the same bytes: no dates, no random names.
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": "weft", "pdf.fonttype": 42}
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[kind]
    with matplotlib.rc_context(settings), atomic_file(path) as temporary:
        figure.savefig(
            temporary, format=kind, dpi=dpi, facecolor=figure.get_facecolor(), metadata=metadata
        )
