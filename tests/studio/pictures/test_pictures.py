from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.image import AxesImage, imread
from matplotlib.text import Text

import headloom
from headloom.studio.pictures import alignment, figure_of, heads, save_picture, snapshots
from headloom.studio.pictures.palette import palette


def images(figure) -> list[AxesImage]:
    return [image for axes in figure_of(figure).axes for image in axes.images]


def texts(figure) -> list[Text]:
    return [text for text in figure_of(figure).findobj(Text) if text.get_text()]


def words(figure) -> set[str]:
    return {text.get_text() for text in texts(figure)}


def colour_of(figure, text: str) -> str:
    return next(to_hex(t.get_color()) for t in texts(figure) if t.get_text().startswith(text))


def test_alignment_has_queries_as_rows_and_keys_as_columns(pair_trace) -> None:
    layer = pair_trace.layer("cross", 0)
    figure = axes = alignment(layer, 2)
    (image,) = axes.images
    assert np.allclose(image.get_array(), layer.graph.to_dense()[2])
    assert [label.get_text() for label in axes.get_yticklabels()] == layer.query_tokens
    assert [label.get_text() for label in axes.get_xticklabels()] == layer.key_tokens
    # Row 0 is at the top, and so are the names of the columns.
    low, high = axes.get_ylim()
    assert low > high
    assert axes.xaxis.get_tick_params()["labeltop"]
    assert "cross layer 0, head 2" in words(figure)
    assert colour_of(figure, "← queries") == palette().query
    assert colour_of(figure, "keys") == palette().key


def test_alignment_of_all_heads_is_their_mean(pair_trace) -> None:
    layer = pair_trace.layer("cross", 0)
    expected = layer.graph.to_dense().mean(0)
    for what in (layer, layer.graph, layer.graph.to_dense(), layer.graph.to_dense().numpy()):
        assert np.allclose(images(alignment(what))[0].get_array(), expected, atol=1e-6)
    assert "cross layer 0, mean of 4 heads" in words(alignment(layer))
    assert "← queries (just read or written)" in words(alignment(layer))
    # Nothing is written by an encoder.
    assert "← queries" in words(alignment(pair_trace.layer("encoder", 0)))


def test_links_are_outlined_and_seconds_stay_on_a_long_axis() -> None:
    weights = np.full((3, 4), 0.25)
    axes = alignment(weights, links=[(3, 0), (1, 2)])
    # Centres, as columns and rows.
    boxes = [patch.get_bbox() for patch in axes.patches if patch.get_gid() != "frame"]
    assert [((b.x0 + b.x1) / 2, (b.y0 + b.y1) / 2) for b in boxes] == [(3, 0), (1, 2)]
    assert {(b.width, b.height) for b in boxes} == {(1, 1)}
    seconds = [f"{place / 50:.2f} s" for place in range(500)]
    axes = alignment(np.full((2, 500), 1 / 500), key_tokens=seconds)
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == [seconds[int(place)] for place in axes.get_xticks()]
    assert labels[:2] == ["0.00 s", "1.00 s"]


def test_alignment_without_names_shows_positions() -> None:
    for size, places in ((3, [0, 1, 2]), (700, [*range(0, 700, 60)])):
        axes = alignment(np.eye(size))
        assert [label.get_text() for label in axes.get_yticklabels()] == [*map(str, places)]


@pytest.mark.parametrize(("length", "least"), [(10, 9.0), (30, 8.0), (60, 5.5)])
def test_token_labels_are_readable_and_apart(make_trace, length, least) -> None:
    layer = make_trace([f"word{i}" for i in range(length)]).layers[0]
    axes = alignment(layer, 0)
    figure = axes.figure
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    labels = axes.get_yticklabels()
    assert labels[0].get_fontsize() >= least
    boxes = [label.get_window_extent(renderer) for label in labels]
    for above, below in pairwise(boxes):
        assert above.y0 >= below.y1 - 1
    assert all(box.x0 >= 0 for box in boxes)
    top = max(label.get_window_extent(renderer).y1 for label in axes.get_xticklabels())
    assert top <= figure.bbox.height


