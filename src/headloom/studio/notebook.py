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


def display(shown: TraceData | AttentionGraph) -> Any:
    """What marimo shows of a trace or a graph: the widget; or its text, which says why not.

    Of a batch of graphs, and of a trace without a layer, the text alone.
    """
    if shown.batched if isinstance(shown, AttentionGraph) else not shown.layers:
        return repr(shown)
    try:
        return widget(graph_trace(shown) if isinstance(shown, AttentionGraph) else shown)
    except InputError as reason:
        return f"{shown!r}\n{reason}"


def bundle(shown: TraceData | AttentionGraph) -> tuple[JsonObject, JsonObject]:
    """What a notebook shows: the studio, or the text where that cannot be."""
    made = repr(shown) if _in_a_terminal() else display(shown)
    parts = None if isinstance(made, str) else made._repr_mimebundle_()
    if parts is None:
        return {"text/plain": made if isinstance(made, str) else repr(shown)}, {}
    data, metadata = parts if isinstance(parts, tuple) else (parts, {})
    return {**data, "text/plain": repr(shown)}, metadata


def _in_a_terminal() -> bool:
    """Whether this is IPython in a terminal, which shows text alone."""
    interactive = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive is not None else None
    return type(shell).__module__.startswith("IPython.terminal")
