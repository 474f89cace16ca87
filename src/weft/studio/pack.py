"""`pack`: every piece of a collection in one JSON object, for a page and for a notebook.

    {"path": [form, text], ...}

    form ""           text is JSON as it stands
    form "4:n"        n bytes of numbers of 4 bytes: all first bytes come first, then all second
                      bytes, ...; as a zlib stream, in base64
    form "edges:r,k,s,w"
                      r rows of k edges, packed likewise: float32 weights, their bits moved down by
                      s; of each row lse, entropy, rest and count; keys of w bytes, each less the
                      one before it. A row's edges stand by their keys, and are read by their
                      weights, strongest first.

Numbers that are alike have first bytes alike: taken apart, the edges of a trace take about half;
keys in order take a third of what they take in the order of weights.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from weft.errors import InputError
from weft.formats.files import JsonObject
from weft.studio.arrays import BLOCK, SHORT, LayerArrays
from weft.studio.collection import Collection, Example
from weft.studio.means import most_kept
from weft.studio.overviews import Overviews

__all__ = ["pack"]

#: Edges of a page at most, about 50 MB.
_MOST_EDGES = 10_000_000
#: Edges from which a page holds weights with fewer digits than 7, as a smaller file: how many, and
#: how many bits of a float32 are left out.
_FEWER_DIGITS = ((1_000_000, 4, 11), (200_000, 5, 8))


def pack(collection: Collection) -> dict[str, list[Any]]:
    """All pieces, with the roles of the heads worked out.

    Raises: InputError: too many edges for one page.
    """
    count = sum(_edge_count(example) for example in collection.examples)
    if count > _MOST_EDGES:
        raise InputError(
            f"page: {count:,} edges are too many for one page, which holds {_MOST_EDGES:,}. Keep "
            "fewer (--keep 8), choose a shorter text, or look at it by weft view."
        )
    digits, left_out = next((d, b) for most, d, b in (*_FEWER_DIGITS, (0, 7, 0)) if count >= most)
    return dict(_pieces(collection, digits, left_out))


def _edge_count(example: Example) -> int:
    return sum(
        layer.shape[0] * layer.shape[1] * example.layers[number].kept
        for number, layer in enumerate(example.trace.layers)
    )


def _pieces(collection: Collection, digits: int, left_out: int) -> Iterator[tuple[str, list[Any]]]:
    yield "open", ["", {**collection.opening(), "digits": digits}]
    for place, example in enumerate(collection.examples):
        root = f"examples/{place}"
        yield root, ["", _description(example)]
        yield f"{root}/heads", ["", example.heads(wait=True)]
        yield f"{root}/notes", ["", example.known_notes(writable=False)]
        if example.small is not None:
            yield f"{root}/small/quick/0", _packed(_best(example.small), width=1)
        for number, layer in enumerate(example.trace.layers):
            arrays = example.layers[number]
            name, picture = _picture(example, number)
            yield f"{root}/layers/{number}/{name}", _packed(picture, width=1)
            if name == "means":
                yield f"{root}/layers/{number}/sums", _packed(example.sums(number))
            yield f"{root}/layers/{number}/mean", _mean(example, number, left_out)
            norms = example.values(number)
            if norms is not None:
                yield f"{root}/layers/{number}/values", _packed(norms)
            for head in range(layer.heads):
                for block in range(-(-layer.shape[1] // BLOCK)):
                    path = f"{root}/layers/{number}/heads/{head}/edges/{block}"
                    yield path, _edges(arrays, head, block, left_out)
    if collection.history is not None:
        yield "history", ["", collection.history.description]
        for name in ("weights", "products"):
            for number, array in getattr(collection.history, name).items():
                yield f"history/layers/{number}/{name}", _packed(array, width=1)


def _description(example: Example) -> JsonObject:
    """As a page has it: nothing comes later."""
    found = example.description()
    found["local"] = True
    for number, layer in enumerate(found["layers"]):
        layer["picture"] = _picture_name(example, number)
    return found


def _picture_name(example: Example, number: int) -> str:
    return "kept" if example.overviews.state(number) == "kept" else "means"


def _picture(example: Example, number: int) -> tuple[str, bytes]:
    """The pictures of a layer's heads: exact where they can be."""
    name = _picture_name(example, number)
    if name == "kept":
        return name, example.overviews.kept(number)
    return name, example.overviews.means(number, wait=True)[0]


def _best(overviews: Overviews) -> bytes:
    """The best small pictures of all heads."""
    for number in range(overviews.layers):
        if overviews.state(number) != "kept":
            overviews.means(number, wait=True)
    return overviews.best(0)[0]


def _edges(arrays: LayerArrays, head: int, block: int, left_out: int) -> list[Any]:
    """Edges of a block of rows, without the last bits of weights and of what is said of rows."""
    content, kept = arrays.edges(head, block), arrays.kept
    rows = len(arrays.keys[head, block * BLOCK : (block + 1) * BLOCK])
    width = 2 if arrays.length < SHORT else 4
    weights, facts = np.split(np.frombuffer(content, "<u4", rows * (kept + 4)), [rows * kept])
    keys = np.frombuffer(content, f"<u{width}", rows * kept, 4 * rows * (kept + 4))
    if left_out:
        # To the nearest number whose last bits are 0; a weight of 1 stays below infinity.
        half, gone = np.uint32(1 << (left_out - 1)), np.uint32(left_out)
        weights = (weights + half) >> gone
        facts = np.concatenate(((facts[: 3 * rows] + half) >> gone << gone, facts[3 * rows :]))
    keys, weights = keys.reshape(rows, kept), weights.reshape(rows, kept)
    order = np.argsort(keys, 1, kind="stable")
    keys, weights = (np.take_along_axis(part, order, 1) for part in (keys, weights))
    steps = np.diff(keys, axis=1, prepend=keys.dtype.type(0))
    parts = [(4, weights.tobytes()), (4, facts.tobytes()), (width, steps.tobytes())]
    return [f"edges:{rows},{kept},{left_out},{width}", _compressed(parts)]


def _mean(example: Example, number: int, left_out: int) -> list[Any]:
    """The mean of a layer's heads, without the last bits of weights."""
    content = bytearray(example.mean(number))
    edges = example.trace.layers[number].shape[1] * most_kept(example.trace, number)
    if left_out:
        weights = np.frombuffer(content, "<u4", edges)
        half, gone = np.uint32(1 << (left_out - 1)), np.uint32(left_out)
        np.copyto(weights, (weights + half) >> gone << gone)
    return _packed(bytes(content))


def _packed(content: bytes, width: int = 4) -> list[Any]:
    """Bytes of numbers of a width."""
    return [f"{width}:{len(content)}", _compressed([(width, content)])]


def _compressed(parts: list[tuple[int, bytes]]) -> str:
    """First bytes of a part's numbers first, then the second ones, ...: zlib, in base64."""
    planes = b"".join(
        np.frombuffer(part, np.uint8).reshape(-1, width).T.tobytes() for width, part in parts
    )
    return base64.b64encode(zlib.compress(planes, 6)).decode("ascii")