def test_heads_shows_each_head_once_kinds_apart(pair_trace) -> None:
    figure = heads(pair_trace)
    tiles = images(figure)
    assert len(tiles) == 12
    for number, layer in enumerate(pair_trace.layers):
        for head in range(4):
            assert np.allclose(tiles[4 * number + head].get_array(), layer.graph.to_dense()[head])
    shown = words(figure)
    assert {"Encoder: the source looks at itself", "Cross: the target looks at the source"} <= shown
    assert "12 heads · 7 source tokens and 4 target tokens" in shown
    # Layers are rows, heads columns, the first at the top left.
    places = [tile.axes.get_position() for tile in tiles]
    assert places[0].x0 < places[1].x0
    assert places[0].y0 == places[1].y0 > places[4].y0 > places[8].y0


def test_history_draws_the_first_and_the_last_on_one_scale() -> None:
    steps = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256]
    matrices = [torch.eye(4) * (step - 100) for step in steps]
    figure = snapshots(
        steps,
        matrices,
        {
            "norm": [(step, float(m.norm())) for step, m in zip(steps, matrices, strict=True)],
            "loss": [(1, 3.0), (2, 2.0), (3, 1.0)],
        },
        shown=4,
    )
    shown, moved = images(figure)[:4], images(figure)[4:]
    # Below each snapshot of a signed matrix, how far it is from the first.
    assert len(moved) == 4
    assert not moved[0].get_array().any()
    assert np.allclose(moved[-1].get_array(), matrices[-1] - matrices[0])
    assert np.allclose(shown[0].get_array(), matrices[0])
    assert np.allclose(shown[-1].get_array(), matrices[-1])
    assert len({(image.norm.vmin, image.norm.vmax) for image in shown}) == 1
    assert shown[0].norm.vmin == -shown[0].norm.vmax
    assert {"step 0: random", "step 256", "norm", "loss", "3 → 1"} <= words(figure)
    assert "training step, logarithmic" in words(figure)
    weights = snapshots([0, 1], [np.full((2, 2), 0.5)] * 2)
    assert images(weights)[0].norm.vmax == 1


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_hostile_tokens_are_drawn_without_a_warning(
    make_trace, hostile_tokens, tmp_path, theme
) -> None:
    trace = make_trace(hostile_tokens)
    figures = (
        alignment(trace.layers[0], 0, theme=theme),
        heads(trace, title="".join(hostile_tokens)[:60], theme=theme),
        snapshots([0, 1], [np.eye(2)] * 2, {"$x$\n\x00": [(0, 1)]}, title="月$\x01", theme=theme),
    )
    for number, figure in enumerate(figures):
        save_picture(figure, tmp_path / f"{number}.png", dpi=60)
        save_picture(figure, tmp_path / f"{number}.svg")
    labels = [label.get_text() for label in figures[0].get_yticklabels()]
    assert "‹202E›gnp.exe" in labels
    assert "∅" in labels


def test_each_kind_of_file_and_the_same_bytes_twice(pair_trace, tmp_path) -> None:
    layer = pair_trace.layers[0]
    for suffix, start in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        for name in ("a", "b"):
            save_picture(alignment(layer, 0), tmp_path / f"{name}.{suffix}")
        first, second = ((tmp_path / f"{name}.{suffix}").read_bytes() for name in ("a", "b"))
        assert first.startswith(start)
        assert first == second
    assert ">#27</text>" in (tmp_path / "a.svg").read_text("utf-8")  # text stays text
    ground = imread(tmp_path / "a.png")[0, 0, :3]
    assert np.allclose(ground, 1)


def test_wrong_requests(pair_trace, tmp_path) -> None:
    layer = pair_trace.layers[0]
    with pytest.raises(headloom.InputError, match="head 4; the layer has heads 0 to 3"):
        alignment(layer, 4)
    with pytest.raises(headloom.InputError, match="2 query tokens for 7 query"):
        alignment(layer, query_tokens=["a", "b"])
    with pytest.raises(headloom.InputError, match='expected one of "light", "dark"'):
        heads(pair_trace, theme="blue")
    with pytest.raises(headloom.InputError, match="2 steps for 1 matrices"):
        snapshots([0, 1], [np.eye(2)])
    with pytest.raises(headloom.InputError, match="written as"):
        save_picture(alignment(layer), tmp_path / "a.bmp")
    with pytest.raises(headloom.DataError, match="cannot write"):
        save_picture(alignment(layer), tmp_path / "missing" / "a.png")
    assert not list(tmp_path.iterdir())
