"""`.plot()` of every object that has it: into axes, by a width, as a notebook keeps it."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from tests.studio.pictures.test_eviction import made
from tests.studio.pictures.test_word_map import seen

import headloom
from headloom.analysis.alignment.align import Alignment
from headloom.analysis.alignment.words import AligningHead, WordWeights
from headloom.formats.history import LayerSnapshot, Snapshot, write_snapshot
from headloom.mechanism.spectra import matrix_measures
from headloom.studio.pictures import figure_of

Made = Callable[[str], Any]


@pytest.fixture(autouse=True)
def agg() -> Any:
    matplotlib.use("agg")
    yield
    assert len(pyplot.get_fignums()) <= 1
    pyplot.close("all")


@pytest.fixture
def objects(pair_trace: headloom.Trace, tmp_path) -> Made:
    """One object of each kind, by its name."""
    layer = pair_trace[0]
    for step in (0, 1, 4):
        matrices = {name: torch.full((4, 6, 2), step - 1.5) for name in ("W_Q", "W_K")}
        past = LayerSnapshot("one", "encoder", matrices, matrix_measures(matrices, {}), layer.graph,
                             layer.query_tokens, layer.key_tokens)  # fmt: skip
        write_snapshot(tmp_path, Snapshot(step, 3.0 - step / 2, [past]))
    words = WordWeights(torch.eye(2)[None], (), ["a", "b"], ["c", "d"])
    every = {
        "trace": pair_trace, "layer": layer, "head": layer[1], "graph": layer.graph,
        "matrix": layer.matrix, "eviction": made(), "history": headloom.History(tmp_path),
        "map": seen(torch.ones(4, 6, dtype=torch.float64)),
        "comparison": headloom.compare(pair_trace, pair_trace),
        "alignment": Alignment([[(0, 0)]], [AligningHead(0, 1)], [], "agreement", 0, None, 0,
                               [words]),
    }  # fmt: skip
    return every.__getitem__


NAMES = ("trace", "layer", "head", "graph", "matrix", "eviction", "history", "map", "comparison",
         "alignment")  # fmt: skip
#: Axes that a plot gives: how many, or None for one.
SHAPES = {"trace": (3, 4), "layer": (4,), "graph": (4,), "matrix": (4,), "eviction": (2,),
          "history": (4,)}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_into_axes_or_a_figure_of_a_width(objects: Made, name: str) -> None:
    thing = objects(name)
    _, (left, right) = pyplot.subplots(1, 2, figsize=(9, 4))
    inside = thing.plot(ax=left)
    # Nothing is drawn but into these axes, which are returned or hold what is.
    every = [inside] if isinstance(inside, Axes) else [axes for axes in np.ravel(inside) if axes]
    assert all(axes is left or axes in left.child_axes for axes in every)
    assert not right.get_children()[0].axes.has_data()
    assert len(pyplot.get_fignums()) == 1
    with pytest.raises(headloom.InputError, match="width is for a new figure"):
        thing.plot(ax=left, width=80)
    with pytest.raises(headloom.InputError, match=r"a ndarray; expected axes, as axes\[0\]"):
        thing.plot(ax=np.array([left, right]))
    pyplot.close("all")
    drawn = thing.plot(width=80)
    assert getattr(drawn, "shape", None) == SHAPES.get(name)
    figure = figure_of(drawn)
    assert pyplot.get_fignums() == [figure.number]
    assert figure.get_figwidth() * 25.4 == pytest.approx(80)


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_notebook_keeps_a_picture(objects: Made, name: str) -> None:
    thing = objects(name)
    data, _ = thing._repr_mimebundle_(include=None, exclude=None)
    assert data["text/plain"] == repr(thing)
    assert "data:image/png;base64," in data["text/html"] == thing._repr_html_()
    assert len(data["image/png"]) < 200_000
    assert np.asarray(Image.open(io.BytesIO(data["image/png"])).convert("L")).std() > 5
    assert not pyplot.get_fignums()


def test_a_head_is_the_callers_to_change(pair_trace: headloom.Trace, tmp_path: Path) -> None:
    _, axes = pyplot.subplots()
    assert pair_trace.plot(0, 2, ax=axes, cmap="viridis", vmax=0.5) is axes
    (image,) = axes.images
    assert (image.cmap.name, image.norm.vmax) == ("viridis", 0.5)
    np.testing.assert_allclose(image.get_array(), pair_trace[0, 2].weights, atol=1e-6)
    axes.set_title("mine")
    assert axes.get_title() == "mine"
    pair_trace[0, 2].draw(tmp_path / "head.png", width=60)
    with Image.open(tmp_path / "head.png") as file:
        assert file.width == pytest.approx(60 / 25.4 * 200, abs=1)
    with pytest.raises(headloom.InputError, match="head=1 without a layer"):
        pair_trace.plot(head=1)
    # What fails leaves no figure.
    pyplot.close("all")
    with pytest.raises(AttributeError, match="unexpected keyword"):
        pair_trace.plot(0, 2, colour="red")
    assert not pyplot.get_fignums()


def test_settings_are_heard(pair_trace: headloom.Trace) -> None:
    head, sizes = pair_trace[0, 1], {}
    for size in (5, 10):
        with matplotlib.rc_context({"font.size": size, "image.cmap": "Greys"}):
            axes = head.plot(ax=Figure())
        assert axes.images[0].cmap.name == "Greys"
        sizes[size] = axes.get_yticklabels()[0].get_fontsize(), axes.figure.get_figwidth()
    assert sizes[5] == pytest.approx([of / 2 for of in sizes[10]], rel=0.05)
    with matplotlib.rc_context({"figure.facecolor": "black", "text.color": "white"}):
        axes = head.plot(ax=Figure())
    assert axes.figure.get_facecolor() == (0, 0, 0, 1)
    assert axes.title.get_color() == "#ffffff"


def test_long_matrices_are_blocks_whose_rows_are_whole() -> None:
    matrix = headloom.AttentionMatrix(*torch.randn(2, 1, 2_100, 4))
    axes = matrix.plot(0, ax=Figure())
    cells = axes.images[0].get_array()
    assert cells.shape == (700, 700)
    # A cell is the mass of a row in 3 keys.
    np.testing.assert_allclose(cells.sum(1), 1, rtol=1e-4)
    assert [text.get_text() for text in axes.texts] == [
        "a dot: the mass of a row in 3 keys, mean of 3 rows"
    ]


def test_a_history_draws_what_is_named(objects: Made) -> None:
    past = objects("history")
    loss = past.plot("loss", ax=Figure())
    assert loss.lines[0].get_xydata().tolist() == [[0, 3], [1, 2.5], [4, 1]]
    assert len(past.plot("norm_W_Q", head=1, ax=Figure()).lines) == 1
    shown = past.plot("W_Q", layer="one", head=1, ax=Figure())
    assert shown.shape == (2, 3)
    assert [axes.images[0].get_array()[0, 0] for axes in shown[0]] == [-1.5, -0.5, 2.5]
    for named, message in (
        ({"name": "W_V"}, "has no W_V"), ({"name": "W_Z"}, "expected"), ({"head": 4}, "no head 4"),
        ({"layer": 1}, "no layer 1"),
    ):  # fmt: skip
        with pytest.raises(headloom.HeadloomError, match=message):
            past.plot(**named, ax=Figure())
