"""Manifests that say something else, with digests that fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headloom.formats.manifest import manifest_digest


def forge(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest of a trace, and make its digest fit again."""
    manifest = json.loads((path / "trace.json").read_text())
    change(manifest)
    manifest["sha256"] = manifest_digest(manifest)
    (path / "trace.json").write_text(json.dumps(manifest))
