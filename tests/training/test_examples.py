"""Every configuration that the project ships can be read, and the demo's is an example too."""

import tomllib
from importlib import resources
from pathlib import Path

import pytest

from headloom.training.config import load_config

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.toml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_a_valid_configuration(path: Path) -> None:
    config = load_config(path)
    assert isinstance(config.model, config.task.models)
    assert any(digit in config.model.summary() for digit in "123456789")


def test_the_dates_example_is_what_the_demo_trains() -> None:
    demo = (resources.files("headloom.training") / "demo.toml").read_text("utf-8")
    example = next(path for path in EXAMPLES if path.stem == "dates").read_text("utf-8")
    assert tomllib.loads(example) == tomllib.loads(demo)
