"""Opening a trace folder: damage is told in one line, and tables are read when asked for."""

from __future__ import annotations

from mimetypes import guess_type
from pathlib import Path

from headloom.errors import DataError
from headloom.formats.files import JsonObject, is_there, read_json
from headloom.formats.folders import AGAIN, check_there
from headloom.formats.layer_data import REMEDY
from headloom.formats.manifest import check_manifest
from headloom.formats.trace_writer import EDGES, FORMAT, MANIFEST, ROWS, VERSION


def open_folder(path: Path | str) -> tuple[Path, JsonObject]:
    """Check a trace folder as far as can be done without reading its tables.

    Returns: the folder and its manifest.

    Raises: DataError: it is missing, half-written, damaged, or of a newer version.
    """
    folder = Path(path)
    check_there(folder, "trace")
    if not folder.is_dir():
        picture = (guess_type(folder.name)[0] or "").startswith("image/")
        what = "an image" if picture else "a text"
        raise DataError(
            f"{folder}: not a trace: a trace is a folder with {MANIFEST} in it. To trace {what}: "
            f"headloom trace MODEL --file {folder} -o PATH."
        )
    if not is_there(folder / MANIFEST, "trace"):
        if any((folder / name).exists() for name in (EDGES, ROWS)):
            raise DataError(f"{folder}: a half-written trace: it has no {MANIFEST}. {AGAIN}")
        first = min(folder.glob(f"*/{MANIFEST}"), default=None)
        if first is not None:
            raise DataError(f"{folder}: a folder of traces. Give one of them, as {first.parent}.")
        raise DataError(
            f"{folder}: not a trace: it has no {MANIFEST}. Check the path, or make a trace: "
            "headloom trace."
        )
    manifest = read_json(folder / MANIFEST, "trace")
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DataError(f"{folder}: not a trace: {MANIFEST} does not say that it is a {FORMAT}.")
    version = manifest.get("version")
    if isinstance(version, int) and version > VERSION:
        raise DataError(
            f"{folder}: a trace of version {version}, made by headloom {manifest.get('headloom')}; "
            f"this headloom reads up to version {VERSION}. Upgrade headloom."
        )
    try:
        check_manifest(folder, manifest)
    except DataError:
        raise
    except (ValueError, RecursionError) as error:
        raise DataError(f"{folder}: this trace is damaged: {error}. {REMEDY}") from None
    # The program may change its folder before the layers are read.
    return folder.absolute(), manifest
