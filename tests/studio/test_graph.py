"""A head, or a layer's mean, as a graph: what is drawn, what it holds, and what is not shown."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
import tracemalloc
import urllib.request
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.slow import slow
from tests.studio.test_accessibility import findings
from tests.studio.test_layout import CUT
from tests.studio.windows import until, windows

import headloom
from headloom.analysis.dense_layer import layer_of_weights
from headloom.api.trace import Trace
from headloom.formats.terms import Terms
from headloom.formats.trace import LayerInMemory, TraceLayer
from headloom.mechanism.graph import AttentionGraph
from headloom.studio.arrays import layer_arrays
from headloom.studio.page import collect
from headloom.studio.serving import Viewer
from headloom.studio.strongest import MOST, strongest_edges

WORDS = [
    "the",
    "animal",
    "did",
    "not",
    "cross",
    "the",
    "street",
    "because",
    "it",
    "was",
    "too",
    "tired",
]
#: As lists have them: with its position a word that stands twice.
NAMES = [f"{word} ({n})" if WORDS.count(word) > 1 else word for n, word in enumerate(WORDS)]


def cells_of(row: str) -> list[str]:
    """The cells of a row of a table, as text."""
    return [" ".join(cell.split()) for cell in row.split("\t")]


#: How many pixels of the edges' canvas are painted.
PAINTED = """() => {
    const canvas = document.querySelector(".graph-sheet canvas");
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let count = 0;
    for (let n = 3; n < data.length; n += 4) count += data[n] > 40;
    return count;
}"""


def weights_of(seed: int, length: int, causal: bool, heads: int = 3) -> np.ndarray[Any, Any]:
    scores = np.random.default_rng(seed).normal(0, 2, (heads, length, length))
    if causal:
        scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def dense_trace(weights: np.ndarray[Any, Any], causal: bool, keep: int | None = None) -> Trace:
    mask = "causal" if causal else "all"
    tokens = WORDS[: weights.shape[1]]
    layer = layer_of_weights(torch.from_numpy(weights), tokens, mask=mask, keep=keep)
    layer = TraceLayer(**{**vars(layer), "mask": mask})
    return Trace({"tokens": tokens}, (layer,), {"name": "by hand"})


def fewest(weights: np.ndarray[Any, Any], share: float) -> tuple[int, float]:
    """How many of the strongest edges hold a share of the mass, and what they hold."""
    edges = np.sort(weights[weights > 0].ravel())[::-1]
    sums = edges.cumsum()
    count = int((sums < share * len(weights) - 1e-6).sum()) + 1
    return count, float(sums[count - 1] / len(weights))


def ready(page: Any) -> str:
    """What the panel says, once the graph is there."""
    page.locator('.stage.graph:not([aria-busy="true"])').wait_for()
    page.locator(".drawn-mass").wait_for()
    page.wait_for_timeout(150)
    return page.locator(".panel").inner_text().replace("\u00a0", " ")


def under_the_pointer(page: Any, token: int, other: int) -> str:
    """What is said of the edge between two tokens on a line, where its arc is furthest right."""
    ends = [page.locator(".node circle").nth(n).bounding_box() for n in (token, other)]
    middle = sum(box["y"] + box["height"] / 2 for box in ends) / 2
    right = page.locator(".graph-sheet").bounding_box()
    for x in range(int(ends[0]["x"]) + 24, int(right["x"] + right["width"]), 5):
        page.mouse.move(x, middle)
        page.wait_for_timeout(15)
        if page.locator(".tip").count():
            return page.locator(".tip").inner_text()
    return ""


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("share", [0.7, *slow(0.3, 1)])
def test_the_fewest_edges_that_hold_the_mass(studio: Any, causal: bool, share: float) -> None:
    weights = weights_of(3, 12, causal)
    page = studio.file(collect([dense_trace(weights, causal)]), f"#view=graph&head=1&mass={share}")
    said = ready(page)
    count, held = fewest(weights[1], share)
    total = 12 * 13 // 2 if causal else 144
    if share < 1:
        percent = f"{100 * held:.0f} %"
        assert f"{count} of {total} kept edges hold {percent} of the mass." in said
        assert f"Not drawn: {100 - 100 * held:.0f} %." in said
    else:
        assert re.search(rf"\d+ of {total} kept edges hold 100 % of the mass", said)
    assert ("none leads forward, a loop is" in said) == causal
    assert ("No pair is masked" in said) == (not causal)
    strongest = page.locator(".panel tbody tr").first.inner_text()
    query, key = np.unravel_index(weights[1].argmax(), (12, 12))
    assert cells_of(strongest) == [f"{NAMES[query]} → {NAMES[key]}", f"{weights[1].max():.4f}"]


def test_what_the_trace_did_not_keep_is_said_as_mass(studio: Any) -> None:
    weights = weights_of(5, 12, False)
    page = studio.file(collect([dense_trace(weights, False, keep=3)]), "#view=graph&mass=1")
    said = ready(page)
    kept = np.sort(weights[0], -1)[:, -3:].sum() / 12
    assert f"36 of 36 kept edges hold {100 * kept:.0f} % of the mass." in said
    assert f"These are all that there are. {100 - 100 * kept:.0f} % of the mass is on edges" in said
    # Of the mean, each weight is at least the mean of those that were kept.
    page.keyboard.press("a")
    page.locator(".panel h2", has_text="mean of 3 heads").wait_for()
    ready(page)
    least = np.sort(weights, -1)[..., -3:-2]
    mean = np.where(weights >= least, weights, 0).mean(0)
    strongest = page.locator(".panel tbody tr").first.inner_text().split()
    assert strongest[-1] == f"≥{np.floor(1e4 * mean.max()) / 1e4:.4f}"


@pytest.mark.parametrize("where", ["page", "server"])
def test_a_sink_is_on_no_edge(
    studio: Any, serving: Callable[..., Viewer], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A third of each row is a sink's: of what is on keys nothing was left out."""
    queries, keys = torch.randn(2, 2, 6, 8, generator=torch.Generator().manual_seed(0))
    sinks = torch.full((2,), math.log(3))
    trace = headloom.from_queries_keys(0 * queries, keys, sinks=sinks, tokens=WORDS[:6])
    if where == "server":
        monkeypatch.setattr("headloom.studio.collection.LOCAL", 2)
    opened = studio.file if where == "page" else lambda of, at: studio.served(serving(of), at)
    page = opened(collect([trace]), "#view=graph&mass=1")
    for of in ("H0", "mean of 2 heads"):
        page.locator(".panel h2", has_text=of).wait_for()
        said = ready(page)
        assert "36 of 36 kept edges hold 100 % of the mass. Not drawn: 0 %." in said
        assert "did not keep" not in said and "not in the mean" not in said and "≥" not in said
        page.keyboard.press("a")


