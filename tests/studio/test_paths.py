"""A token through all layers, and the strongest paths between two: against NumPy, by hand."""

from __future__ import annotations

import itertools
import json
import math
import tracemalloc
import urllib.request
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import networkx
import numpy as np
import pytest
import torch
from tests.studio.printed import SVG, check_print, exported, texts, words
from tests.studio.test_accessibility import findings
from tests.studio.test_graph import NAMES, WORDS, cells_of, dense_trace, weights_of
from tests.studio.test_layout import CUT
from tests.studio.windows import windows

import headloom
from headloom.api.trace import Trace
from headloom.formats.trace import LayerInMemory, TraceLayer
from headloom.mechanism.graph import AttentionGraph
from headloom.studio.page import collect
from headloom.studio.serving import Viewer

Array = np.ndarray[Any, Any]
LAYERS, TOKENS = 3, 7
#: How many pixels of the diagram have a colour, but for rounding; and a colour as the browser
#: writes it.
COLOURS = """(colour) => {
    const canvas = document.querySelector(".stage.paths canvas");
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const wanted = colour.match(/\\d+/g).map(Number);
    let count = 0;
    for (let n = 0; n < data.length; n += 4)
        count += data[n + 3] === 255 && wanted.every((of, c) => Math.abs(of - data[n + c]) < 3);
    return count;
}"""
AS_RGB = """(colour) => {
    const one = document.createElement("i");
    one.style.color = colour;
    return document.body.appendChild(one) && getComputedStyle(one).color;
}"""
#: How many pixels of the diagram are painted.
PAINTED = """() => {
    const canvas = document.querySelector(".stage.paths canvas");
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let count = 0;
    for (let n = 3; n < data.length; n += 4) count += data[n] > 40;
    return count;
}"""


def stacked(all_weights: list[Array], causal: bool, keep: int | None = None) -> Trace:
    """A trace of several layers of weights."""
    traces = [dense_trace(weights, causal, keep) for weights in all_weights]
    layers = [
        TraceLayer(**{**vars(one.layers[0]), "name": f"layers.{n}", "index": n})
        for n, one in enumerate(traces)
    ]
    return Trace({"tokens": traces[0].tokens}, tuple(layers), {"name": "by hand"})


def steps_of(all_weights: list[Array]) -> list[Array]:
    return [np.eye(weights.shape[1]) / 2 + weights.mean(0) / 2 for weights in all_weights]


def every_path(steps: list[Array], start: int, end: int) -> list[tuple[float, tuple[int, ...]]]:
    """Each path from an output to an input with its product, the largest first."""
    found = []
    for between in itertools.product(range(len(steps[0])), repeat=len(steps) - 1):
        path = (start, *between, end)
        ends = zip(steps[::-1], itertools.pairwise(path), strict=True)
        found.append((float(np.prod([step[pair] for step, pair in ends])), path))
    return sorted(found, reverse=True)


def three_digits(number: float) -> str:
    """As the page writes it."""
    if number >= 1e-3:
        return f"{float(f'{number:.3g}'):#.3g}".rstrip(".")
    return f"{number:.1e}".replace("e-0", "e-").replace("-", "−")


def ready(page: Any) -> str:
    page.locator('.stage.paths:not([aria-busy="true"])').wait_for()
    page.locator(".carried").wait_for()
    page.wait_for_timeout(150)
    return page.locator(".panel").inner_text().replace("\u00a0", " ")


def products(page: Any) -> list[str]:
    page.locator(".strongest .path").first.wait_for()
    return page.locator(".strongest .product").all_inner_texts()


def written(path: tuple[int, ...]) -> str:
    """A path as the panel has it: each token with the levels at which the path stays there."""
    levels = [*(f"L{n}" for n in reversed(range(len(path) - 1))), "input"]
    parts = []
    for place, group in itertools.groupby(zip(path, levels, strict=True), key=lambda one: one[0]):
        names = [name for _, name in group]
        span = names[0] if len(names) == 1 else f"{names[0]}–{names[-1]}"
        parts.append(f"{NAMES[place]} {span}")
    return " ← ".join(parts)


