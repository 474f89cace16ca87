"""A trace written in formats of other programs."""

from __future__ import annotations

import os
from pathlib import Path

from weft.errors import InputError
from weft.formats import exchange
from weft.formats.trace import TraceData

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


def export_trace(
    path: Path,
    *,
    html: Path | None,
    picture: Path | None,
    parquet: Path | None,
    graphml: Path | None,
    layer: int,
    head: int,
) -> list[Path]:
    """Write a trace in the formats asked for; returns the files written.

    Args:
        path: of the trace.
        html: for one page that works offline; picture: for all heads at a glance; parquet: for all
            edges; graphml: for the graph of one head.
        layer, head: of that graph.

    Raises: InputError: no output, one without a name, one file for two, no such layer or head.
    """
    if not any((html, picture, parquet, graphml)):
        raise InputError(
            "export: nothing to write; give --html, --picture, --parquet or --graphml."
        )
    _check_outputs(
        {"--html": html, "--picture": picture, "--parquet": parquet, "--graphml": graphml}
    )
    trace = TraceData.open(path)
    if graphml is not None:
        # Before anything is written.
        for what, number, count in (
            ("layer", layer, len(trace.layers)),
            ("head", head, trace.layers[layer].heads if layer < len(trace.layers) else 0),
        ):
            if not 0 <= number < count:
                raise InputError(f"--{what} {number}: the {what}s are 0 to {count - 1}.")
    written = []
    if html is not None:
        from weft.studio.page import export_page

        export_page(html, [trace], title=path.stem)
        written.append(html)
    if picture is not None:
        from weft.pictures import heads, save_picture

        save_picture(heads(trace), picture)
        written.append(picture)
    if parquet is not None:
        exchange.write_trace_parquet(trace, parquet)
        written.append(parquet)
    if graphml is not None:
        exchange.write_graphml(trace.layers[layer], head, graphml)
        written.append(graphml)
    return written