def test_what_was_not_kept_is_without_what_a_sink_takes(studio: Any) -> None:
    """By the logits of sinks, which a trace knows without queries and keys too."""
    generator = torch.Generator().manual_seed(0)
    queries, keys = torch.randn(2, 1, 2, 12, 8, generator=generator)
    sinks = torch.tensor([1.0, 3.0])
    trace = headloom.from_queries_keys(
        queries, keys, sinks=sinks, keep=headloom.Top(3), tokens=WORDS
    )
    powers = (queries[0].double() @ keys[0].double().mT / 8**0.5).exp()
    weights = powers / (powers.sum(-1, keepdim=True) + sinks.double().exp()[:, None, None])
    kept, masses = weights.topk(3).values.sum(-1), weights.sum(-1)
    (known,) = trace.layers
    alone = dataclasses.replace(
        known, data=LayerInMemory(known.graph, known_terms=Terms(sinks=sinks, missing="not kept"))
    )
    for layer in (known, alone):
        arrays = layer_arrays(layer)
        np.testing.assert_allclose(arrays.masses, masses, rtol=1e-5)
        np.testing.assert_allclose(arrays.rest, masses - kept, rtol=1e-4)
        np.testing.assert_allclose(arrays.left_out, (masses - kept).mean(-1), rtol=1e-5)
        for head in (0, 1):
            found = strongest_edges(layer, arrays, head)
            assert found["mass"] == pytest.approx(float(masses[head].sum()), rel=1e-6)
        mean = strongest_edges(layer, arrays, None)
        assert mean["mass"] == pytest.approx(float(masses.sum() / 2), rel=1e-6)
        page = studio.file(
            collect([dataclasses.replace(trace, layers=(layer,))]), "#view=graph&head=1&mass=1"
        )
        share = 100 * float(kept[1].sum() / masses[1].sum())
        assert f"36 of 36 kept edges hold {share:.0f} % of the mass." in (said := ready(page))
        assert f" {100 - share:.0f} % of the mass is on edges that the trace did not keep." in said


