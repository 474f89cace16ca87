"""`export_page`: traces and a training's history as one self-contained HTML file."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from weft.formats.files import atomic_file
from weft.formats.trace import Trace
from weft.studio.payload import page_payload
from weft.version import __version__

__all__ = ["export_page", "page_html"]

#: The scripts of the page, in the order in which they build on each other.
_SCRIPTS = ("data", "colour", "dom", "heads", "scatter", "threads", "matrix", "training", "main")


def export_page(
    path: Path | str,
    traces: Sequence[Trace],
    title: str = "weft",
    *,
    names: Sequence[str] | None = None,
    history: Sequence[Mapping[str, Any]] | None = None,
    curves: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    probe: Trace | None = None,
    summary: Mapping[str, Any] | None = None,
) -> None:
    """Write one HTML file that shows traces in a browser, offline, with nothing beside it.

    Args:
        path: the file; replaced if it is there.
        traces: the examples to choose from; at least one.
        title: what the page is called.
        names: a short name for each example; None: made of its tokens.
        history: snapshots along a training, in order, each

                {"step": 100, "loss": 1.25,                     # loss may be None
                 "layers": {"encoder.layers.0.attention": {     # names as in the probe's trace
                     "weights": (heads, queries, keys),         # of the probe, 0 to 1
                     "norm": (heads,),                          # |W_Q W_K^T|
                     "effective_rank": (heads,),
                     "symmetry": (heads,),                      # -1 to 1
                     "product": (heads, n, n)}}}                # W_Q W_K^T, or a part of it

            Tensors, arrays or lists; each of the five may be left out.
        curves: finer curves of the loss, {"training loss": [(step, loss), ...], ...}.
        probe: the trace of the probe input, whose tokens and layers the history's weights have;
            None: the first of `traces`.
        summary: what else to say of the run: {"exact match": "99.4 %", ...}, in order.

    Raises: InputError: nothing to show, or a history that does not fit; DataError: the file cannot
    be written.
    """
    page = page_html(
        traces, title, names=names, history=history, curves=curves, probe=probe, summary=summary
    )
    with atomic_file(path) as temporary:
        temporary.write_text(page, "utf-8", newline="\n")


def page_html(
    traces: Sequence[Trace],
    title: str = "weft",
    *,
    names: Sequence[str] | None = None,
    history: Sequence[Mapping[str, Any]] | None = None,
    curves: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    probe: Trace | None = None,
    summary: Mapping[str, Any] | None = None,
) -> str:
    """The page that `export_page` writes, as text.

    Its policy lets it load nothing and run no script but its own, which are known by their hashes;
    all it shows is set as text.
    """
    payload = page_payload(traces, title, names, history, curves, probe, summary)
    style = _part("page.css")
    script = '"use strict";\n(() => {\n' + "\n".join(_part(f"{n}.js") for n in _SCRIPTS) + "})();\n"
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src '{_digest(script)}'",
            f"style-src '{_digest(style)}'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
        )
    )
    parts = {
        "policy": html.escape(policy, quote=True).replace("&#x27;", "'"),
        "version": html.escape(__version__),
        "title": _text(title),
        "style": style,
        "data": _json(payload),
        "script": script,
    }
    page = _part("page.html")
    # One pass over the template: what is filled in is never searched again.
    pieces = page.split("{{")
    filled = [pieces[0]]
    for piece in pieces[1:]:
        name, rest = piece.split("}}", 1)
        filled.append(parts[name] + rest)
    return "".join(filled)


def _part(name: str) -> str:
    return resources.files("weft.studio").joinpath("template", name).read_text("utf-8")


def _digest(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def _text(text: str) -> str:
    """A text for the markup of the page; control characters, which HTML lacks, are left out."""
    printable = "".join(c for c in text if c.isprintable())
    return html.escape(printable, quote=True)


def _json(content: Any) -> str:
    """JSON that can stand within a script element: ASCII, and nothing that could end it."""
    text = json.dumps(content, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
