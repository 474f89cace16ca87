"""`export_page`: traces and a training's history as one self-contained HTML file."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from headloom.errors import InputError
from headloom.formats.files import JsonMapping, atomic_file
from headloom.formats.trace import TraceData
from headloom.studio.arrays import as_json
from headloom.studio.collection import Collection, Example, name_of
from headloom.studio.pack import pack
from headloom.studio.training import TrainingHistory
from headloom.version import __version__

_SHELL = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">{policy}
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="headloom {version}">
<title>{title}</title>
<link rel="icon" href="data:,">
{style}
</head>
<body>
<div id="headloom-studio"><p class="headloom-opening">Opening the studio …</p></div>
<noscript>This page needs JavaScript, which is switched off here.</noscript>
{data}{script}
</body>
</html>
"""


def export_page(path: Path | str, collection: Collection) -> None:
    """Write one self-contained HTML file that shows a collection in a browser, offline.

    An existing file is replaced. Raises: DataError: it cannot be written.
    """
    page = page_html(collection)
    with atomic_file(path) as temporary:
        temporary.write_text(page, "utf-8", newline="\n")


def collect(
    traces: Sequence[TraceData], title: str = "headloom", *, names: Sequence[str] | None = None,
    history: TrainingHistory | None = None, summary: JsonMapping | None = None,
) -> Collection:  # fmt: skip
    """Return the collection to show.

    Args:
        traces: the examples to choose from; at least one.
        title: of the page.
        names: a short name for each example; None: made from its tokens.
        history: of a training, from `headloom.studio.training.run_history`.
        summary: further facts of the run, in order: {"exact match": "99.4 %", ...}.

    Raises: InputError: nothing to show.
    """
    names = [name_of(trace) for trace in traces] if names is None else names
    return Collection(
        title,
        [Example(name, trace) for name, trace in zip(names, traces, strict=True)],
        [(str(name), str(value)) for name, value in (summary or {}).items()],
        history,
    )


def page_html(collection: Collection) -> str:
    """Return the page that `export_page` writes, as text.

    Its content security policy allows no requests and only the page's own script and style, by
    their hashes.
    """
    code, rules = script(), style()
    policy = (
        f"default-src 'none'; script-src '{_digest(code)}'; style-src '{_digest(rules)}'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    content = as_json(pack(collection)).decode("ascii")
    for sign in "<>&":  # JSON must not end its script element
        content = content.replace(sign, f"\\u{ord(sign):04x}")
    return shell(
        title=collection.title,
        policy=policy,
        style=f"<style>{rules}</style>",
        script=f'<script type="module">{code}</script>',
        data=f'<script type="application/json" id="headloom-data">{content}</script>\n',
    )


def shell(title: str, style: str, script: str, policy: str = "", data: str = "") -> str:
    """Return the markup around the studio, of a page with its data or of the server's page."""
    meta = '\n<meta http-equiv="Content-Security-Policy" content="{}">'
    return _SHELL.format(
        policy=meta.format(html.escape(policy, quote=False)) if policy else "",
        version=html.escape(__version__),
        # HTML allows no control characters.
        title=html.escape("".join(c for c in title if c.isprintable())),
        style=style,
        data=data,
        script=script,
    )


def script() -> str:
    """Return the script, a JavaScript module whose default export is an anywidget."""
    return _built("studio.js")


def style() -> str:
    """Return the style sheet."""
    return _built("studio.css")


def _built(name: str) -> str:
    try:
        return resources.files("headloom.studio").joinpath("static", name).read_text("utf-8")
    except FileNotFoundError:
        raise InputError(
            "the studio's front end is not built. In a clone of the repository, run "
            "scripts/studio (make setup does)."
        ) from None


def _digest(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
