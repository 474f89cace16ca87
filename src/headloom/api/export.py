"""A trace written in formats of other programs."""

from __future__ import annotations

import os
from pathlib import Path

from headloom.errors import InputError
from headloom.formats import exchange
from headloom.formats.trace import TraceData, layer_number

__all__ = ["export_trace"]


def _check_outputs(outputs: dict[str, Path | None]) -> None:
    """Raise an InputError unless every output has a file name, and no two have the same."""
    seen: dict[str, str] = {}
    for option, output in outputs.items():
        if output is None:
            continue
        if not output.name:
            raise InputError(
                f"{option}: the name is empty, or of a folder. Give the name of a file."
            )
        place = os.path.realpath(output)
        if place in seen:
            raise InputError(
                f"{seen[place]} and {option} name the same file, {output}. Give two names."
            )
        seen[place] = option


def _check_choice(trace: TraceData, layer: int | None, head: int | None, *, drawn: bool) -> None:
    """Raise an InputError unless there are such a layer and head, and they are drawn."""
    if not drawn:
        what = f"--layer {layer}" if layer is not None else f"--head {head}"
        raise InputError(
            f"{what}: it chooses what --picture and --graphml write, and neither is asked for. "
            "Leave it out, or give one of them."
        )
    if layer is None and head is not None:
        raise InputError(f"--head {head} of no layer; give its --layer too.")
    of = layer or 0
    heads = trace.layers[of].heads if of < len(trace.layers) else 0
    for name, number, count in (("layer", of, len(trace.layers)), ("head", head or 0, heads)):
        if not 0 <= number < count:
            raise InputError(f"--{name} {number}: the {name}s are 0 to {count - 1}.")


def export_trace(
    path: Path,
    *,
    html: Path | None,
    picture: Path | None,
    parquet: Path | None,
    graphml: Path | None,
    layer: str | None,
    head: int | None,
) -> list[Path]:
    """Write a trace in the formats asked for; returns the files written.

    Args:
        path: of the trace.
        html: for one page that works offline; picture: for all heads at a glance, or one; parquet:
            for all edges; graphml: for the graph of one head.
        layer, head: of the picture and the graph. Neither: a picture of all heads, the graph of the
            first; a layer alone: a picture of the mean of its heads, the graph of its first. No
            head without its layer.

    Raises: InputError: no output, one without a name, one file for two, no such layer or head, or
        one that nothing is drawn of.
    """
    if not any((html, picture, parquet, graphml)):
        raise InputError(
            "export: nothing to write; give --html, --picture, --parquet or --graphml."
        )
    _check_outputs(
        {"--html": html, "--picture": picture, "--parquet": parquet, "--graphml": graphml}
    )
    trace = TraceData.open(path)
    number = None if layer is None else layer_number(trace, layer)
    one = layer is not None or head is not None
    if one or graphml is not None:
        # Before anything is written.
        _check_choice(trace, number, head, drawn=picture is not None or graphml is not None)
    drawn = None
    if picture is not None:
        from headloom.studio.pictures import alignment, heads

        # Of one head there may be too many cells: nothing is written then.
        of = trace.layers[number or 0] if one else None
        which = f"head {head}" if of is None or head is not None else f"mean of {of.heads} heads"
        title = f"layer {trace.label(number or 0)}, {which}"
        drawn = heads(trace) if of is None else alignment(of, head, title=title)
    written = []
    if html is not None:
        from headloom.studio.page import export_page

        export_page(html, [trace], title=path.stem)
        written.append(html)
    if picture is not None and drawn is not None:
        from headloom.studio.pictures import save_picture

        save_picture(drawn, picture)
        written.append(picture)
    if parquet is not None:
        exchange.write_trace_parquet(trace, parquet)
        written.append(parquet)
    if graphml is not None:
        exchange.write_graphml(trace, number or 0, head or 0, graphml)
        written.append(graphml)
    return written
