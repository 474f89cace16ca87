"""What objects show of themselves in a notebook: a picture, and of traces and graphs the studio.

The studio is an anywidget of the same bundle that the server and the page use, so it works in
Jupyter, VS Code, Colab and marimo. All that it shows travels with it, as in an exported page. The
picture is what a saved notebook shows where no script runs, as on GitHub.
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

#: Weights, and heads, in a picture that nobody asked for, at most: a second or two.
_CELLS, _HEADS = 2**28, 400
#: Dots an inch of a picture, the first whose file has no more bytes.
_DOTS, _BYTES = (144, 96, 64, 40), 180_000


def widget(trace: TraceData, start: str = "", title: str = "") -> Any:
    """A trace as a widget.

    Args:
        trace: what it shows.
        start: the view it starts with, as the address of the studio ends:
            "#view=threads&layer=3".
        title: what it is called; "": nothing.

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
    """A graph without a batch as a trace of one layer, its tokens named by their places."""
    _, queries, keys = graph.shape
    kind = "encoder" if queries == keys else "cross"
    rows, columns = ([*map(str, range(count))] for count in (queries, keys))
    layer = LayerSnapshot("graph", kind, {}, {}, graph.detach().cpu(), rows, columns, scale=1.0)
    return trace_of_snapshot(Snapshot(0, None, [layer]))


def display(shown: Drawn) -> Any:
    """What marimo shows: the studio, of a trace or a graph; else the picture, or the text."""
    studio, text = _studio(shown)
    return studio or _figure(shown) or text


def bundle(shown: Drawn) -> Bundle:
    """What a notebook shows: the text; what `plot` draws, which stays when the notebook is saved
    and its scripts are gone; and of a trace and a graph the studio.
    """
    if _in_a_terminal():
        return {"text/plain": repr(shown)}, {}
    studio, text = _studio(shown)
    parts = ({}, {}) if studio is None else studio._repr_mimebundle_()
    view, metadata = parts if isinstance(parts, tuple) else (parts, {})
    data = {**view, "text/plain": text}
    if figure := _figure(shown):
        png, wide, name = _png(figure), round(figure.get_figwidth() * 96), escape(repr(shown))
        data["image/png"] = png
        data["text/html"] = (
            f'<img width="{wide}" style="max-width:100%" alt="{name}" '
            f'src="data:image/png;base64,{b64encode(png).decode()}"><p><code>{name}</code></p>'
        )
        metadata = {**metadata, "image/png": {"width": wide}}
    return data, metadata


def _studio(shown: Drawn) -> tuple[Any, str]:
    """The studio of a trace or a graph, None of what has none; and the text, with the reason."""
    try:
        if isinstance(shown, AttentionGraph) and not shown.batched:
            return widget(graph_trace(shown)), repr(shown)
        if isinstance(shown, TraceData) and shown.layers:
            return widget(shown), repr(shown)
    except InputError as reason:
        return None, f"{shown!r}\n{reason}"
    return None, repr(shown)


def _figure(shown: Any) -> Figure | None:
    """What `plot` draws; None where it draws nothing, or would take long."""
    layers = shown.layers if isinstance(shown, TraceData) else [shown]
    shapes = [shape for layer in layers if (shape := getattr(layer, "shape", ()))]
    if sum(map(math.prod, shapes)) > _CELLS or sum(shape[0] for shape in shapes[1:]) > _HEADS:
        return None
    try:
        from matplotlib.figure import Figure

        figure = Figure()
        shown.plot(ax=figure)
    except (HeadloomError, ImportError):
        return None
    return figure


def _png(figure: Figure) -> bytes:
    """A figure as PNG, coarser where it is large."""
    for dots in _DOTS:
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=dots, facecolor=figure.get_facecolor())
        if file.tell() <= _BYTES:
            break
    return file.getvalue()


def _in_a_terminal() -> bool:
    """Whether this is IPython in a terminal, which shows text alone."""
    interactive = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive is not None else None
    return type(shell).__module__.startswith("IPython.terminal")