def test_before_the_edges_are_there_a_line_says_so(
    studio: Any, serving: Callable[..., Viewer]
) -> None:
    viewer = serving(collect([dense_trace(weights_of(5, 12, False), False)]))
    page = studio.served(viewer)
    page.locator(".stage .tile").first.wait_for()
    waiting: list[Any] = []
    breaking: list[bool] = []
    page.route("**/edges/*", lambda r: r.abort() if breaking else waiting.append(r))
    page.keyboard.press("g")
    page.locator(".stage", has_text="Collecting the strongest edges").wait_for()
    assert page.locator(".node").count() == 0
    until(page, lambda: bool(waiting))  # the line may be there before the request
    # While its server is there, a page asks some times more.
    breaking.append(True)
    waiting[0].abort()
    page.get_by_role("heading", name="This cannot be shown").wait_for()
    assert page.get_by_text("server breaks off its answer to examples/0/").is_visible()
    # What failed there does not hide the other views.
    page.unroute("**/edges/*")
    page.keyboard.press("h")
    page.locator(".stage .tile").first.wait_for()
    page.keyboard.press("g")
    ready(page)
    assert page.locator(".node").count() == 12
    studio.problems[:] = [one for one in studio.problems if "ERR_FAILED" not in one]


def test_tokens_are_as_large_as_what_they_receive(studio: Any) -> None:
    weights = weights_of(7, 10, False)
    page = studio.file(collect([dense_trace(weights, False)]), "#view=graph&head=2")
    ready(page)
    sizes = page.locator(".node circle").evaluate_all(
        "all => all.map((of) => +of.getAttribute('r'))"
    )
    received = weights[2].sum(0)
    assert np.argsort(sizes).tolist() == np.argsort(received).tolist()
    areas = (np.array(sizes) - 1.8) ** 2
    assert areas / areas.max() == pytest.approx(received / received.max(), abs=1e-3)
    names = page.locator(".node").evaluate_all("all => all.map((of) => of.ariaLabel)")
    assert names[3] == f"{WORDS[3]}, 3, receives {received[3]:.2f}"


def test_a_hover_names_an_edge_and_a_click_its_neighbours(studio: Any) -> None:
    weights = weights_of(11, 12, True)
    page = studio.file(collect([dense_trace(weights, True)]), "#view=graph&layout=line&mass=0.05")
    ready(page)
    blank = page.evaluate(PAINTED)
    page.locator(".node text").nth(9).click()
    page.locator(".neighbours").wait_for()
    said = ready(page)
    row, column = weights[0][9], weights[0][:, 9]
    held = max(row.max(), column.max()) / (row.sum() + column.sum() - row[9])
    assert f"1 edge drawn, which holds {100 * held:.0f} % of the mass on its kept edges." in said
    assert f"It receives {column.sum():.2f} from all queries." in said
    rows = page.locator(".neighbours table").first.locator("tbody tr").all_inner_texts()
    order = np.argsort(-row)[:5]
    assert [cells_of(text)[:2] for text in rows[:5]] == [
        [NAMES[key], f"{row[key]:.4f}"] for key in order
    ]
    assert page.locator(".node.apart").count() > 5
    assert page.evaluate(PAINTED) != blank
    # At a twentieth of its mass the strongest edge at the token stands alone.
    ends = [(9, int(row.argmax())), (int(column.argmax()), 9)]
    query, key = max(ends, key=lambda one: weights[0][one])
    said = under_the_pointer(page, query, key)
    assert said == f"“{WORDS[query]}” → “{WORDS[key]}”: {weights[0][query, key]:.4f}"
    page.keyboard.press("Escape")
    page.locator(".neighbours").wait_for(state="detached")
    page.keyboard.press("Escape")
    page.locator(".stage.heads").wait_for()


@pytest.mark.parametrize("masked", [False, True])
def test_a_symmetric_score_gives_an_undirected_graph(studio: Any, masked: bool) -> None:
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randn(1, 8, 6, generator=generator)
    score = headloom.Bilinear(torch.randn(6, 6, generator=generator), symmetric=True)
    mask = headloom.causal() if masked else None
    _, graph = headloom.attend(tokens, tokens, tokens, score=score, mask=mask, keep=headloom.Top(3))
    assert graph.symmetric
    layer = TraceLayer(
        name="layer", kind="encoder", index=0, shape=(1, 8, 8), queries_from="tokens",
        keys_from="tokens", query_tokens=WORDS[:8], key_tokens=WORDS[:8], scale=1.0,
        data=LayerInMemory(graph), mask="causal" if masked else "all",
    )  # fmt: skip
    page = studio.file(collect([Trace({"tokens": WORDS[:8]}, (layer,))]), "#view=graph&mass=1")
    said = ready(page)
    if masked:
        assert "Directed: " in said and "The score is symmetric; the mask is not" in said
        return
    assert "Undirected: the trace says that the score is symmetric" in said
    A = score.matrix.double().numpy()
    x = tokens[0].double().numpy()
    scores = x @ ((A + A.T) / 2) @ x.T
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    kept = graph.keys[0].numpy()
    pairs = {tuple(sorted((i, int(j)))) for i in range(8) for j in kept[i]}
    both = {(i, j): weights[i, j] + (weights[j, i] if i != j else 0) for i, j in pairs}
    (i, j), _ = max(both.items(), key=lambda one: one[1])
    first = page.locator(".panel tbody tr").first.inner_text().split()
    if i == j:
        assert first[-1] == f"{weights[i, i]:.4f}"
    else:
        # The weight the other way is known by the score, kept or not.
        assert sorted(first[-2:]) == sorted([f"{weights[i, j]:.4f}", f"{weights[j, i]:.4f}"])
    assert f"{len(pairs)} of 24 kept edges hold {100 * sum(both.values()) / 8:.0f} %" in said


