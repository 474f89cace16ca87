"""`headloom.view`: the studio on traces, runs and models."""

from __future__ import annotations

from pathlib import Path

from headloom.api.asking import studio_of
from headloom.api.opening import load
from headloom.errors import InputError
from headloom.formats.folders import was_interrupted
from headloom.formats.run import is_run
from headloom.studio.collection import Collection
from headloom.studio.runs import open_collection, open_traces
from headloom.tracing.locating import PACKAGED, is_gguf


def open_studio(path: Path, text: str | None = None, *others: Path) -> Collection:
    """Return what there is to see at a path: a model, or see
    `headloom.studio.runs.open_collection`.

    Args:
        path: of a trace, a run, a folder of traces; or a model of Hugging Face, by its folder, GGUF
            file or name, which is shown on a text. A run can be asked, if it reads text.
        text: what a model of Hugging Face reads first.
        others: more traces beside that of `path`, to compare.

    Raises: DataError: nothing, or something damaged; InputError: the model reads no text.
    """
    if text is not None and (others or is_run(path) or not is_model(path)):
        raise InputError(f"--text: {path} is no model, which would read it. Leave it out.")
    if others:
        return open_traces([path, *others])
    if is_run(path) or is_model(path):
        return studio_of(load(path), text)
    return open_collection(path)


def is_model(path: Path) -> bool:
    """Whether a path is a model of Hugging Face, or the name of one."""
    if path.is_dir():
        return (path / "config.json").exists() or any(path.glob("*.gguf"))
    if path.exists():
        return is_gguf(path)
    if str(path) in PACKAGED:
        return True
    # name, or owner/name; where the owner is a folder here, or a trace was being written, a path.
    return (
        len(path.parts) <= 2
        and path.suffix != ".loom"
        and not Path(path.parts[0]).exists()
        and not was_interrupted(path)
    )
