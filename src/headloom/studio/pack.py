"""`pack`: all pieces of a collection as one JSON object, for a page and for a notebook.

    {"path": [form, text], ...}

    form ""           text is JSON
    form "4:n"        n bytes of numbers of 4 bytes as byte planes (all first bytes, then all second
                      bytes, ...), as a zlib stream, in base 85
    form "below:c,n"  n bytes, each minus the one c before it, packed alike: pictures of c columns
    form "edges:r,k,s,w,f"
                      r rows of k edges, packed alike: float32 weights, their bits shifted right by
                      s; f facts of each row, of 4 bytes each, as lse, entropy, rest and count; keys
                      of w bytes, each minus the one before it. Edges of a row are stored by key;
                      readers sort them by weight, strongest first.

Similar numbers have equal first bytes: byte planes halve the size of a trace's edges; sorted keys
take a third of the size of keys in the order of weights. Base 85 writes four bytes as five letters,
none of which JSON or HTML escapes.
"""

from __future__ import annotations

import string
import zlib
from collections.abc import Iterator

import numpy as np

from headloom.analysis.overview import block_sizes
from headloom.errors import InputError
from headloom.studio.arrays import BLOCK, SHORT, Array, LayerArrays
from headloom.studio.collection import Collection, Example
from headloom.studio.sums import layer_mean, most_kept

#: Edges of a page at most, about 50 MB.
_MOST_EDGES = 10_000_000
#: From this many edges on, a page has numbers of 4 digits, not 7: 11 bits fewer of a float32.
_MANY_EDGES, _FEWER_BITS = 200_000, 11
#: The digits of base 85: those of Python's `base64.b85encode`, without the signs of markup.
_LETTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_DIGITS = np.frombuffer((_LETTERS + "!#$%,()*+-;.=/?@^_`{|}~").encode("ascii"), np.uint8)


def pack(collection: Collection) -> dict[str, list[object]]:
    """Return all pieces, with the roles of the heads.

    Raises: InputError: too many edges for one page.
    """
    count = sum(
        layer.shape[0] * layer.shape[1] * example.layers[number].kept
        for example in collection.examples
        for number, layer in enumerate(example.trace.layers)
    )
    if count > _MOST_EDGES:
        raise InputError(
            f"page: {count:,} edges are too many for one page; the limit is {_MOST_EDGES:,}. Keep "
            "fewer (--keep 8), choose a shorter text, or open it with headloom view."
        )
    return dict(_pieces(collection, _FEWER_BITS if count >= _MANY_EDGES else 0))


def _pieces(collection: Collection, left_out: int) -> Iterator[tuple[str, list[object]]]:
    """Yield each path with its piece. left_out: low bits of a float32 to drop."""
    yield "open", ["", {**collection.opening(), "digits": 4 if left_out else 7}]
    for place, example in enumerate(collection.examples):
        root = f"examples/{place}"
        description = example.description()
        for described in description["layers"]:  # no picture comes later in a page
            described["picture"] = "kept" if described["picture"] == "kept" else "means"
        yield root, ["", description]
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
                yield f"history/layers/{number}/{name}", packed(array, width=1)


def _edges(arrays: LayerArrays, head: int, block: int, left_out: int) -> list[object]:
    """Pack the edges of a block of rows of a head."""
    rows = len(arrays.keys[head, block * BLOCK : (block + 1) * BLOCK])
    shape = rows, arrays.kept, 2 if arrays.length < SHORT else 4, 4
    return _rows(arrays.edges(head, block), shape, left_out)


def _rows(content: bytes, shape: tuple[int, int, int, int], left_out: int) -> list[object]:
    """Pack rows of edges by key, without the low bits of weights and facts.

    shape: number of rows, edges of a row, bytes of a key, and facts of a row, all float32 but the
    last. content: weights, facts and keys, as from `LayerArrays.edges`.
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
    """Round the bits of float32 numbers to the nearest whose low bits are 0."""
    if not left_out:
        return bits
    half, gone = np.uint32(1 << (left_out - 1)), np.uint32(left_out)
    rounded: Array = (bits + half) >> gone << gone
    return rounded


def _numbers(content: bytes, left_out: int) -> list[object]:
    """Pack float32 numbers without their low bits."""
    return packed(_rounded(np.frombuffer(content, "<u4"), left_out).tobytes())


def _pictures(example: Example, number: int, content: bytes) -> list[object]:
    """Pack the pictures of a layer's heads as differences of rows, which are often similar."""
    _, queries, keys = example.trace.layers[number].shape
    _, across = block_sizes(queries, keys, example.overviews.side)
    columns = -(-keys // across)
    dots = np.frombuffer(content, np.uint8)
    steps = dots.copy()
    steps[columns:] -= dots[:-columns] if columns else dots
    return [f"below:{columns},{len(content)}", _compressed([(1, steps.tobytes())])]


def packed(content: bytes, width: int = 4) -> list[object]:
    """Pack the bytes of numbers of a width."""
    return [f"{width}:{len(content)}", _compressed([(width, content)])]


def _compressed(parts: list[tuple[int, bytes]]) -> str:
    """Compress the byte planes of each part by zlib, in base 85."""
    stream = zlib.compressobj(9, zlib.DEFLATED, 15, 9, zlib.Z_FILTERED)
    done = []
    for width, part in parts:
        for plane in np.frombuffer(part, np.uint8).reshape(-1, width).T:
            # A zlib block for each plane: their byte frequencies differ.
            done += [stream.compress(plane.tobytes()), stream.flush(zlib.Z_BLOCK)]
    return _in_base_85(b"".join((*done, stream.flush())))


def _in_base_85(content: bytes) -> str:
    """Encode four bytes as five digits, the highest first; a rest of n bytes as n + 1."""
    missing = -len(content) % 4
    words = np.frombuffer(content + bytes(missing), ">u4").astype(np.uint32)
    digits = np.empty((len(words), 5), np.uint8)
    for place in reversed(range(5)):
        words, digit = np.divmod(words, np.uint32(85))
        digits[:, place] = digit
    text = _DIGITS[digits].tobytes().decode("ascii")
    return text[: len(text) - missing]