@pytest.mark.parametrize("causal", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("where", ["page", "server"])
def test_two_clicks_give_the_strongest_paths(
    studio: Any, serving: Callable[..., Viewer], monkeypatch: pytest.MonkeyPatch, causal: bool,
    where: str,
) -> None:  # fmt: skip
    weights = [weights_of(seed, 12, causal)[:, :TOKENS, :TOKENS] for seed in range(LAYERS)]
    weights = [of / of.sum(-1, keepdims=True) for of in weights]
    if where == "server":  # as of a text that is too long for the page
        monkeypatch.setattr("headloom.studio.collection.LOCAL", 2)
    collection = collect([stacked(weights, causal)])
    page = (
        studio.file(collection, "#view=paths&output=3")
        if where == "page"
        else studio.served(serving(collection), "#view=paths&output=3")
    )
    ready(page)
    start, end = 5, 1
    page.locator(".outputs .end").nth(start).click()
    page.locator(".panel h2", has_text=f"“{NAMES[start]}”").wait_for()
    said = ready(page)
    steps = steps_of(weights)
    rollout = steps[2] @ steps[1] @ steps[0]
    order = np.argsort(-rollout[start])
    rows = page.locator(".panel tbody tr").all_inner_texts()
    count = int((rollout[start] > 0).sum())
    assert [cells_of(row) for row in rows] == [
        [NAMES[place], three_digits(rollout[start, place])] for place in order[:count]
    ]
    assert "the residual connection" in said
    page.locator(".inputs .end").nth(end).click()
    expected = every_path(steps, start, end)[:8]
    assert products(page) == [three_digits(product) for product, _ in expected]
    found = page.locator(".strongest .steps").all_inner_texts()
    assert [" ".join(text.split()) for text in found] == [written(path) for _, path in expected]
    said = ready(page)
    assert f"Rollout, all paths together: {three_digits(rollout[start, end])}." in said
    share = sum(product for product, _ in expected) / rollout[start, end]
    assert f"The 8 hold {100 * share:.0f} % of it." in said
    assert "output=5" in page.url and "input=1" in page.url


def test_the_largest_flow_is_that_of_networkx(studio: Any, serving: Callable[..., Viewer]) -> None:
    weights = [weights_of(seed, 6, False) for seed in range(LAYERS)]
    network = networkx.DiGraph()
    for level, step in enumerate(steps_of(weights), 1):
        for i, j in itertools.product(range(6), range(6)):
            network.add_edge((level, i), (level - 1, j), capacity=float(step[i, j]))
    expected, _ = networkx.maximum_flow(network, (LAYERS, 4), (0, 2))
    collection = collect([stacked(weights, False)])
    address = "#view=paths&output=4&input=2"
    page = studio.served(serving(collection), address)
    page.locator(".rollout", has_text=f"Largest flow: {three_digits(expected)}.").wait_for()
    page = studio.file(collection, address)
    page.locator(".rollout", has_text="The largest flow needs a server: headloom view.").wait_for()


def test_between_two_sequences(studio: Any, pair_trace: Trace) -> None:
    encoder, decoder, cross = (
        layer.graph.dense().double().mean(0).numpy() for layer in pair_trace.layers
    )
    # 7 of the source, then 4 of the target; the encoder changes the source alone.
    steps = []
    for own, other, mean in ((0, 0, encoder), (7, 7, decoder), (7, 0, cross)):
        step = np.eye(11)
        rows = slice(own, own + len(mean))
        step[rows] *= 0.5
        step[rows, other : other + mean.shape[1]] += mean / 2
        steps.append(step)
    page = studio.file(collect([pair_trace]), "#view=paths&output=3&input=6")
    expected = every_path(steps, 7 + 3, 6)[:8]
    assert products(page) == [three_digits(product) for product, _ in expected if product > 0]
    assert page.locator(".inputs .end").count() == 7
    assert page.locator(".outputs .end").count() == 4
    assert page.locator(".level").all_inner_texts() == ["input", "E0", "D0", "C0"]
    page.locator(".stage select").select_option("decoder")
    ready(page)
    assert page.locator(".both").count() == page.locator(".own .end").count() == 0
    assert page.locator(".inputs .end").count() == page.locator(".outputs .end").count() == 4


@pytest.mark.parametrize("where", ["page", "server"])
def test_what_the_target_holds_itself_is_listed(
    studio: Any, serving: Callable[..., Viewer], monkeypatch: pytest.MonkeyPatch,
    pair_trace: Trace, where: str, tmp_path: Any,
) -> None:  # fmt: skip
    encoder, decoder, cross = (
        layer.graph.dense().double().mean(0).numpy() for layer in pair_trace.layers
    )
    # Half comes past the cross layer; of that, half past the decoder's.
    itself = (np.eye(4) / 2 + decoder / 2)[3] / 2
    source = cross[3] @ (np.eye(7) / 2 + encoder / 2) / 2
    if where == "server":
        monkeypatch.setattr("headloom.studio.collection.LOCAL", 2)
    collection = collect([pair_trace])
    link = "#view=paths&kind=cross&output=3"
    page = (
        studio.file(collection, link)
        if where == "page"
        else studio.served(serving(collection), link)
    )
    ready(page)
    rows = [row.split() for row in page.locator(".panel tbody tr").all_inner_texts()]
    held = [*zip(pair_trace.sequences["source"], source, strict=True),
            *zip(pair_trace.sequences["target"], itself, strict=True)]  # fmt: skip
    held = sorted((pair for pair in held if pair[1] > 0), key=lambda pair: -pair[1])
    assert [float(row[-1]) for row in rows] == pytest.approx([s for _, s in held], rel=5e-3)
    assert [row[0] for row in rows] == [token for token, _ in held]
    both = "In all 0.500 of it is from the source, 0.500 from the target itself."
    assert page.locator(".both").inner_text() == both
    labels = pair_trace.sequences["target"]
    assert page.locator(".own .end").all_inner_texts() == labels
    found = texts(exported(page, tmp_path, "svg"))
    assert all(found.count(label) >= 2 for label in labels)
    assert both in " ".join(found)


def test_kept_edges_give_bounds(studio: Any) -> None:
    weights = [weights_of(seed, 8, False) for seed in range(LAYERS)]
    page = studio.file(
        collect([stacked(weights, False, keep=3)]), "#view=paths&output=6&input=2&mass=1"
    )
    products(page)
    said = ready(page)
    rollout = np.linalg.multi_dot(steps_of(weights)[::-1])
    least, most = (
        float(text) for text in said.split("all paths together: ")[1].split(". ")[0].split(" to ")
    )
    assert least < rollout[6, 2] < most
    assert "of the token comes along edges that are not known here." in said
    kept = [np.where(of >= np.sort(of, -1)[..., -3:-2], of, 0) for of in weights]
    lower = [np.eye(8) / 2 + of.mean(0) / 2 for of in kept]
    assert least == pytest.approx(np.linalg.multi_dot(lower[::-1])[6, 2], rel=5e-3)


@pytest.mark.parametrize("where", ["page", pytest.param("server", marks=pytest.mark.slow)])
@pytest.mark.parametrize("what", ["a query without keys", "a sink"])
def test_what_ends_on_its_way_is_not_unknown(
    studio: Any, serving: Callable[..., Viewer], monkeypatch: pytest.MonkeyPatch, where: str,
    what: str,
) -> None:  # fmt: skip
    queries, keys = torch.randn(2, 2, 2, 6, 8, generator=torch.Generator().manual_seed(0))
    if what == "a sink":
        # Half of each row: as much as its six keys together.
        sinks = [torch.full((2,), math.log(6))] * 2
        trace = headloom.from_queries_keys(0 * queries, keys, sinks=sinks, tokens=WORDS[:6])
        # Both halves of 1/2: 1/2 that stays, 1/24 of what a row takes.
        rollout, ends = (1 / 2 + 1 / 24) ** 2 + 5 / 24**2, "44 %"
    else:
        mask = torch.ones(6, 6, dtype=torch.bool)
        mask[4] = False
        trace = headloom.from_queries_keys(queries, keys, mask=mask, tokens=WORDS[:6])
        rollout, ends = 0.25, "75 %"
    if where == "server":
        monkeypatch.setattr("headloom.studio.collection.LOCAL", 2)
    collection, link = collect([trace]), "#view=paths&output=4&input=4"
    opened = studio.file if where == "page" else lambda of, at: studio.served(serving(of), at)
    page = opened(collection, link)
    products(page)
    said = ready(page)
    assert f"Rollout, all paths together: {rollout:.3f}. " in said
    assert f"{ends} of the token ends on its way" in said
    assert "not known here" not in said
    page.goto(page.url.replace("&input=4", ""))
    row = page.locator(".panel tbody tr", has_text=WORDS[4])
    assert row.inner_text().split()[-1] == f"{rollout:.3f}"


def test_keys_a_path_alone_and_a_figure(studio: Any, tmp_path: Any) -> None:
    weights = [weights_of(seed, 12, True) for seed in range(LAYERS)]
    page = studio.file(collect([stacked(weights, True)]))
    page.locator(".stage .tile").first.wait_for()
    page.keyboard.press("f")
    ready(page)  # the last token
    assert page.locator('.outputs [aria-selected="true"]').inner_text() == WORDS[-1]
    few = page.evaluate(PAINTED)
    for _ in range(6):
        page.keyboard.press("+")
    ready(page)
    assert page.evaluate(PAINTED) > few
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.locator(".between h2", has_text=f"“{WORDS[1]}”").wait_for()
    all_paths = (products(page), page.evaluate(PAINTED))
    page.keyboard.press("2")
    page.locator('.path[aria-pressed="true"]').wait_for()
    page.wait_for_timeout(100)
    assert page.locator(".path").nth(1).get_attribute("aria-pressed") == "true"
    assert page.evaluate(PAINTED) != all_paths[1]
    # In the colour that its line in the panel has.
    colour = (
        page.locator(".path .strip").nth(1).evaluate("e => getComputedStyle(e).backgroundColor")
    )
    assert page.evaluate(COLOURS, colour) > 200
    first = page.locator(".path .strip").first.evaluate("e => getComputedStyle(e).backgroundColor")
    assert page.evaluate(COLOURS, first) == 0
    path = exported(page, tmp_path, "svg")
    strokes = {
        page.evaluate(AS_RGB, of.get("stroke")) for of in ElementTree.parse(path).iter(f"{SVG}path")
    }
    assert colour in strokes and first not in strokes
    found = texts(path)
    assert {"input", "L0", "L2", WORDS[10], WORDS[1]} <= set(found)
    assert f"Path 2 alone: product {products(page)[1]}" in words(path)
    # The address holds which it is.
    assert "path=1" in page.url
    page.reload()
    page.locator('.path[aria-pressed="true"]').wait_for()
    assert page.locator(".path").nth(1).get_attribute("aria-pressed") == "true"
    page.keyboard.press("ArrowRight")
    page.locator(".between h2", has_text=f"“{WORDS[2]}”").wait_for()
    products(page)
    assert page.locator('.path[aria-pressed="true"]').count() == 0
    page.keyboard.press("Escape")
    page.locator(".between").wait_for(state="detached")
    page.keyboard.press("Escape")
    page.locator(".stage.heads").wait_for()


def test_a_hover_names_what_flows(studio: Any) -> None:
    weights = [weights_of(seed, 12, True) for seed in range(LAYERS)]
    page = studio.file(collect([stacked(weights, True)]), "#view=paths&output=11&mass=1")
    ready(page)
    # From the output along its own row, by the residual connection: half, and half its weight.
    own = 0.5 + weights[2].mean(0)[11, 11] / 2
    box = page.locator('.outputs [aria-selected="true"]').bounding_box()
    sheet = page.locator(".stage.paths canvas").bounding_box()
    levels = page.locator(".level").evaluate_all(
        "all => all.map((of) => parseFloat(of.style.left))"
    )
    across = sheet["x"] + (0.85 * levels[-1] + 0.15 * levels[-2])
    page.mouse.move(across, box["y"] + box["height"] / 2)
    page.locator(".tip").wait_for()
    said = page.locator(".tip").inner_text().replace("\u00a0", " ")
    assert said == f"“tired” after L2 ← “tired”: {100 * own:.0f} % of the token"


def test_many_layers_in_a_narrow_window_keep_the_names_in_sight(studio: Any) -> None:
    weights = [weights_of(0, 12, True)] * 30
    page = studio.file(collect([stacked(weights, True)]), "#view=paths", width=1024)
    ready(page)
    room = page.locator(".graph-room")
    assert room.evaluate("e => [e.scrollLeft, e.scrollWidth > e.clientWidth + 50]") == [0, True]
    assert page.locator(".level").first.inner_text() == "input"
    for _ in range(2):
        box = room.bounding_box()
        for side in (".inputs", ".outputs"):
            names = page.locator(f"{side} .end").first.bounding_box()
            assert names["x"] >= box["x"] - 1
            assert names["x"] + names["width"] <= box["x"] + box["width"] + 1
        # What is clicked is the name, wherever the layers stand.
        page.locator(".inputs .end").nth(2).click()
        page.locator(".between h2", has_text=f"“{WORDS[2]}”").wait_for()
        page.keyboard.press("Escape")
        page.locator(".between").wait_for(state="detached")
        room.evaluate("e => { e.scrollLeft = 10_000; }")


@pytest.mark.parametrize("width", [85, 175])
def test_many_layers_at_the_width_that_is_printed(studio: Any, tmp_path: Any, width: int) -> None:
    weights = [weights_of(0, 12, True)] * 30
    page = studio.file(collect([stacked(weights, True)]), "#view=paths&output=11&input=3&path=1")
    products(page)
    ready(page)
    path = exported(page, tmp_path, "svg", str(width))
    check_print(studio, path, width)
    found = texts(path)
    assert {"input", "L29", *WORDS} <= set(found)
    # The path is whole: as many curves of its colour as layers.
    colour = (
        page.locator(".path .strip").nth(1).evaluate("e => getComputedStyle(e).backgroundColor")
    )
    strokes = [of.get("stroke") for of in ElementTree.parse(path).iter(f"{SVG}path")]
    assert [page.evaluate(AS_RGB, of) for of in strokes].count(colour) == 30


def test_equal_tokens_are_told_apart(studio: Any) -> None:
    weights = [weights_of(seed, 4, False) for seed in range(2)]
    trace = headloom.from_weights(
        torch.tensor(np.stack(weights)), tokens=["John", "gave", "John", "up"]
    )
    page = studio.file(collect([trace]), "#view=paths&output=2")
    ready(page)
    names = page.locator(".giver").all_inner_texts()
    assert sorted(names) == ["John (0)", "John (2)", "gave", "up"]
    assert page.locator(".panel h2").first.inner_text().startswith("“John (2)”")
    page.locator(".giver", has_text="John (0)").click()
    products(page)
    steps = page.locator(".strongest .steps").first.inner_text()
    assert "John (2) L1" in steps and "John (0)" in steps
    page.keyboard.press("g")
    page.locator(".pair-of").first.wait_for()
    ends = set(page.locator(".pair-of .token").all_inner_texts())
    assert ends == {"John (0)", "John (2)", "gave", "up"}


@pytest.mark.slow
@windows(390, 720, 1440)
def test_for_every_eye_at_every_width(studio: Any, width: int, theme: str) -> None:
    """720 pixels are a window of 1,440 at a zoom of 200 %."""
    weights = [weights_of(seed, 12, True) for seed in range(LAYERS)]
    page = studio.file(collect([stacked(weights, True)]), "", theme, width)
    views = {"a token": "#view=paths", "paths": "#view=paths&output=8&input=1"}
    assert findings(page, views) == {}
    for address in views.values():
        page.evaluate("address => { location.hash = address; }", address)
        ready(page)
        assert page.evaluate(CUT) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def answer(viewer: Viewer, path: str) -> tuple[bytes, int]:
    """The answer to a path, and the most memory that it took."""
    tracemalloc.start()
    with urllib.request.urlopen(f"{viewer.address}api/examples/0/{path}") as found:
        content = found.read()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return content, most


def random_layers(layers: int, heads: int, length: int, places: int) -> tuple[Trace, Array, Array]:
    """Layers that share one graph, of random keys; and its keys and weights."""
    generator = torch.Generator().manual_seed(1)
    keys = torch.stack(
        [
            torch.randperm(length, generator=generator)[:places]
            for _ in range(heads * min(length, 64))
        ]
    ).view(heads, -1, places)
    keys = keys.repeat(1, -(-length // keys.shape[1]), 1)[:, :length]
    weights = torch.rand(heads, length, places, generator=generator) + 0.1
    weights = (weights / weights.sum(-1, keepdim=True)).sort(-1, descending=True).values
    nothing = torch.zeros(heads, length)
    graph = AttentionGraph(
        keys, weights.log(), weights, nothing, nothing + 1, nothing, nothing.long() + places, length
    )
    names = [f"t{place}" for place in range(length)]
    made = [
        TraceLayer(
            name=f"layers.{n}", kind="encoder", index=n, shape=(heads, length, length),
            queries_from="tokens", keys_from="tokens", query_tokens=names, key_tokens=names,
            scale=1.0, data=LayerInMemory(graph), mask=None,
        )
        for n in range(layers)
    ]  # fmt: skip
    return Trace({"tokens": names}, tuple(made)), keys.numpy(), weights.double().numpy()


@pytest.mark.slow
def test_131072_tokens(studio: Any, serving: Callable[..., Viewer]) -> None:
    length, heads, layers = 131_072, 2, 3
    trace, keys, weights = random_layers(layers, heads, length, 6)
    viewer = serving(collect([trace]))
    start = 100_000

    def row(node: int) -> dict[int, float]:
        """A_l of one row, by hand."""
        found = {node: 0.5}
        for head in range(heads):
            for key, weight in zip(keys[head, node], weights[head, node], strict=True):
                found[int(key)] = found.get(int(key), 0) + weight / heads / 2
        return found

    every: list[tuple[float, tuple[int, ...]]] = [(1.0, (start,))]
    for _ in range(layers):
        every = [
            (product * weight, (*path, node))
            for product, path in every
            for node, weight in row(path[-1]).items()
        ]
    # Of the input that most paths lead to, besides the token itself.
    totals: dict[int, float] = {}
    for product, path in every:
        totals[path[-1]] = totals.get(path[-1], 0) + product
    totals.pop(start)
    end = max(totals, key=totals.__getitem__)
    expected = sorted((product for product, path in every if path[-1] == end), reverse=True)

    content, most = answer(viewer, f"paths/encoder/{start}/{end}")
    # A matrix of all cells has 64 GiB; the levels of all positions 4 MiB.
    assert len(content) < 10_000 and most < 400 * 2**20
    found = json.loads(content)
    assert [path["product"] for path in found["paths"]] == pytest.approx(expected[:8], rel=1e-5)
    assert found["least"] == pytest.approx(totals[end], rel=1e-5)
    content, most = answer(viewer, f"paths/encoder/{start}")
    assert len(content) < 400_000 and most < 400 * 2**20
    assert len(json.loads(content)["tokens"]) <= 120
    content, _ = answer(viewer, f"flow/encoder/{start}/{end}")
    assert "headloom flow TRACE --token 100000" in json.loads(content)["why"]

    page = studio.served(viewer, f"#view=paths&output={start}&input={end}")
    assert products(page) == [three_digits(product) for product in expected[:8]]
    said = ready(page)
    assert "of 131,072 tokens are drawn; they carry" in said


@pytest.mark.slow
def test_80_layers_of_64_heads(studio: Any, serving: Callable[..., Viewer]) -> None:
    layers, heads, length = 80, 64, 32
    trace, keys, weights = random_layers(layers, heads, length, 8)
    dense = np.zeros((length, length))
    for head in range(heads):
        np.add.at(dense, (np.arange(length)[:, None], keys[head]), weights[head] / heads)
    step = np.eye(length) / 2 + dense / 2
    viewer = serving(collect([trace]))
    for path, size in (
        ("layers/79/mean", 300_000),
        ("layers/79/strongest", 300_000),
        ("paths/encoder/5", 400_000),
        ("paths/encoder/5/9", 60_000),
    ):
        content, most = answer(viewer, path)
        assert len(content) < size and most < 300 * 2**20, path
    page = studio.served(viewer, "#view=paths&output=5&input=9")
    found = products(page)
    # Max-product by hand, level by level: the strongest path of all.
    best = np.zeros(length)
    best[9] = 1
    for _ in range(layers):
        best = (step * best).max(-1)
    assert found[0] == three_digits(best[5])
    rollout = np.linalg.matrix_power(step, layers)
    assert f"Rollout, all paths together: {three_digits(rollout[5, 9])}." in ready(page)
