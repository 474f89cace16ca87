from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import torch
from tests.studio.conftest import snapshot_of
from tests.studio.packed import planes

from headloom.studio.page import collect, export_page, page_html
from headloom.studio.training import training_history


class Reader(HTMLParser):
    """The elements of a page and the texts within its scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inside: list[tuple[str, dict[str, str | None], str]] = []
        self._open: tuple[str, dict[str, str | None]] | None = None
        self.title = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open = (tag, dict(attrs))

    def handle_data(self, data) -> None:
        if self._open and self._open[0] in ("script", "style"):
            self.inside.append((*self._open, data))
        if self._open and self._open[0] == "title" and not self.title:
            self.title = data

    def handle_endtag(self, tag) -> None:
        self._open = None


def pack_of(page: str) -> dict:
    (data,) = [text for _, attributes, text in Reader(page).inside if attributes.get("id")]
    return json.loads(data)


def numbers_of(content: bytes, width: int) -> np.ndarray:
    """Numbers whose first bytes come first, then the second ones, and so on."""
    return np.frombuffer(content, np.uint8).reshape(width, -1).T.copy().view(f"<u{width}")[:, 0]


def bytes_of(piece) -> bytes:
    """A piece of a pack, its bytes put together again."""
    form, text = piece
    content = planes(text)
    if form.startswith("below:"):
        columns, length = map(int, form.removeprefix("below:").split(","))
        assert len(content) == length
        rows = np.frombuffer(content, np.uint8).reshape(-1, columns)
        return np.cumsum(rows, 0, dtype=np.uint8).tobytes()
    width, length = map(int, form.split(":"))
    assert len(content) == length
    return numbers_of(content, width).tobytes()


def edges_of(pack, path, rows, kept) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Keys, weights and lse of a head's first block of rows, strongest first."""
    form, text = pack[f"{path}/edges/0"]
    content = planes(text)
    kind, said = form.split(":")
    assert kind == "edges"
    count, width, left_out, size, facts = map(int, said.split(","))
    assert (count, width, size, facts) == (rows, kept, 2, 4)
    first, second = 4 * rows * kept, 4 * rows * (kept + 4)
    bits = numbers_of(content[:first], 4) << np.uint32(left_out)
    lse = numbers_of(content[first:second], 4).view("<f4")[:rows]
    steps = numbers_of(content[second:], 2).reshape(rows, kept)
    keys, weights = np.cumsum(steps, 1, dtype=np.uint16), bits.view("<f4").reshape(rows, kept)
    order = np.argsort(-weights, 1, kind="stable")
    return np.take_along_axis(keys, order, 1), np.take_along_axis(weights, order, 1), lse


def test_the_page_holds_the_exact_weights(pair_trace) -> None:
    pack = pack_of(page_html(collect([pair_trace], "A page")))
    assert pack["open"][1]["title"] == "A page"
    description = pack["examples/0"][1]
    assert description["sequences"] == pair_trace.sequences
    assert description["name"] == "#3 #9 #9 #14 #27 #5 #2 → #1 #8 #30 #41"
    kept = pack["examples/0/heads"][1]["kept"]
    for number, layer in enumerate(pair_trace.layers):
        found = description["layers"][number]
        assert (found["kind"], found["index"], found["shape"]) == (
            layer.kind, layer.index, list(layer.shape),
        )  # fmt: skip
        heads, queries, length = layer.shape
        for head in range(heads):
            path = f"examples/0/layers/{number}/heads/{head}"
            keys, weights, lse = edges_of(pack, path, queries, kept[number])
            there = keys != 65535
            dense = np.zeros((queries, length), np.float32)
            row, place = np.nonzero(there)
            dense[row, keys[row, place]] = weights[row, place]
            assert np.array_equal(dense, layer.graph.to_dense()[head].numpy())
            # The score that the page shows: log(weight) + lse.
            with np.errstate(divide="ignore"):
                scores = np.log(weights.astype(float)) + lse[:, None]
            expected = layer.graph.scores[head].numpy()[:, : kept[number]]
            assert np.allclose(scores[there], expected[there], atol=1e-5)


