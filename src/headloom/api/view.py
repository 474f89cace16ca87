"""`headloom.view`: the studio on traces, runs and models."""

from __future__ import annotations

from pathlib import Path

from headloom.analysis.arguments import trace_of
from headloom.api.asking import studio_of
from headloom.api.opening import Source, load
from headloom.errors import InputError
from headloom.formats.folders import was_interrupted
from headloom.formats.run import is_run
from headloom.formats.trace import TraceData
from headloom.studio import serving
from headloom.studio.collection import Collection
from headloom.studio.page import collect
from headloom.studio.runs import open_collection, open_traces
from headloom.studio.serving import Viewer, serve
from headloom.tracing.locating import is_gguf, is_named


def view(
    x: Source | TraceData,
    *more: Path | str | TraceData,
    text: str | None = None,
    port: int | None = None,
    browser: bool = True,
    block: bool = False,
) -> Viewer:
    """Show every head of a trace, a run, or a model that traces typed text, in a browser.

    Args:
        x: a trace, a run, or a model, as objects or by their paths or names; or a folder of traces.
        more: traces to compare with it.
        text: first text of a model.
        port: 0: any free one; None: the first free one from 8137 on.
        browser: open one.
        block: print the address, and serve until interrupted; else serve in the background, until
            the program ends.

    Returns: the viewer, with `address` and `close()`.

    Raises: DataError: missing or damaged; InputError: a text without a model; the port is in use.
    """
    collection, start = open_studio(x, text, *more), "#view=compare" if more else ""
    if block:
        return serve(collection, port, browser, start)
    return serving.view(collection, port=port, browser=browser, start=start)


def open_studio(
    x: Source | TraceData, text: str | None = None, *others: Path | str | TraceData
) -> Collection:
    """Return the studio's collection; see `view`."""
    path = Path(x) if isinstance(x, str | Path) else None
    model = not isinstance(x, TraceData) if path is None else is_run(path) or is_model(path)
    if text is not None and (others or not model or (path is not None and is_run(path))):
        raise InputError(f"text: {path or x} is not a model. Leave text out.")
    if isinstance(x, TraceData) or others:
        traces = [x, *others]
        if all(isinstance(item, str | Path) for item in traces):
            return open_traces([Path(str(item)) for item in traces])
        return collect([trace_of("view", item) for item in traces])
    if model:
        return studio_of(load(x), text)
    return open_collection(Path(str(path)))


def is_model(path: Path) -> bool:
    """Return whether a path is a model of Hugging Face, or its name."""
    if path.is_dir():
        return (path / "config.json").exists() or any(path.glob("*.gguf"))
    if path.exists():
        return is_gguf(path)
    if is_named(str(path)):
        return True
    # name, or owner/name; not if the owner is a folder here, or a trace was interrupted there.
    return (
        len(path.parts) <= 2
        and path.suffix != ".loom"
        and not Path(path.parts[0]).exists()
        and not was_interrupted(path)
    )
