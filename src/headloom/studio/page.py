"""`export_page`: traces and a training's history as one self-contained HTML file.

`export_live_page` adds a model that reads new texts in the browser: ONNX Runtime in a worker.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from headloom.errors import InputError
from headloom.formats.files import JsonMapping, atomic_file
from headloom.formats.folders import atomic_folder
from headloom.formats.trace import TraceData
from headloom.studio.arrays import as_json
from headloom.studio.collection import Collection, Example, name_of
from headloom.studio.pack import pack, packed
from headloom.studio.training import TrainingHistory
from headloom.version import __version__

#: Letters from which a page with a model is a folder, and of one of its parts at most.
_FOLDER, _PART = 30_000_000, 16_000_000
#: What a page with a model may run: WebAssembly, and its worker.
_WASM, _WORKER = " 'wasm-unsafe-eval'", "worker-src blob:; trusted-types headloom"

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
    return _page(collection.title, pack(collection))


def export_live_page(
    path: Path | str, collection: Collection, pieces: Mapping[str, list[object]]
) -> Path:
    """Write a page with a model inside: a file, or from 30 MB on a folder with an index.html.

    The page is opened from a disk or a web server; it sends no requests, but a folder's for its own
    parts. An existing page is replaced; another folder is not.

    Args:
        path: of the file; a folder has the same name without its suffix.
        collection: at least one example of the model.
        pieces: the model, its tensors, graphs and tokens, as studio/src/live/card.ts has them.

    Returns: the path of the file or folder. Raises: DataError: it cannot be written.
    """
    path = Path(path)
    wasm = resources.files("headloom.studio").joinpath("static", "ort.wasm").read_bytes()
    example = collection.examples[0]
    wording = [
        {**example.neurons.through(number, 0, 0, 0, None), "positions": layer.positions}
        for number, layer in enumerate(example.trace.layers)
    ]
    whole: dict[str, list[object]] = {
        **pack(collection), **pieces, "model/steps": ["", wording],
        "runtime/worker": ["", _built("worker.js")], "runtime/wasm": packed(wasm, 1),
    }  # fmt: skip
    stored = {
        place: piece for place, piece in whole.items()
        if piece[0] and place.startswith(("model/", "runtime/"))
    }  # fmt: skip
    if sum(len(str(text)) for _, text in stored.values()) < _FOLDER:
        with atomic_file(path) as temporary:
            temporary.write_text(
                _page(collection.title, whole, _WASM, _WORKER), "utf-8", newline="\n"
            )
        return path
    folder = path.with_suffix("")
    parts = _parts(stored)
    rest = {place: piece for place, piece in whole.items() if place not in stored}
    rest["runtime/parts"] = ["", len(parts)]
    with atomic_folder(folder, _not_a_page) as temporary:
        (temporary / "parts").mkdir()
        for number, part in enumerate(parts):
            content = f"headloomPart({as_json(part).decode()});\n"
            (temporary / "parts" / f"{number}.js").write_text(content, "utf-8", newline="\n")
        page = _page(collection.title, rest, f"{_WASM} 'self'", _WORKER)
        (temporary / "index.html").write_text(page, "utf-8", newline="\n")
    return folder


def _not_a_page(folder: Path) -> str | None:
    """Return why a folder must not be replaced by a page; None: it is one."""
    try:
        with (folder / "index.html").open(encoding="utf-8") as page:
            known = 'name="generator" content="headloom' in page.read(2**16)
    except (OSError, ValueError):
        known = False
    others = {file.name for file in folder.iterdir()} - {"index.html", "parts"}
    others |= {file.name for file in folder.glob("parts/*") if not file.name[:-3].isdigit()}
    if not known:
        return "it is no page of headloom"
    return f"besides a page it holds {min(others)!r}" if others else None


def _parts(pieces: Mapping[str, list[object]]) -> list[dict[str, list[object]]]:
    """Return pieces in groups of about `_PART` letters, so that few are in memory at once."""
    parts: list[dict[str, list[object]]] = [{}]
    size = 0
    for place, piece in pieces.items():
        size += len(str(piece[1]))
        if parts[-1] and size > _PART:
            parts.append({})
            size = len(str(piece[1]))
        parts[-1][place] = piece
    return parts


def _page(
    title: str, pieces: Mapping[str, list[object]], scripts: str = "",
    others: str = "trusted-types 'none'",
) -> str:  # fmt: skip
    """Return a page with its pieces. scripts, others: what its policy allows besides."""
    code, rules = script(), style()
    policy = (
        f"default-src 'none'; script-src '{_digest(code)}'{scripts}; style-src '{_digest(rules)}'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'; "
        f"require-trusted-types-for 'script'; {others}"
    )
    content = as_json(pieces).decode("ascii")
    for sign in "<>&":  # JSON must not end its script element
        content = content.replace(sign, f"\\u{ord(sign):04x}")
    return shell(
        title=title,
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
