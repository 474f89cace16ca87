"""`pack`: every piece of a collection in one JSON object, for a page and for a notebook.

    {"path": [form, text], ...}

    form ""           text is JSON as it stands
    form "4:n"        n bytes of numbers of 4 bytes: all first bytes come first, then all second
                      bytes, ...; as a zlib stream, in base 85
    form "below:c,n"  n bytes, each less the one c before it, packed likewise: pictures of c columns
    form "edges:r,k,s,w,f"
                      r rows of k edges, packed likewise: float32 weights, their bits moved down by
                      s; f facts of each row, of 4 bytes each, as lse, entropy, rest and count; keys
                      of w bytes, each less the one before it. A row's edges stand by their keys,
                      and are read by their weights, strongest first.

Numbers that are alike have first bytes alike: taken apart, the edges of a trace take about half;
keys in order take a third of what they take in the order of weights. In base 85 four bytes are five
letters, none of which JSON or HTML writes otherwise.
"""

from __future__ import annotations

import string
import zlib
from collections.abc import Iterator

import numpy as np

from headloom.analysis.overview import block_sizes
from headloom.errors import InputError
from headloom.formats.files import JsonObject
from headloom.studio.arrays import BLOCK, SHORT, Array, LayerArrays
from headloom.studio.collection import Collection, Example
from headloom.studio.sums import layer_mean, most_kept

#: Edges of a page at most, about 50 MB.
_MOST_EDGES = 10_000_000
#: Edges from which a page holds numbers with 4 digits in place of 7: 11 bits fewer of a float32.
_MANY_EDGES, _FEWER_BITS = 200_000, 11
#: The digits of base 85: those of Python's `base64.b85encode`, but for the signs of markup.
_LETTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_DIGITS = np.frombuffer((_LETTERS + "!#$%,()*+-;.=/?@^_`{|}~").encode("ascii"), np.uint8)


def pack(collection: Collection) -> dict[str, list[object]]:
    """All pieces, with the roles of the heads worked out.

    Raises: InputError: too many edges for one page.
    """
    count = sum(_edge_count(example) for example in collection.examples)
    if count > _MOST_EDGES:
        raise InputError(
            f"page: {count:,} edges are too many for one page, which holds {_MOST_EDGES:,}. Keep "
            "fewer (--keep 8), choose a shorter text, or look at it by headloom view."
        )
    return dict(_pieces(collection, _FEWER_BITS if count >= _MANY_EDGES else 0))


def _edge_count(example: Example) -> int:
    return sum(
        layer.shape[0] * layer.shape[1] * example.layers[number].kept
        for number, layer in enumerate(example.trace.layers)
    )


