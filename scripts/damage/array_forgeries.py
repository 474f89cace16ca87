"""Forged files of arrays and tables: whole to look at, and something else inside."""

from __future__ import annotations

import io
import os
import random
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["MARKER", "forge_csv", "forge_npy", "forge_npz"]

Chance = random.Random
#: A file of this name appears beside what is read where something was unpickled.
MARKER = "unpickled"


class _Payload:
    """What runs a command where it is unpickled."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self._place),)


def _with(array: NDArray[Any], chance: Chance, value: float) -> NDArray[Any]:
    changed = array.copy()
    if changed.size and changed.dtype.kind == "f":
        changed.reshape(-1)[chance.randrange(changed.size)] = value
    return changed


#: Other arrays in the place of one.
_OTHERS: dict[str, Callable[[NDArray[Any], Chance], NDArray[Any]]] = {
    "nan": lambda x, c: _with(x, c, float("nan")),
    "endless": lambda x, c: _with(x, c, float("-inf")),
    "negative": lambda x, c: _with(x, c, -0.25),
    "huge": lambda x, c: _with(x, c, 3e38),
    "two": lambda x, c: _with(x, c, 2.0),
    "moved a little": lambda x, c: _with(x, c, 0.03),
    "twice": lambda x, c: x * x.dtype.type(2),
    "scores": lambda x, c: (x * 40 - 7).astype(x.dtype),
    "logarithms": lambda x, c: np.log(np.abs(x) + 1e-9).astype(x.dtype),
    "zeros": lambda x, c: x * x.dtype.type(0),
    "turned": lambda x, c: x.T,
    "exchanged": lambda x, c: x.swapaxes(-1, -2) if x.ndim > 1 else x,
    "shorter": lambda x, c: x[..., :-1],
    "fewer": lambda x, c: x[:-1],
    "fewer positions": lambda x, c: x[..., :-1, :] if x.ndim > 1 else x,
    "empty": lambda x, c: x[:0],
    "deeper": lambda x, c: x[None],
    "flat": lambda x, c: x.reshape(-1),
    "a number": lambda x, c: x.reshape(-1)[0],
    "whole numbers": lambda x, c: x.astype(np.int64),
    "big-endian": lambda x, c: x.astype(x.dtype.newbyteorder(">")),
    "half": lambda x, c: x.astype(np.float16),
    "double": lambda x, c: x.astype(np.float64),
    "long double": lambda x, c: x.astype(np.longdouble),
    "complex": lambda x, c: x.astype(np.complex64),
    "bool": lambda x, c: x.astype(bool),
    "texts": lambda x, c: x.astype(str),
    "fields": lambda x, c: np.zeros(x.shape, [("a", "<f4"), ("b", "<i2")]),
    "columns first": lambda x, c: np.asfortranarray(x),
}

_HEADERS = (
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 9999999999, 4), }",
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 4), }",
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (2.0, 4), }",
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (True, 4, 4), }",
    b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
    b"{'descr': '<U99999999', 'fortran_order': False, 'shape': (1,), }",
    b"{'descr': [('a', '<f4')] , 'fortran_order': False, 'shape': (1,), }",
    b"{'descr': '<f4', 'fortran_order': 3, 'shape': (1,), }",
    b"{'descr': 'no', 'fortran_order': False, 'shape': (1,), }",
    b"{'descr': '<f4', 'shape': (1L, 2L)}",
    b"__import__('os').mkdir('unpickled')",
    b"(" * 5_000,
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"1," * 3_000 + b"), }",
    b"\xff\xfe\x00",
)


def _written(array: Any, pickled: bool = False) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=pickled)
    return file.getvalue()


def _forged_npy(content: bytes, folder: Path, chance: Chance) -> tuple[bytes, str]:
    array = np.load(io.BytesIO(content), allow_pickle=False)
    way = chance.choice((*_OTHERS, "objects", "header", "header", "length", "version"))
    if way == "objects":
        return _written(np.array([_Payload(folder / MARKER)], object), pickled=True), way
    if way == "header":
        text = chance.choice(_HEADERS) + b"\n"
        start = 10 + struct.unpack("<H", content[8:10])[0]
        return content[:8] + struct.pack("<H", len(text)) + text + content[start:], way
    if way == "length":
        return content[:8] + struct.pack("<H", chance.randrange(2**16)) + content[10:], way
    if way == "version":
        return content[:6] + bytes(chance.choice(((3, 0), (2, 0), (9, 9)))) + content[8:], way
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _written(_OTHERS[way](array, chance)), way


def forge_npy(file: Path, chance: Chance) -> tuple[str, bool]:
    """Another array, or a header that says something else."""
    content, way = _forged_npy(file.read_bytes(), file.parent, chance)
    file.write_bytes(content)
    return way, True


def forge_npz(file: Path, chance: Chance) -> tuple[str, bool]:
    """Another member, or another archive, with checksums that fit it."""
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = chance.choice(sorted(members))
    way = chance.choice(
        ("array",) * 8 + ("gone", "renamed", "outside", "no array", "twice", "bomb")
    )
    content = members[name]
    more: list[tuple[str, bytes]] = []
    if way == "array":
        members[name], way = _forged_npy(content, file.parent, chance)
    elif way == "gone":
        del members[name]
    elif way in ("renamed", "outside"):
        members[{"renamed": "other.npy", "outside": "../../x.npy"}[way]] = members.pop(name)
    elif way == "no array":
        members["readme.txt"] = b"text"
    elif way == "twice":
        more = [(name, members[chance.choice(sorted(members))])]
    else:
        head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (4, 5000, 5000), }\n"
        start = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head
        members[name] = start + bytes(4 * 4 * 5_000**2 if chance.random() < 0.3 else 10**6)
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        warnings.simplefilter("ignore")  # of two members of one name
        for title, numbers in [*members.items(), *more]:
            archive.writestr(title, numbers)
    return f"{name} {way}", True


def forge_csv(file: Path, chance: Chance) -> tuple[str, bool]:
    """Other fields, rows or columns."""
    rows = [line.split(",") for line in file.read_text("utf-8").splitlines()]
    place, column = chance.randrange(1, len(rows)), chance.randrange(len(rows[0]))
    way = chance.choice(("field",) * 5 + ("gone", "twice", "column", "heading", "order", "cut",
                                          "long", "quote"))  # fmt: skip
    if way == "field":
        values = ("", "-1", "nan", "inf", "0.5", "1e400", "9" * 40, "abc", "32768", '"', "\0",
                  "\u202e", "1.0", "true", "2", "0", "-0.1", "1_000", "0x10", " 1")  # fmt: skip
        rows[place][column] = chance.choice(values)
    elif way == "gone":
        del rows[place]
    elif way == "twice":
        rows.append(rows[place])
    elif way == "column":
        rows = [row[:column] + row[column + 1 :] for row in rows]
    elif way == "heading":
        rows[0][column] = chance.choice((rows[0][0], "other", "", '"a'))
    elif way == "order":
        rest = rows[1:]
        chance.shuffle(rest)
        rows[1:] = rest
    elif way == "long":
        rows[place].append("1")
    elif way == "quote":
        rows[place][column] = '"' + rows[place][column]
    text = "\n".join(",".join(row) for row in rows)
    file.write_text(text + "\n" * (way != "cut"), "utf-8")
    return f"{way} of row {place}", True