def test_nothing_from_outside_and_only_its_own_script(pair_trace) -> None:
    page = page_html(collect([pair_trace], "A page"))
    reader = Reader(page)
    for tag, attributes in reader.elements:
        assert tag not in ("iframe", "object", "embed", "base", "form", "img")
        assert "src" not in attributes
        assert attributes.get("href", "#").startswith(("#", "data:,"))
        assert not any(name.startswith("on") for name in attributes), attributes
        assert "style" not in attributes  # an inline style would need a hole in the policy

    (policy,) = [a["content"] for _, a in reader.elements if "http-equiv" in a]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert "unsafe" not in policy
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        texts = [text for name, a, text in reader.inside if name == tag and "id" not in a]
        assert len(texts) == 1
        digest = base64.b64encode(hashlib.sha256(texts[0].encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    # Markup is never built from text.
    assert not re.search(r"\.(inner|outer)HTML\s*=[^=]|insertAdjacentHTML|document\.write\b", page)
    assert not re.search(r"\beval\(|new Function\(", page)


def test_hostile_tokens_stay_data(make_trace, hostile_tokens) -> None:
    trace = make_trace(hostile_tokens)
    evil = "</title><script>alert(3)</script>{data}"
    page = page_html(
        collect([trace], evil, names=["</script><script>alert(4)"], summary={"<b>": "</script>"})
    )
    pack = pack_of(page)
    assert pack["examples/0"][1]["sequences"]["tokens"] == hostile_tokens
    assert pack["open"][1]["title"] == evil
    reader = Reader(page)
    assert reader.title == evil
    assert sum(tag == "script" for tag, _ in reader.elements) == 2
    assert page.count("<script") == page.count("</script>") == 2
    assert "alert(1)" not in "".join(
        text for name, a, text in reader.inside if name == "script" and "id" not in a
    )
    page.encode("utf-8")


def test_history_is_quantised_as_it_says(pair_trace) -> None:
    steps = ((0, None), (10, 0.3), (100, 0.03))
    snapshots = [
        snapshot_of(pair_trace, step, loss, norm=float(step), symmetry=math.nan)
        for step, loss in steps
    ]
    matrix = torch.randn(4, 8, 8)
    snapshots[1].layers[2] = replace(snapshots[1].layers[2], product=matrix)
    history = training_history(snapshots, {"loss": [(s, 1 / s) for s in range(1, 5000)]})
    pack = pack_of(page_html(collect([pair_trace], history=history)))
    found = pack["history"][1]
    assert found["steps"] == [0, 10, 100]
    assert found["losses"] == [None, 0.3, 0.03]
    assert len(found["curves"]["loss"]) == 500
    assert found["curves"]["loss"][-1][0] == 4999
    layer, original = found["layers"][2], pair_trace.layers[2]
    assert layer["name"] == "cross"
    weights = np.frombuffer(bytes_of(pack["history/layers/2/weights"]), np.uint8) / 255.0
    weights = weights.reshape(3, 4, 4, 7)
    assert np.abs(weights[1] - original.graph.to_dense().sqrt().numpy()).max() <= 0.5 / 255 + 1e-7
    assert layer["norm"][1] == [10.0] * 4
    assert layer["symmetry"][0] == [None] * 4
    products = np.frombuffer(bytes_of(pack["history/layers/2/products"]), np.int8)
    values = products.reshape(3, 4, 8, 8)[1] / 127
    read = np.sign(values) * values**2 * layer["product_scale"]
    # The largest of the last step is 100: of numbers about 1 few of the 127 steps are left.
    assert layer["product_scale"] == 100
    assert np.allclose(np.abs(read), matrix.abs().numpy(), atol=0.3)
    assert (np.sign(read) == np.sign(matrix.numpy()))[matrix.abs().numpy() > 0.1].all()


def test_the_file_is_whole_and_replaced(pair_trace, make_trace, tmp_path) -> None:
    path = tmp_path / "page.html"
    export_page(path, collect([pair_trace], "One"))
    export_page(path, collect([make_trace(["a", "b"])], "Two"))
    text = path.read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert Reader(text).title == "Two"
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]
