"""`headloom.export`: write a trace, or a run, in formats of other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from headloom.analysis.arguments import OneTrace, trace_of
from headloom.errors import InputError
from headloom.formats.files import atomic_file
from headloom.formats.trace import TraceData, layer_number
from headloom.mechanism.shapes import place_of

if TYPE_CHECKING:
    from headloom.api.model_export import ExportedModel
    from headloom.api.run import Run

#: Programs that can open an exported run.
Program: TypeAlias = Literal["huggingface", "ctranslate2", "onnx"]


def export(
    x: OneTrace | Run,
    *,
    html: Path | str | None = None,
    picture: Path | str | None = None,
    parquet: Path | str | None = None,
    graphml: Path | str | None = None,
    live: bool = False,
    bits: Literal[8, 32] | None = None,
    layer: int | str | None = None,
    head: int | None = None,
    to: Program | None = None,
    output: Path | str | None = None,
) -> list[Path] | ExportedModel:
    """Write a trace as a page, a picture, a table or a graph; or a run for another program.

    Args:
        x: a trace, or a training run; or the path of one.
        html: of one page that works offline.
        picture: of all heads at a glance, or one: .png, .svg or .pdf.
        parquet: of all edges, with names and tokens.
        graphml: of the graph of one head.
        live: whether the page (html) has the model inside, which reads new texts in the browser: of
            a run, or a model of Transformers that reads one text. Above 30 MB the page is a folder.
        bits: of the weights in such a page, 32 or 8; None: 32 up to 10 million parameters.
        layer: of the picture and the graph; None: all heads, and the graph of the first.
        head: of this layer; None: the mean of its heads, and the graph of its first.
        to: of a run: "huggingface" for Transformers, "ctranslate2", or "onnx" for ONNX Runtime.
            The exported model is opened by that program, and its outputs on random tokens are
            compared with the run's, before the folder gets its name.
        output: of a run: the folder to write; it must not exist.

    Returns: the written files, in order; of a run an ExportedModel.

    Raises: InputError: no output, no such layer or head, nothing to draw; a model that the program
    does not support. DataError: no trace or run. VerificationError: outputs differ.
    """
    named = {"html": html, "picture": picture, "parquet": parquet, "graphml": graphml}
    outputs = {name: Path(path) for name, path in named.items() if path is not None}
    if live or bits is not None:
        if html is None or not live or len(outputs) > 1 or to is not None or output is not None:
            raise InputError(
                "export: live and bits are for one page with a model inside. Give html (--html "
                "FILE), live (--live), and no other output."
            )
        from headloom.api.page_model import write_live_page

        return [write_live_page(x, Path(html), bits)]
    if to is not None or output is not None:
        if to is None or output is None or outputs:
            raise InputError(
                "export: a model is written by to and output alone, a trace by html, picture, "
                "parquet or graphml. Give one kind."
            )
        from headloom.api.model_export import export_model

        return export_model(Path(str(getattr(x, "path", x))), Path(output), to)
    if not outputs:
        raise InputError(
            "export: nothing to write. Give html (--html FILE), picture, parquet or graphml."
        )
    if len({path.resolve() for path in outputs.values()}) < len(outputs):
        raise InputError(f"{' and '.join(outputs)} name the same file. Give two names.")
    if layer is None and head is not None:
        raise InputError(f"head {head} without a layer; give its layer too.")
    trace = trace_of("export", x)
    number = 0 if layer is None else layer_number(trace, layer)
    if head is not None:
        place_of("layer", "export", "head", head, trace.layers[number].heads)
    if picture is not None:  # first, since a head may have too many cells
        from headloom.studio.pictures import alignment, heads, save_picture

        drawn = trace.layers[number]
        which = f"mean of {drawn.heads} heads" if head is None else f"head {head}"
        title = f"layer {trace.label(number)}, {which}"
        save_picture(
            heads(trace) if layer is None else alignment(drawn, head, title=title), picture
        )
    if html is not None:
        from headloom.studio.page import collect, export_page

        title = Path(x).stem if isinstance(x, str | Path) else str(trace.model.get("name", "trace"))
        export_page(html, collect([trace], title))
    if parquet is not None:
        write_trace_parquet(trace, parquet)
    if graphml is not None:
        write_graphml(trace, number, head or 0, graphml)
    return list(outputs.values())


def write_graphml(trace: TraceData, number: int, head: int, path: Path | str) -> None:
    """Write a head as GraphML, for Gephi, Cytoscape, igraph, yEd; number: of its layer.

    XML has no control characters: in tokens they become their Unicode control pictures.
    """
    import networkx

    graph = trace.layers[number][head].to_networkx()
    graph.graph["layer"] = number
    named = networkx.relabel_nodes(
        graph, {node: "".join(map(str, node)) for node in graph.nodes if isinstance(node, tuple)}
    )
    for _, values in named.nodes(data=True):
        values["token"] = values["label"]
    for _, _, values in named.edges(data=True):
        values.update({name: float(value) for name, value in values.items()})
    with atomic_file(path) as temporary:
        networkx.write_graphml(named, temporary, encoding="utf-8")


def write_trace_parquet(trace: TraceData, path: Path | str) -> None:
    """Write the kept edges of all layers to one Parquet file, with names and tokens.

    Columns: layer, head, query, key, score, weight, query_token, key_token, kind, index, name;
    `layer` is the index in the trace, from 0.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from headloom.formats.trace_writer import edge_table

    tables = []
    for number, layer in enumerate(trace.layers):
        table = edge_table(number, layer.graph)
        for side, tokens in (("query", layer.query_tokens), ("key", layer.key_tokens)):
            # UTF-8 has no lone surrogates.
            names = pa.array([token.encode("utf-8", "replace").decode() for token in tokens], "str")
            table = table.append_column(f"{side}_token", names.take(table[side]))
        for name, value in (("kind", layer.kind), ("index", layer.index), ("name", layer.name)):
            table = table.append_column(name, pa.repeat(value, table.num_rows))
        tables.append(table)
    with atomic_file(path) as temporary:
        pq.write_table(pa.concat_tables(tables), temporary, compression="zstd")
