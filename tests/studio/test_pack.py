"""What a page holds of the edges: every one, in fewer bytes."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import weft
from weft.mechanism.multihead import MultiHeadAttention
from weft.studio import pack as packing
from weft.studio.page import collect
from weft.traces import Trace


class OneLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 16)
        self.layer = MultiHeadAttention(16, 2, kind="decoder")

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layer(self.embedding(tokens), mask=weft.causal())


def traced(length: int, keep: int) -> Trace:
    torch.manual_seed(length)
    with torch.no_grad():
        return weft.trace(OneLayer(), torch.arange(length) * 31 % 100, keep=weft.Top(keep))


def numbers(text: str, widths: list[tuple[int, int]]) -> list[np.ndarray[Any, Any]]:
    """The parts of a piece: of each, the width of its numbers, and how many there are."""
    content, found = zlib.decompress(base64.b64decode(text)), []
    for width, count in widths:
        part = np.frombuffer(content[: width * count], np.uint8).reshape(width, count)
        found.append(sum(part[n].astype(np.uint64) << np.uint64(8 * n) for n in range(width)))
        content = content[width * count :]
    assert not content
    return found


@pytest.mark.parametrize(("length", "keep"), [(5, 3), (40, 40), (1030, 4)])
@pytest.mark.parametrize("many", [0, 10**9])
def test_every_edge_is_there(
    length: int, keep: int, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "_FEWER_DIGITS", ((many, 4, 11),))
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
            assert form == f"edges:{count},{kept},{left_out},2"
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
