"""One version everywhere."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

import weft

ROOT = Path(__file__).parents[1]


def test_every_place_names_the_same_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.MULTILINE)
    assert cited is not None
    assert weft.__version__ == project == cited[1]
    assert f"\n## {project}" in (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert importlib.metadata.version("weft") == project
