"""The pictures of a text that was typed come with the answer to it: those of its weights, and no
request for them besides.
"""

from __future__ import annotations

import dataclasses
import http.client
import json
from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.studio.sheet import sheet_dots
from tests.studio.test_exact_pictures import same
from tests.studio.windows import until, until_right

from headloom.api.trace import Trace
from headloom.studio.asking import FIRST, Asking
from headloom.studio.page import collect
from headloom.studio.serving import Viewer

Known = Callable[..., tuple[Trace, torch.Tensor]]
Serving = Callable[..., Viewer]
TEXT = "one two three four five six"


@pytest.fixture
def asking(serving: Serving, known_trace: Known) -> Callable[[], tuple[Viewer, list[torch.Tensor]]]:
    """A function that serves a model of two layers over sequences of 6 and of 9 tokens, and says
    their weights by the dense formula.
    """

    def start() -> tuple[Viewer, list[torch.Tensor]]:
        (trace, weights), (other, others) = known_trace(6), known_trace(9)
        second = dataclasses.replace(
            other.layers[0], name="other", index=1, queries_from="other", keys_from="other"
        )
        sequences = {**trace.sequences, "other": other.sequences["tokens"]}
        both = Trace(sequences, (trace.layers[0], second))
        collection = collect([known_trace(4)[0]], "a model")
        collection.asking = Asking("a model", lambda text: both)
        return serving(collection), [weights, others]

    return start


@pytest.mark.parametrize("way", ["few", "many", "later"])
def test_pictures_come_with_the_text(
    studio, asking, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    limits = {"many": "_MANY_DOTS", "later": "_CHEAP_CELLS"}
    if way in limits:
        monkeypatch.setattr(f"headloom.studio.overviews.{limits[way]}", 0)
    viewer, weights = asking()
    page = studio.served(viewer)
    page.locator(".sheet > canvas:not(.waiting)").first.wait_for()
    paths: list[str] = []
    page.on("request", lambda request: paths.append(request.url.split("/api/")[-1]))
    page.get_by_label("a model reads").fill(TEXT)
    page.locator("[role=status]", has_text="6 tokens read").wait_for(state="attached")

    def pictures() -> list[str]:
        parts = [path.split("/", 2) for path in paths if path.count("/") > 1]
        names = [rest for of, number, rest in parts if of == "examples" and int(number) >= FIRST]
        return [name for name in names if name.endswith(("means", "kept")) or "small" in name]

    # Of the second layer kept edges come with the text, and the exact pictures after them; of the
    # first every edge is kept.
    if way == "later":
        until(page, lambda: set(pictures()) == {"layers/1/means"})
    for layer, of_layer in enumerate(weights):
        count = of_layer.shape[1]
        for head in range(3):

            def right(layer: int = layer, head: int = head, count: int = count) -> None:
                same(sheet_dots(page, layer, head, count, count), weights[layer][head])

            if way == "later":
                until_right(page, right)
            else:  # At once: nothing better comes.
                right()
    if way != "later":
        assert pictures() == []


def test_the_answer_holds_the_same_description_and_all_pictures(asking) -> None:
    viewer, weights = asking()
    connection = http.client.HTTPConnection("127.0.0.1", viewer.address.split(":")[2].strip("/"))
    said = []
    for content in ({"text": TEXT}, {"text": TEXT, "pictures": True}):
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/api/ask", json.dumps(content).encode(), headers)
        response = connection.getresponse()
        said.append((response.headers["Content-Type"], response.read()))
    connection.close()
    (plain, described), (binary, answer) = said
    assert (plain, binary) == ("application/json", "application/octet-stream")
    end = 4 + int.from_bytes(answer[:4], "little")
    assert json.loads(answer[4:end])["description"] == json.loads(described)["description"]
    shades = np.frombuffer(answer[end:], np.uint8)
    expected = np.concatenate([255 * layer.numpy().ravel() ** 0.25 for layer in weights])
    expected[expected < 1.5] = 0  # the shade 1 is of what is no number
    assert np.abs(shades - expected).max() <= 0.51
