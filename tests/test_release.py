"""One version everywhere."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

import headloom

ROOT = Path(__file__).parents[1]


def test_every_place_names_the_same_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.MULTILINE)
    assert cited is not None
    assert headloom.__version__ == project == cited[1]
    date = re.search(r"^date-released: (.+)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.M)
    assert date is not None
    assert f"\n## {project}, {date[1]}\n" in (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert importlib.metadata.version("headloom") == project


def test_every_place_names_the_same_pythons() -> None:
    def read(name: str) -> str:
        return (ROOT / name).read_text("utf-8")

    pythons = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', read("pyproject.toml"))
    first, last = pythons[0], pythons[-1]
    assert f'requires-python = ">={first}"' in read("pyproject.toml")
    for name in ("README.md", "docs/install.md", "scripts/setup", "scripts/wheel"):
        assert f"Python {first} to {last}" in read(name), name
    for matrix in re.findall(r"python: \[(.*)\]", read(".github/workflows/tests.yml")):
        assert matrix == ", ".join(f'"{python}"' for python in pythons)
    wheels = tomllib.loads(read("pyproject.toml"))["tool"]["cibuildwheel"]["build"]
    assert wheels == [f"cp{python.replace('.', '')}-*" for python in pythons]
    for python in pythons:
        assert f"python{python}" in read("scripts/setup")


def test_nobody_is_told_to_install_what_is_not_on_pypi_yet() -> None:
    """From the clone, extras are installed by `pip install ".[hf]"`."""
    told = re.compile(r"""pip install (-\S+ )*["']?headloom\b|["']headloom\[""")
    assert told.search('pip install "headloom[hf]"') and told.search("pip install -U headloom")
    files = [
        ROOT / "README.md",
        *(ROOT / "examples").glob("*"),
        *(ROOT / "benchmarks").glob("*.py"),
    ]
    files += [path for folder in ("docs", "src") for path in (ROOT / folder).rglob("*")]
    for path in files:
        if path.suffix in (".md", ".py", ".ipynb", ".toml"):
            line = told.search(path.read_text("utf-8"))
            assert line is None, f"{path}: {line[0]}"