def _pieces(collection: Collection, left_out: int) -> Iterator[tuple[str, list[object]]]:
    """left_out: bits of a float32 that are left out."""
    yield "open", ["", {**collection.opening(), "digits": 4 if left_out else 7}]
    for place, example in enumerate(collection.examples):
        root = f"examples/{place}"
        yield root, ["", _description(example)]
        yield f"{root}/heads", ["", example.heads(wait=True)]
        for number, layer in enumerate(example.trace.layers):
            of_layer = f"{root}/layers/{number}"
            if example.overviews.state(number) == "kept":
                yield f"{of_layer}/kept", _pictures(example, number, example.overviews.kept(number))
            else:
                yield (
                    f"{of_layer}/means",
                    _pictures(example, number, example.overviews.means(number)),
                )
                yield f"{of_layer}/sums", _numbers(example.sums(number), left_out)
            if example.local:
                shape = layer.shape[1], most_kept(example.trace, number), 4, 1
                mean = layer_mean(example.layers, number)
                yield f"{of_layer}/mean", _rows(mean, shape, left_out)
            norms = example.values(number)
            if norms is not None:
                yield f"{of_layer}/values", _numbers(norms.astype("<f4").tobytes(), left_out)
            for head in range(layer.heads):
                for block in range(-(-layer.shape[1] // BLOCK)):
                    path = f"{of_layer}/heads/{head}/edges/{block}"
                    yield path, _edges(example.layers[number], head, block, left_out)
    if collection.history is not None:
        yield "history", ["", collection.history.description]
        for name in ("weights", "products"):
            for number, array in getattr(collection.history, name).items():
                yield f"history/layers/{number}/{name}", _packed(array, width=1)


def _description(example: Example) -> JsonObject:
    """As a page has it: nothing comes later."""
    description = example.description()
    for layer in description["layers"]:
        layer["picture"] = "kept" if layer["picture"] == "kept" else "means"
    return description


def _edges(arrays: LayerArrays, head: int, block: int, left_out: int) -> list[object]:
    """The edges of a block of rows of a head."""
    rows = len(arrays.keys[head, block * BLOCK : (block + 1) * BLOCK])
    shape = rows, arrays.kept, 2 if arrays.length < SHORT else 4, 4
    return _rows(arrays.edges(head, block), shape, left_out)


def _rows(content: bytes, shape: tuple[int, int, int, int], left_out: int) -> list[object]:
    """Rows of edges by their keys, without the last bits of weights and of what is said of rows.

    shape: how many rows, edges of a row, bytes of a key, and facts of a row, of which all but the
    last are float32. content: weights, facts and keys, as `LayerArrays.edges` gives them.
    """
    rows, kept, width, facts_of_a_row = shape
    numbers = rows * (kept + facts_of_a_row)
    weights, facts = np.split(np.frombuffer(content, "<u4", numbers), [rows * kept])
    keys = np.frombuffer(content, f"<u{width}", rows * kept, 4 * numbers)
    floats, count = np.split(facts, [(facts_of_a_row - 1) * rows])
    keys, weights = keys.reshape(rows, kept), _rounded(weights, left_out).reshape(rows, kept)
    order = np.argsort(keys, 1, kind="stable")
    keys, weights = (np.take_along_axis(part, order, 1) for part in (keys, weights))
    steps = np.diff(keys, axis=1, prepend=keys.dtype.type(0))
    parts = [
        (4, (weights >> np.uint32(left_out)).tobytes()),
        (4, np.concatenate((_rounded(floats, left_out), count)).tobytes()),
        (width, steps.tobytes()),
    ]
    return [f"edges:{rows},{kept},{left_out},{width},{facts_of_a_row}", _compressed(parts)]


def _rounded(bits: Array, left_out: int) -> Array:
    """The bits of float32 numbers, each to the nearest one whose last bits are 0."""
    if not left_out:
        return bits
    half, gone = np.uint32(1 << (left_out - 1)), np.uint32(left_out)
    found: Array = (bits + half) >> gone << gone
    return found


def _numbers(content: bytes, left_out: int) -> list[object]:
    """Numbers of float32, without their last bits."""
    return _packed(_rounded(np.frombuffer(content, "<u4"), left_out).tobytes())


def _pictures(example: Example, number: int, content: bytes) -> list[object]:
    """Pictures of a layer's heads: where one dot is light, the one below it often is."""
    _, queries, keys = example.trace.layers[number].shape
    _, across = block_sizes(queries, keys, example.overviews.side)
    columns = -(-keys // across)
    dots = np.frombuffer(content, np.uint8)
    steps = dots.copy()
    steps[columns:] -= dots[:-columns] if columns else dots
    return [f"below:{columns},{len(content)}", _compressed([(1, steps.tobytes())])]


def _packed(content: bytes, width: int = 4) -> list[object]:
    """Bytes of numbers of a width."""
    return [f"{width}:{len(content)}", _compressed([(width, content)])]


def _compressed(parts: list[tuple[int, bytes]]) -> str:
    """First bytes of a part's numbers first, then the second ones, ...: zlib, in base 85."""
    stream = zlib.compressobj(9, zlib.DEFLATED, 15, 9, zlib.Z_FILTERED)
    done = []
    for width, part in parts:
        for plane in np.frombuffer(part, np.uint8).reshape(-1, width).T:
            # A block for each: their bytes have frequencies of their own.
            done += [stream.compress(plane.tobytes()), stream.flush(zlib.Z_BLOCK)]
    return _in_base_85(b"".join((*done, stream.flush())))


def _in_base_85(content: bytes) -> str:
    """Five digits for four bytes, the highest first; n bytes that are left over give n + 1."""
    missing = -len(content) % 4
    words = np.frombuffer(content + bytes(missing), ">u4").astype(np.uint32)
    digits = np.empty((len(words), 5), np.uint8)
    for place in reversed(range(5)):
        words, digit = np.divmod(words, np.uint32(85))
        digits[:, place] = digit
    text = _DIGITS[digits].tobytes().decode("ascii")
    return text[: len(text) - missing]
