"""One head over many texts, in the server's answers and on the screen."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.studio.windows import ask, until

import headloom
from headloom.api.trace import Trace
from headloom.errors import DataError
from headloom.studio import corpus
from headloom.studio.page import collect
from headloom.studio.runs import open_collection
from headloom.studio.serving import Viewer

Serving = Callable[..., Viewer]
TEXTS, LENGTH = 30, 9
#: The text in which head 1 of layer 0 looks hardest from 6 at 4.
STRONGEST = 17


def text(number: int) -> Trace:
    random = np.random.default_rng(number)
    queries, keys = random.normal(size=(2, 2, 2, LENGTH, 8)).astype(np.float32) / 2
    if number == STRONGEST:
        queries[0, 1, 6] = keys[0, 1, 4] = 4
    tokens = [f"w{(number + place) % 12}" for place in range(LENGTH)]
    trace = headloom.from_queries_keys(queries, keys, tokens=tokens)
    assert isinstance(trace, Trace)
    return trace


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("corpus")
    for number in range(TEXTS):
        text(number).save(found / f"{number:03}.loom")
    return found


@pytest.fixture(scope="module")
def viewer(serving: Serving, folder: Path) -> Viewer:
    return serving(open_collection(folder))


def whole(viewer: Viewer, path: str) -> Any:
    for _ in range(2400):
        status, found = ask(viewer, path)
        assert status == 200
        if found["whole"]:
            return found
        assert found["read"] < found["taken"]
        time.sleep(0.05)
    raise AssertionError("never done")


def test_a_head_over_the_texts(viewer: Viewer) -> None:
    found = whole(viewer, "/api/corpus/0/layers/0/heads/1/all")
    assert (found["texts"], found["read"], found["failed"], found["others"]) == (TEXTS, TEXTS, 0, 0)
    first = found["exemplars"][0]
    assert (first["example"], first["query"], first["key"]) == (STRONGEST, 6, 4)
    tokens, start = first["pieces"]["both"]
    assert tokens[4 - start] == f"w{(STRONGEST + 4) % 12}"
    weights = [one["weight"] for one in found["exemplars"]]
    assert weights == sorted(weights, reverse=True) and len(weights) == 20
    dense = [text(number).layers[0].graph.to_dense()[1] for number in range(TEXTS)]
    assert weights[1] == pytest.approx(sorted(float(one.max()) for one in dense)[-2], abs=1e-6)
    same = [float(one.diagonal().mean()) for one in dense]
    assert found["spreads"]["same"]["mean"] == pytest.approx(sum(same) / TEXTS, rel=1e-5)
    assert sum(word[1] for word in found["words"]) == pytest.approx(1.0, abs=1e-5)
    without = whole(viewer, "/api/corpus/0/layers/0/heads/1/without-sinks")
    assert all(one["key"] > 0 for one in without["exemplars"])


def test_texts_are_read_while_somebody_asks(folder: Path) -> None:
    found = corpus.Corpus(open_collection(folder).examples)
    for read in (1, 2):
        result = found.head(0, 1, 0, sinks=True, wait=0)
        assert not result["whole"] and result["read"] == read
    result = found.head(0, 1, 0, sinks=True, wait=60)
    assert result["whole"] and result["read"] == TEXTS


def test_a_text_that_is_damaged_is_named(folder: Path, tmp_path: Path, make_trace: Any) -> None:
    examples = open_collection(folder).examples[:4]

    odd = tmp_path / "odd.loom"
    text(1).save(odd)
    collection = collect(
        [*(one.trace for one in examples), Trace.open(odd), make_trace(["a"], heads=3)]
    )
    (odd / "edges.parquet").write_bytes(b"x" * (odd / "edges.parquet").stat().st_size)
    found = corpus.Corpus(collection.examples)
    result = found.head(0, 0, 0, sinks=True, wait=60)
    assert result["failed"] == 1 and result["others"] == 1 and len(result["exemplars"]) == 4
    (problem,) = result["problems"]
    assert "this trace is damaged: edges.parquet" in problem and "\n" not in problem
    with pytest.raises(DataError):
        _ = collection.examples[4].trace.layers[0].data.graph


def test_on_the_screen(studio: Any, viewer: Viewer) -> None:
    page = studio.served(viewer, "#view=heads&layer=0&head=1")
    page.locator(".stage .tile").first.wait_for()
    page.keyboard.press("x")
    page.locator(".corpus[aria-busy=false] .exemplars li").first.wait_for()
    rows = page.locator(".exemplars li")
    assert rows.count() == 20
    best = text(STRONGEST).layers[0].graph.to_dense()[1]
    first = rows.first
    assert first.locator("strong").inner_text() == f"{float(best.max()):.4f}"
    assert first.locator(".query").inner_text() == f"w{(STRONGEST + 6) % 12}"
    assert first.locator(".key").inner_text() == f"w{(STRONGEST + 4) % 12}"
    assert f"{STRONGEST:03}" in first.inner_text()
    dense = [text(number).layers[0].graph.to_dense()[1] for number in range(TEXTS)]
    median = float(np.median([float(one.diagonal().mean()) for one in dense]))
    row = page.locator(".spreads tr", has=page.locator("button", has_text=re.compile("^same$")))
    assert float(row.locator(".number").inner_text()) == pytest.approx(median, rel=6e-3)
    words = page.locator(".words-table tbody tr")
    assert words.count() == 12
    first.locator("button").click()
    page.locator(".short-threads").wait_for()
    example = page.get_by_label("Example", exact=True).last
    until(page, lambda: example.input_value() == str(STRONGEST))
    page.locator('.queries .word[aria-selected="true"]').wait_for()
    assert page.locator(".queries .word").nth(6).get_attribute("aria-selected") == "true"
    until(page, lambda: all(part in page.url for part in ("example=017", "query=6", "key=4")))
    page.keyboard.press("n")
    page.locator(".edge h2", has_text=f"w{(STRONGEST + 4) % 12}").wait_for()
    page.go_back()
    page.go_back()
    page.locator(".exemplars li").first.wait_for()
