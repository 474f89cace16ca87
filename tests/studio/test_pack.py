"""What a page holds of the edges: every one, in fewer bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.studio.packed import planes
from torch import Tensor, nn

import headloom
from headloom.api.trace import Trace
from headloom.mechanism.multihead import MultiHeadAttention
from headloom.studio import pack as packing
from headloom.studio.page import collect


class OneLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 16)
        self.layer = MultiHeadAttention(16, 2, kind="decoder")

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layer(self.embedding(tokens), mask=headloom.causal())


def traced(length: int, keep: int) -> Trace:
    torch.manual_seed(length)
    with torch.no_grad():
        return headloom.trace(OneLayer(), torch.arange(length) * 31 % 100, keep=headloom.Top(keep))


def numbers(text: str, widths: list[tuple[int, int]]) -> list[np.ndarray[Any, Any]]:
    """The parts of a piece: of each, the width of its numbers, and how many there are."""
    content, found = planes(text), []
    for width, count in widths:
        part = np.frombuffer(content[: width * count], np.uint8).reshape(width, count)
        found.append(sum(part[n].astype(np.uint64) << np.uint64(8 * n) for n in range(width)))
        content = content[width * count :]
    assert not content
    return found


@pytest.mark.parametrize("many", [0, 10**9])
def test_means_pictures_and_sums_are_there(many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_MANY_EDGES", many)
    collection = collect([traced(300, 20)])
    pieces = packing.pack(collection)
    opened = pieces["open"][1]
    assert opened["digits"] == (7 if many else 4)
    # The weights of the layer by hand, of queries and keys in float64.
    (layer,) = collection.examples[0].trace.layers
    queries, keys = layer.queries.double(), layer.keys.double()
    hidden = torch.ones(300, 300, dtype=torch.bool).triu(1)
    scores = (queries @ keys.transpose(1, 2) * layer.scale).masked_fill(hidden, -torch.inf)
    weights = scores.softmax(-1).numpy()
    mean = weights.mean(0)

    form, text = pieces["examples/0/layers/0/mean"]
    kind, said = form.split(":")
    rows, kept, left_out, width, facts = map(int, said.split(","))
    assert (kind, rows, width, facts) == ("edges", 300, 4, 1)
    found, of_rows, steps = numbers(text, [(4, rows * kept), (4, rows), (4, rows * kept)])
    found = (found << left_out).astype("<u4").view("<f4").reshape(rows, kept)
    places = steps.reshape(rows, kept).cumsum(1) % 2**32
    there = places < 2**32 - 1
    assert there.sum(1).tolist() == [min(row + 1, kept) for row in range(300)]
    row = np.repeat(np.arange(300)[:, None], kept, 1)
    close = {"rtol": 2e-6 if many else 2**-11, "atol": 1e-7}
    np.testing.assert_allclose(found[there], mean[row[there], places[there].astype(int)], **close)
    missing = of_rows.astype("<u4").view("<f4")
    strongest = -np.sort(-mean, 1)[:, :kept]
    np.testing.assert_allclose(missing, 1 - strongest.sum(1), rtol=1e-3, atol=2e-6)

    form, text = pieces["examples/0/layers/0/means"]
    size = -(-300 // 128)
    assert form == f"below:100,{2 * 100 * 100}"
    shades = np.frombuffer(planes(text), np.uint8).reshape(200, 100).cumsum(0, dtype=np.uint8)
    blocks = weights.reshape(2, 100, size, 100, size).mean((2, 4)) * size
    exact = 255 * blocks.clip(0, 1) ** 0.25
    exact[exact < 1.5] = 0  # the shade 1 is of what is no number
    assert np.abs(shades.reshape(2, 100, 100) - exact).max() <= 0.51

    (received,) = (
        bits.astype("<u4").view("<f4")
        for bits in numbers(pieces["examples/0/layers/0/sums"][1], [(4, 3 * 2 * 300)])
    )
    close = {"rtol": 2e-5 if many else 2**-12, "atol": 1e-5}
    np.testing.assert_allclose(received[:600], weights.sum(1).ravel(), **close)


@pytest.mark.parametrize(("length", "keep"), [(5, 3), (40, 40), (1030, 4)])
@pytest.mark.parametrize("many", [0, 10**9])
def test_every_edge_is_there(
    length: int, keep: int, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "_MANY_EDGES", many)
    collection = collect([traced(length, keep)])
    pieces = packing.pack(collection)
    arrays = collection.examples[0].layers[0]
    assert pieces["open"][1]["digits"] == (7 if many else 4)
    for head in range(2):
        for block in range(-(-length // 1024)):
            form, text = pieces[f"examples/0/layers/0/heads/{head}/edges/{block}"]
            rows = slice(1024 * block, min(length, 1024 * (block + 1)))
            count, kept = rows.stop - rows.start, arrays.kept
            left_out = 0 if many else 11
            assert form == f"edges:{count},{kept},{left_out},2,4"
            weights, facts, steps = numbers(
                text, [(4, count * kept), (4, 4 * count), (2, count * kept)]
            )
            found = (weights << left_out).astype("<u4").view("<f4").reshape(count, kept)
            keys = (steps.reshape(count, kept).cumsum(1) % 2**16).astype(int)
            order = np.argsort(-found, 1, kind="stable")
            found, keys = (np.take_along_axis(part, order, 1) for part in (found, keys))
            wanted = arrays.weights[head, rows]
            exact = {"rtol": 2**-12 if left_out else 0, "atol": 0}
            np.testing.assert_allclose(found, wanted, **exact)
            held = arrays.keys[head, rows]
            if not left_out:
                np.testing.assert_array_equal(keys, np.where(held < 0, 2**16 - 1, held))
            for mine, theirs in zip(keys, held, strict=True):
                assert set(mine) - {2**16 - 1} == set(theirs) - {-1}
            lse, entropy, rest, edges = facts.astype("<u4").reshape(4, count)
            for part, name in ((lse, "lse"), (entropy, "entropy"), (rest, "rest")):
                given = getattr(arrays, name)[head, rows]
                np.testing.assert_allclose(part.view("<f4"), given, **exact)
            np.testing.assert_array_equal(edges, arrays.count[head, rows])
