"""A trace written in formats of other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headloom.errors import InputError
from headloom.formats.files import atomic_file
from headloom.formats.trace import TraceData, TraceLayer, layer_number
from headloom.mechanism.shapes import place_of

if TYPE_CHECKING:
    import pyarrow as pa


def export_trace(
    path: Path,
    *,
    html: Path | None = None,
    picture: Path | None = None,
    parquet: Path | None = None,
    graphml: Path | None = None,
    layer: str | None = None,
    head: int | None = None,
) -> list[Path]:
    """Write a trace in the formats asked for; returns the files written.

    Args:
        path: of the trace.
        html: for one page that works offline; picture: for all heads at a glance, or one; parquet:
            for all edges; graphml: for the graph of one head.
        layer, head: of the picture and the graph. Neither: a picture of all heads, the graph of the
            first; a layer alone: a picture of the mean of its heads, the graph of its first. No
            head without its layer.

    Raises: InputError: no output, no such layer or head, or one that nothing is drawn of.
    """
    named = {"--html": html, "--picture": picture, "--parquet": parquet, "--graphml": graphml}
    outputs = {option: output for option, output in named.items() if output is not None}
    if not outputs:
        raise InputError(f"export: nothing to write; give one of {', '.join(named)}.")
    if len({output.resolve() for output in outputs.values()}) < len(outputs):
        raise InputError(f"{' and '.join(outputs)} name the same file. Give two names.")
    if layer is None and head is not None:
        raise InputError(f"--head {head} of no layer; give its --layer too.")
    trace = TraceData.open(path)
    number = 0 if layer is None else layer_number(trace, layer)
    if head is not None:
        place_of("layer", "export", "head", head, trace.layers[number].heads)
    if picture is not None:  # first: of one head there may be too many cells
        from headloom.studio.pictures import alignment, heads, save_picture

        drawn = trace.layers[number]
        which = f"mean of {drawn.heads} heads" if head is None else f"head {head}"
        title = f"layer {trace.label(number)}, {which}"
        save_picture(
            heads(trace) if layer is None else alignment(drawn, head, title=title), picture
        )
    if html is not None:
        from headloom.studio.page import export_page

        export_page(html, [trace], title=path.stem)
    if parquet is not None:
        write_trace_parquet(trace, parquet)
    if graphml is not None:
        write_graphml(trace, number, head or 0, graphml)
    return list(outputs.values())


def write_graphml(trace: TraceData, number: int, head: int, path: Path | str) -> None:
    """A head as GraphML, for Gephi, Cytoscape, igraph, yEd; number: of its layer in the trace.

    XML has no control characters: in tokens they become their pictures, as everywhere that headloom
    shows a token.
    """
    import networkx

    graph = trace.layers[number][head].to_networkx()
    graph.graph["layer"] = number
    named = networkx.relabel_nodes(
        graph,
        {node: "".join(map(str, node)) for node in graph.nodes if isinstance(node, tuple)},
    )
    for _, values in named.nodes(data=True):
        values["token"] = values["label"]
    for _, _, values in named.edges(data=True):
        values.update({name: float(value) for name, value in values.items()})
    with atomic_file(path) as temporary:
        networkx.write_graphml(named, temporary, encoding="utf-8")


def write_trace_parquet(trace: TraceData, path: Path | str) -> None:
    """The kept edges of all layers as one Parquet file, with names and tokens beside the numbers.

    Columns: layer, head, query, key, score, weight, query_token, key_token, kind, index, name;
    `layer` counts from 0 in the order of the trace.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = []
    for number, layer in enumerate(trace.layers):
        table = _named_edges(layer, number)
        for name, value in (("kind", layer.kind), ("index", layer.index), ("name", layer.name)):
            table = table.append_column(name, pa.repeat(value, table.num_rows))
        tables.append(table)
    with atomic_file(path) as temporary:
        pq.write_table(pa.concat_tables(tables), temporary, compression="zstd")


def _named_edges(layer: TraceLayer, number: int) -> pa.Table:
    """The kept edges of a layer, with the tokens at both ends."""
    import pyarrow as pa

    from headloom.formats.trace_writer import edge_table

    table = edge_table(number, layer.graph)
    for side, tokens in (("query", layer.query_tokens), ("key", layer.key_tokens)):
        # UTF-8 has no lone surrogates.
        names = [token.encode("utf-8", "replace").decode() for token in tokens]
        table = table.append_column(f"{side}_token", pa.array(names, pa.string()).take(table[side]))
    return table
