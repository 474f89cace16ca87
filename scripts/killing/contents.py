"""Every file of a folder as bytes, but for what the clock says, and where the folder is."""

from __future__ import annotations

import json
from pathlib import Path


def contents(work: Path) -> dict[str, bytes]:
    """Every file below a folder, but for what the clock says, and where the folder is."""
    files = {}
    for path in sorted(work.rglob("*")):
        name = str(path.relative_to(work))
        if path.is_dir():
            files[f"{name}/"] = b""
        elif path.name == "metrics.jsonl":
            files[name] = b"\n".join(map(_timeless, path.read_bytes().splitlines()))
        elif path.name == "places.json":
            files[name] = json.loads(path.read_bytes())[1].encode()
        elif path.name == "checkpoint.safetensors":
            files[name] = _timeless_tensors(path.read_bytes())
        else:
            files[name] = path.read_bytes()
    return files


def _timeless(line: bytes) -> bytes:
    report = json.loads(line)
    del report["seconds"]
    return json.dumps(report).encode()


def _timeless_tensors(content: bytes) -> bytes:
    """A checkpoint whose notes lack the seconds: its header again, and all behind it."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    metadata = header["__metadata__"]
    notes = json.loads(metadata["notes"])
    del notes["position"]["seconds"]
    metadata["notes"] = notes
    del metadata["notes_sha256"]
    return json.dumps(header).encode() + content[end:]