def test_keys_alone(studio: Any) -> None:
    weights = weights_of(13, 12, False)
    page = studio.file(collect([dense_trace(weights, False)]))
    page.locator(".stage .tile").first.wait_for()
    page.keyboard.press("g")
    ready(page)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.locator(".neighbours h2", has_text="animal").wait_for()
    assert (
        page.locator('.node[aria-selected="true"]').get_attribute("aria-label").startswith("animal")
    )
    page.keyboard.press("Escape")
    page.keyboard.press("PageDown")
    page.locator(".panel h2", has_text="H1").wait_for()
    page.keyboard.press("o")
    page.locator('.choice button[aria-checked="true"]', has_text="line").wait_for()
    few = page.evaluate(PAINTED)
    page.locator(".mass input").focus()
    page.keyboard.press("End")
    page.locator(".mass output", has_text="100").wait_for()
    ready(page)
    assert page.evaluate(PAINTED) > few * 1.2
    until(page, lambda: "mass=1" in page.url)


def test_a_server_and_a_page_say_the_same(studio: Any, serving: Callable[..., Viewer]) -> None:
    trace = dense_trace(weights_of(17, 12, True), True, keep=5)
    for address in ("#view=graph&head=2&mass=0.8", "#view=graph&mean=1&mass=0.8&query=7&lock=1"):
        page = studio.file(collect([trace]), address)
        served = studio.served(serving(collect([trace])), address)
        assert ready(page) == ready(served)


def test_two_sequences(studio: Any, pair_trace: Trace) -> None:
    page = studio.file(collect([pair_trace]), "#view=graph&layer=2&head=1&mass=0.9")
    said = ready(page)
    assert "from a token of the target to the one of the source" in said
    assert page.locator(".node").count() == 4 + 7
    page.locator(".node.key").nth(2).click()
    page.locator(".neighbours").wait_for()
    weights = pair_trace.layer("cross", 0).graph.dense()[1].numpy()
    assert f"It receives {weights[:, 2].sum():.2f}" in ready(page)


@pytest.mark.parametrize(
    "length", [*(pytest.param(n, marks=pytest.mark.slow) for n in (10, 60)), 200]
)
@pytest.mark.parametrize("form", ["", *slow("circle", "line")])
def test_labels_do_not_lie_on_each_other(
    studio: Any, make_trace: Callable[..., Trace], length: int, form: str
) -> None:
    tokens = [f"token{n}" for n in range(length)]
    page = studio.file(collect([make_trace(tokens, keep=4)]), f"#view=graph&layout={form}")
    ready(page)
    assert page.locator(".node").count() == length
    # The corners of each label as it is turned.
    boxes = page.locator(".node text").evaluate_all("""all => all.map((text) => {
        const { x, y, width, height } = text.getBBox(), matrix = text.getScreenCTM();
        return [[0, 0], [width, 0], [width, height], [0, height]].map(([across, down]) => {
            const at = new DOMPoint(x + across, y + down).matrixTransform(matrix);
            return [at.x, at.y];
        });
    })""")
    for one, other in itertools.pairwise(boxes):
        middles = [np.mean(box, 0) for box in (one, other)]
        assert np.hypot(*(middles[0] - middles[1])) > 9
    sheet = page.locator(".graph-sheet").bounding_box()
    corners = np.array(boxes).reshape(-1, 2)
    assert corners[:, 0].min() >= sheet["x"] - 1 and corners[:, 1].min() >= sheet["y"] - 1
    assert corners[:, 0].max() <= sheet["x"] + sheet["width"] + 1


