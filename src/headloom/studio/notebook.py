"""The studio within a notebook: what `trace` and `graph` show of themselves there.

An anywidget of the same bundle that the server and the page use, so it works in Jupyter, VS Code,
Colab and marimo. All that it shows travels with it, as in an exported page.
"""

from __future__ import annotations

import sys
from typing import Any

from headloom.errors import InputError, installing, optional_package
from headloom.formats.files import JsonObject
from headloom.formats.trace import LayerInMemory, TraceData, TraceLayer
from headloom.mechanism.graph import AttentionGraph
from headloom.studio.arrays import as_json
from headloom.studio.pack import pack
from headloom.studio.page import collect, script, style

Bundle = tuple[JsonObject, JsonObject]


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
    heads, queries, keys = graph.shape
    one = queries == keys
    names = {"queries": [str(place) for place in range(queries)]}
    names["keys"] = [str(place) for place in range(keys)]
    layer = TraceLayer(
        name="graph",
        kind="encoder" if one else "cross",
        index=0,
        shape=(heads, queries, keys),
        queries_from="tokens" if one else "queries",
        keys_from="tokens" if one else "keys",
        query_tokens=names["queries"],
        key_tokens=names["keys"],
        scale=1.0,
        data=LayerInMemory(graph.detach().cpu()),
    )
    return TraceData({"tokens": names["keys"]} if one else names, (layer,))


def trace_bundle(trace: TraceData) -> Bundle:
    """What a notebook shows of a trace: the studio, or its text where that cannot be."""
    return _bundle(trace, repr(trace))


def graph_bundle(graph: AttentionGraph) -> Bundle:
    """Likewise of a graph; of a batch of them the text alone."""
    return _bundle(None if graph.batched else graph_trace(graph), repr(graph))


def trace_display(trace: TraceData) -> Any:
    """What marimo shows of a trace: the widget, or its text where that cannot be."""
    return _shown(trace, repr(trace))


def graph_display(graph: AttentionGraph) -> Any:
    """Likewise of a graph; of a batch of them the text alone."""
    return _shown(None if graph.batched else graph_trace(graph), repr(graph))


def _shown(trace: TraceData | None, text: str) -> Any:
    """The widget; or a text, which says why there is none."""
    if trace is None or not trace.layers:
        return text
    try:
        return widget(trace)
    except InputError as reason:
        return f"{text}\n{reason}"


def _bundle(trace: TraceData | None, text: str) -> Bundle:
    made = text if _in_a_terminal() else _shown(trace, text)
    bundle = None if isinstance(made, str) else made._repr_mimebundle_()
    if bundle is None:
        return {"text/plain": made if isinstance(made, str) else text}, {}
    data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
    return {**data, "text/plain": text}, metadata


def _in_a_terminal() -> bool:
    """Whether this is IPython in a terminal, which shows text alone."""
    interactive = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive is not None else None
    return type(shell).__module__.startswith("IPython.terminal")
