"""What a release promises: its public names, and one version everywhere."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

from tests.forked import Loaded, script

import weft

ROOT = Path(__file__).parents[1]


def test_the_public_names_are_those_that_are_promised(loaded: Loaded) -> None:
    with loaded.start(program=script(ROOT / "scripts" / "public_names.py")) as process:
        out, errors = process.communicate()
        assert process.wait() == 0, errors
    promised = (ROOT / "tests" / "public_names.txt").read_text("utf-8")
    assert out.decode() == promised, (
        "public names changed. docs/releases.md says what that means; python "
        "scripts/public_names.py --write takes it over."
    )
    # By another reader: every name of the face has a line.
    stub = (ROOT / "src" / "weft" / "__init__.pyi").read_text("utf-8")
    named = set(re.findall(r" as (\w+)$", stub, re.MULTILINE))
    listed = {re.split(r"[(:]", line)[0] for line in promised.splitlines()}
    assert named == {name.removeprefix("class ") for name in listed if "." not in name}
    assert named == set(weft.__all__)


def test_every_place_names_the_same_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.MULTILINE)
    assert cited is not None
    assert weft.__version__ == project == cited[1]
    assert f"\n## {project}" in (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert importlib.metadata.version("weft") == project