@pytest.mark.slow
@windows(390, 720, 1440)
def test_for_every_eye_at_every_width(studio: Any, width: int, theme: str) -> None:
    """720 pixels are a window of 1,440 at a zoom of 200 %."""
    page = studio.file(collect([dense_trace(weights_of(3, 12, True), True)]), "", theme, width)
    views = {"graph": "#view=graph", "a token": "#view=graph&query=8&lock=1&layout=line"}
    assert findings(page, views) == {}
    for address in views.values():
        page.evaluate("address => { location.hash = address; }", address)
        ready(page)
        assert page.evaluate(CUT) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_131072_tokens(studio: Any, serving: Callable[..., Viewer]) -> None:
    length, heads, places = 131_072, 2, 8
    generator = torch.Generator().manual_seed(1)
    keys = torch.randint(0, length, (heads, length, places), generator=generator)
    weights = (
        torch.rand(heads, length, places, generator=generator).sort(-1, descending=True).values
    )
    weights = weights / 8
    ones = torch.ones(heads, length)
    graph = AttentionGraph(
        keys,
        weights.log(),
        weights,
        ones * 0,
        ones,
        1 - weights.sum(-1),
        ones.long() * length,
        length,
    )
    names = [f"t{place}" for place in range(length)]
    layer = TraceLayer(
        name="layer", kind="encoder", index=0, shape=(heads, length, length), queries_from="tokens",
        keys_from="tokens", query_tokens=names, key_tokens=names, scale=1.0,
        data=LayerInMemory(graph), mask="all",
    )  # fmt: skip
    trace = Trace({"tokens": names}, (layer,))
    viewer = serving(collect([trace]))
    for path in ("heads/1/strongest", "strongest"):
        tracemalloc.start()
        url = f"{viewer.address}api/examples/0/layers/0/{path}"
        with urllib.request.urlopen(url) as answer:
            content = answer.read()
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        # A full matrix has 64 GiB; the kept edges alone 16 MiB.
        assert len(content) < 400_000 and most < 300 * 2**20
        found = json.loads(content)
        mean = "heads" not in path
        numbers = weights.numpy() / (heads if mean else 1)
        assert found["mass"] == pytest.approx(length) and len(found["weights"]) == MOST
        of = numbers if mean else numbers[1:]
        assert found["kept"] == pytest.approx(float(of.sum(dtype=np.float64)), rel=1e-5)
        if not mean:
            expected = np.sort(of.ravel())[::-1][:MOST]
            assert found["weights"] == pytest.approx(expected.tolist(), rel=1e-6)
            row, key = found["queries"][0], found["keys"][0]
            assert key in keys[1, row].tolist()
    page = studio.served(viewer, "#view=graph&head=1&mass=0.7")
    said = ready(page)
    assert re.search(r"There is no room for more: .* Not drawn: 100 %|Not drawn: 99\.\d %", said)
    assert re.search(r"between \d+ of 131,072 tokens hold 0\.\d+ % of the mass", said)
    assert page.locator(".node").count() <= 300
    page.locator(".node").nth(5).click()
    page.locator(".neighbours table").first.wait_for()
    token = int(
        page.locator('.node[aria-selected="true"]').get_attribute("aria-label").split(", ")[1]
    )
    first = page.locator(".neighbours tbody tr").first.inner_text().split()
    assert first[1] == f"{float(weights[1, token, 0]):.4f}"


def test_the_strongest_edges_of_part_of_the_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ties at the end go to the first rows and keys, however many rows are read at once."""
    weights = torch.from_numpy(np.round(weights_of(19, 12, False), 1))
    layer = layer_of_weights(weights)
    arrays = layer_arrays(layer)
    whole = strongest_edges(layer, arrays, None)
    monkeypatch.setattr("headloom.studio.means._PART", 1)
    assert strongest_edges(layer, arrays, None) == whole
    monkeypatch.setattr("headloom.studio.strongest.MOST", 20)
    some = strongest_edges(layer, arrays, None)
    assert [some[name] for name in ("queries", "keys")] == [
        whole[name][:20] for name in ("queries", "keys")
    ]


def test_weights_that_are_not_numbers_are_missing(studio: Any) -> None:
    weights = weights_of(23, 12, False)
    weights[:, 4] = np.nan
    page = studio.file(collect([dense_trace(weights, False)]), "#view=graph&mean=1&mass=1")
    assert "132 of 132 kept edges hold 92 % of the mass." in ready(page)
    assert "8.3 % of the mass is on edges" in ready(page)
    page.keyboard.press("a")
    page.locator(".panel h2", has_text="H0").wait_for()
    assert "132 of 132 kept edges hold 92 % of the mass." in ready(page)
