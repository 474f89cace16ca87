"""Display of objects in notebooks: a picture, and for traces and graphs the studio.

The studio is an anywidget with the same bundle as the server and the page, so it works in Jupyter,
VS Code, Colab and marimo. It contains all of its data, as an exported page does. A saved notebook
shows the picture where no script runs, as on GitHub.
"""

from __future__ import annotations

import io
import math
import sys
from base64 import b64encode
from html import escape
from typing import TYPE_CHECKING, Any

from headloom.analysis.heads.formation import trace_of_snapshot
from headloom.errors import HeadloomError, InputError, installing, optional_package
from headloom.formats.history import LayerSnapshot, Snapshot
from headloom.formats.trace import TraceData
from headloom.mechanism.drawn import Bundle, Drawn
from headloom.mechanism.graph import AttentionGraph
from headloom.studio.arrays import as_json
from headloom.studio.pack import pack
from headloom.studio.page import collect, script, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Weights, and heads, at most in an automatic picture: one or two seconds.
_CELLS, _HEADS = 2**28, 400
#: Dots per inch of a picture; the first with a file of at most so many bytes is used.
_DOTS, _BYTES = (144, 96, 64, 40), 180_000


def widget(trace: TraceData, start: str = "", title: str = "") -> Any:
    """Return a widget that shows a trace.

    Args:
        trace: to show.
        start: the initial view, as the end of the studio's address: "#view=threads&layer=3".
        title: of the widget; "": none.

    Raises: InputError: anywidget is not installed, or the trace is too long for a notebook.
    """
    with optional_package("widget", installing("notebook")):
        import anywidget
        import traitlets

    class StudioWidget(anywidget.AnyWidget):  # type: ignore[misc, unused-ignore]
        _esm = script()
        _css = style()
        pack = traitlets.Unicode().tag(sync=True)
        start = traitlets.Unicode().tag(sync=True)

    content = as_json(pack(collect([trace], title))).decode("ascii")
    return StudioWidget(pack=content, start=start)


def graph_trace(graph: AttentionGraph) -> TraceData:
    """Convert a graph without a batch to a trace of one layer; tokens are their indices."""
    _, queries, keys = graph.shape
    kind = "encoder" if queries == keys else "cross"
    rows, columns = ([*map(str, range(count))] for count in (queries, keys))
    layer = LayerSnapshot("graph", kind, {}, {}, graph.detach().cpu(), rows, columns, scale=1.0)
    return trace_of_snapshot(Snapshot(0, None, [layer]))


def display(item: Drawn) -> object:
    """Return the display for marimo: the studio of a trace or a graph, else picture or text."""
    studio, text = _studio(item)
    return studio or _figure(item) or text


def bundle(item: Drawn) -> Bundle:
    """Return the display for notebooks: text, picture, and for traces and graphs the studio.

    The picture remains in a saved notebook without scripts.
    """
    interactive = sys.modules.get("IPython")
    shell = None if interactive is None else interactive.get_ipython()
    if type(shell).__module__.startswith("IPython.terminal"):  # which shows only text
        return {"text/plain": repr(item)}, {}
    studio, text = _studio(item)
    parts = ({}, {}) if studio is None else studio._repr_mimebundle_()
    view, metadata = parts if isinstance(parts, tuple) else (parts, {})
    data = {**view, "text/plain": text}
    if figure := _figure(item):
        png, wide, name = _png(figure), round(figure.get_figwidth() * 96), escape(repr(item))
        data["image/png"] = png
        data["text/html"] = (
            f'<img width="{wide}" style="max-width:100%" alt="{name}" '
            f'src="data:image/png;base64,{b64encode(png).decode()}"><p><code>{name}</code></p>'
        )
        metadata = {**metadata, "image/png": {"width": wide}}
    return data, metadata


def _studio(item: Drawn) -> tuple[Any, str]:
    """Return the studio of a trace or a graph, or None; and the text, with the reason."""
    try:
        if isinstance(item, AttentionGraph) and not item.batched:
            return widget(graph_trace(item)), repr(item)
        if isinstance(item, TraceData) and item.layers:
            return widget(item), repr(item)
    except InputError as reason:
        return None, f"{item!r}\n{reason}"
    return None, repr(item)


def _figure(item: Any) -> Figure | None:
    """Return the picture of `plot`; None if there is none or it would take long."""
    layers = item.layers if isinstance(item, TraceData) else [item]
    shapes = [shape for layer in layers if (shape := getattr(layer, "shape", ()))]
    if sum(map(math.prod, shapes)) > _CELLS or sum(shape[0] for shape in shapes[1:]) > _HEADS:
        return None
    try:
        from matplotlib.figure import Figure

        figure = Figure()
        item.plot(ax=figure)
    except (HeadloomError, ImportError):
        return None
    return figure


def _png(figure: Figure) -> bytes:
    """Return a figure as PNG, at a lower resolution if it is large."""
    for dots in _DOTS:
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=dots, facecolor=figure.get_facecolor())
        if file.tell() <= _BYTES:
            break
    return file.getvalue()
