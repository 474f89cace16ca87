"""`pack`: every piece of a collection in one JSON object, for a page and for a notebook.

    {"path": [form, text], ...}

    form ""           text is JSON as it stands
    form "4:n,2:m"    bytes: n bytes of numbers of 4 bytes, then m of numbers of 2; of each part all
                      first bytes come first, then all second bytes, ...; the whole as one zlib
                      stream, in base64

Numbers that are alike have first bytes alike: taken apart, the edges of a trace take about half.
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
from weft.studio.overviews import Overviews

__all__ = ["pack"]

#: Edges of a page at most, about 50 MB.
_MOST_EDGES = 10_000_000
#: Edges from which a page holds weights with 5 digits instead of 7, as a smaller file.
_MANY_EDGES = 200_000


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
    return dict(_pieces(collection, rounded=count > _MANY_EDGES))


def _edge_count(example: Example) -> int:
    return sum(
        layer.shape[0] * layer.shape[1] * example.layers[number].kept
        for number, layer in enumerate(example.trace.layers)
    )


def _pieces(collection: Collection, rounded: bool) -> Iterator[tuple[str, list[Any]]]:
    yield "open", ["", {**collection.opening(), "digits": 5 if rounded else 7}]
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
            norms = example.values(number)
            if norms is not None:
                yield f"{root}/layers/{number}/values", _packed(norms)
            for head in range(layer.heads):
                for block in range(-(-layer.shape[1] // BLOCK)):
                    path = f"{root}/layers/{number}/heads/{head}/edges/{block}"
                    yield path, _edges(arrays, head, block, rounded)
    if collection.history is not None:
        yield "history", ["", collection.history.description]
        for name in ("weights", "products"):
            for number, array in getattr(collection.history, name).items():
                yield f"history/layers/{number}/{name}", _packed(array, width=1)


def _description(example: Example) -> JsonObject:
    """As a page has it: nothing comes later."""
    found = example.description()
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


def _edges(arrays: LayerArrays, head: int, block: int, rounded: bool) -> list[Any]:
    content = bytearray(arrays.edges(head, block))
    rows = len(arrays.keys[head, block * BLOCK : (block + 1) * BLOCK])
    if rounded:
        weights = np.frombuffer(content, "<u4", rows * arrays.kept)
        # To the nearest number whose last 8 bits are 0; a weight of 1 stays below infinity.
        np.copyto(weights, (weights + 0x80) & np.uint32(0xFFFFFF00))
    short = rows * arrays.kept * 2 if arrays.length < SHORT else 0
    return _packed(bytes(content), short)


def _packed(content: bytes, short: int = 0, width: int = 4) -> list[Any]:
    """Bytes whose last `short` are numbers of 2 bytes, the others of `width`."""
    long = len(content) - short
    parts = [(width, content[:long]), (2, content[long:])]
    planes = b"".join(
        np.frombuffer(part, np.uint8).reshape(-1, size).T.tobytes() for size, part in parts if part
    )
    form = ",".join(f"{size}:{len(part)}" for size, part in parts if part)
    return [form or "1:0", base64.b64encode(zlib.compress(planes, 6)).decode("ascii")]
