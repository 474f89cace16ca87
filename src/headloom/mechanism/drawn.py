"""Mixins for classes with a plot and a notebook view.

Pictures and views belong to a higher layer, which is imported by name when it is needed, as pandas
imports its plotting backend.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from headloom.errors import Hints, installing, optional_package

#: Notebook view: data by MIME type, and metadata by MIME type.
Bundle = tuple[dict[str, Any], dict[str, Any]]


class Drawn(Hints):
    """Mixin of classes with a method `plot`: a notebook shows its picture."""

    _elsewhere = dict.fromkeys(("to_frame", "to_dataframe", "to_df"), "to_pandas()")

    def draw(self, path: Path | str, **options: object) -> None:
        """Write the picture of `plot`, with its options, as .png, .svg or .pdf."""
        _pictures("draw").draw(self, path, **options)

    def _plot(self, picture: str, *args: object, **options: object) -> Any:
        """Draw a picture of `headloom.studio.pictures`; see `plot` there."""
        return _pictures("plot").plot(picture, *args, **options)

    def _repr_mimebundle_(self, **kwargs: object) -> Bundle:
        """Return the notebook view: see `headloom.studio.notebook`."""
        bundle: Bundle = import_module("headloom.studio.notebook").bundle(self)
        return bundle

    def _repr_html_(self) -> str | None:
        """Return the part of the notebook view that needs no script."""
        return self._repr_mimebundle_()[0].get("text/html")

    def _display_(self) -> object:
        """Return the view of a marimo notebook: the same."""
        return import_module("headloom.studio.notebook").display(self)


class Plotted(Drawn):
    """Mixin of classes with one picture."""

    #: Name of the function of `headloom.studio.pictures` that draws it.
    _picture: ClassVar[str]

    def plot(self, ax: object = None, width: float | None = None, **options: object) -> Any:
        """Draw it; ax, width and options: see `headloom.TraceLayer.plot`."""
        return self._plot(self._picture, self, ax=ax, width=width, **options)


class DrawnHeads(Drawn):
    """Mixin of classes with weights of heads, (heads, queries, keys)."""

    def plot(
        self,
        head: int | None = None,
        *,
        ax: object = None,
        width: float | None = None,
        **imshow: object,
    ) -> Any:
        """Draw the weights of a head, with tokens on both axes; or all heads side by side.

        Rows are queries, columns keys; the colour scale is the square root of the weight, so that
        small weights are visible. Exact if queries and keys or all edges are known; otherwise only
        the kept edges are drawn, and the picture states the missing mass. Above 1,024 positions (64
        with several heads) a cell is the mass of a block, computed in one pass without the matrix.

        Args:
            head: index of the head; None: all.
            ax: axes to draw into, or a figure to fill; None: a new figure, which a notebook and
                ``pyplot.show()`` show.
            width: width of a new figure, in millimetres; its height follows.
            imshow: options of `matplotlib.axes.Axes.imshow`, such as cmap, vmax and norm.

        Returns: the axes; an array of axes for all heads.
        Raises: InputError: no such head; matplotlib is not installed.
        """
        if head is None:
            return self._plot("heads", self, ax=ax, width=width, **imshow)
        return self._plot("alignment", self, head, ax=ax, width=width, **imshow)


def _pictures(operation: str) -> ModuleType:
    """Import the module of pictures; raise an InputError if matplotlib is not installed."""
    with optional_package(operation, installing("pictures")):
        return import_module("headloom.studio.pictures")
