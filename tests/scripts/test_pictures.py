"""`scripts/pictures.py` makes every picture of the documentation."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT, PICTURES = ROOT / "scripts" / "pictures.py", ROOT / "docs" / "pictures"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    if not SCRIPT.exists():
        pytest.skip("installed without its scripts")
    spec = importlib.util.spec_from_file_location("pictures_of_docs", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_picture_of_the_documentation_is_made_by_it(script: ModuleType) -> None:
    made = {*script.DRAWN, *script.OF_DATA, *script.SHOTS, "ratios"}  # that: readme_pictures.py
    assert made == {path.stem for path in PICTURES.glob("*.png")}
