"""What draws itself, by pictures and views of a notebook that stand on a floor above.

This floor finds them by name and imports neither, as pandas finds what it plots with.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from headloom.errors import Hints, installing, optional_package

#: A view that a notebook shows: by their types what it is, and what is known of these.
Bundle = tuple[dict[str, Any], dict[str, Any]]


class Drawn(Hints):
    """Mixin of classes with a method `plot`: a notebook shows what it draws."""

    _elsewhere = dict.fromkeys(("to_frame", "to_dataframe", "to_df"), "to_pandas()")

    def draw(self, path: Path | str, **options: object) -> None:
        """Write what `plot` draws, with its options, as .png, .svg or .pdf."""
        _pictures("draw").draw(self, path, **options)

    def _plot(self, picture: str, *args: object, **options: object) -> Any:
        """Draw a picture of `headloom.studio.pictures`; see `plot` there."""
        return _pictures("plot").plot(picture, *args, **options)

    def _repr_mimebundle_(self, **kwargs: object) -> Bundle:
        """What a notebook shows: see `headloom.studio.notebook`."""
        bundle: Bundle = import_module("headloom.studio.notebook").bundle(self)
        return bundle

    def _repr_html_(self) -> str | None:
        """The part of it that needs no script."""
        return self._repr_mimebundle_()[0].get("text/html")

    def _display_(self) -> object:
        """What marimo shows: the same."""
        return import_module("headloom.studio.notebook").display(self)


class Plotted(Drawn):
    """Mixin of classes of which there is one thing to draw."""

    #: The function of `headloom.studio.pictures` that draws it.
    _picture: ClassVar[str]

    def plot(self, ax: object = None, width: float | None = None, **options: object) -> Any:
        """Draw it; ax, width and options: see `headloom.TraceLayer.plot`."""
        return self._plot(self._picture, self, ax=ax, width=width, **options)


class DrawnHeads(Drawn):
    """Mixin of what has weights of heads, (heads, queries, keys)."""

    def plot(
        self,
        head: int | None = None,
        *,
        ax: object = None,
        width: float | None = None,
        **imshow: object,
    ) -> Any:
        """Draw the weights of a head, tokens on both axes; or all heads beside each other.

        Rows are queries, columns keys; a colour is the square root of a weight, so that small ones
        are seen. Exact where it has queries and keys or every edge; else of the kept edges, and the
        picture says what is missing. Of more than 1,024 positions (64 beside other heads) a cell
        is the mass of a block, in one pass: no matrix is formed.

        Args:
            head: which one; None: all.
            ax: axes to draw into, or a figure to fill; None: a new figure, which a notebook and
                ``pyplot.show()`` show.
            width: of a new figure, in millimetres; its height follows.
            imshow: options of `matplotlib.axes.Axes.imshow`, as cmap, vmax and norm.

        Returns: the axes; of all heads an array of them.
        Raises: InputError: no such head; matplotlib is not installed.
        """
        if head is None:
            return self._plot("heads", self, ax=ax, width=width, **imshow)
        return self._plot("alignment", self, head, ax=ax, width=width, **imshow)


def _pictures(asker: str) -> ModuleType:
    """The module of pictures. Raises: InputError: matplotlib is not installed."""
    with optional_package(asker, installing("pictures")):
        return import_module("headloom.studio.pictures")
