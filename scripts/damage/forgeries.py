"""Ways to damage a file as a forger does: it looks whole, and says something else."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from damage.array_forgeries import forge_csv, forge_npy, forge_npz
from headloom.errors import HeadloomError
from headloom.formats.tensors import load_tensors, save_tensors
from headloom.formats.trace_writer import manifest_digest

__all__ = ["FORGERS", "reseal"]

Chance = random.Random
#: What was forged, and whether a digest in the same file was made to fit it.
Forged = tuple[str, bool]

#: Numbers and other values that a forger writes in place of others.
FORGED: tuple[Any, ...] = (
    0, -1, 1, 2, 3, 7, 255, 2**15, 2**31 - 1, 2**31, 2**32 + 1, 2**53 + 1, 2**63 - 1, 2**64, 10**30,
    -(10**30), 10**400, 0.5, 1e-320, 1e308, -1e308, float("nan"), float("inf"), True, False, None,
    "", "a", "\x1b[31m\u202e", "\ud800", "x" * 5_000, "../../etc/passwd", "/dev/zero", [], {},
    [0], [[]], {"a": 1}, [None] * 3, [10**30] * 3, [1] * 3,
)  # fmt: skip
RAW = ("1" * 5_000, "-" + "9" * 4_400, "[" * 100_000 + "]" * 100_000, '{"a":' * 100_000)


def _places(content: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to every value in what a JSON file says."""
    found = [place] if place else []
    items = (
        content.items() if isinstance(content, dict)
        else enumerate(content) if isinstance(content, list)
        else ()
    )  # fmt: skip
    for key, value in items:
        found += _places(value, (*place, key))
    return found


def _forge(content: Any, chance: Chance) -> str:
    """Change one value of what a JSON file says, deep or shallow alike; returns where."""
    places = _places(content)
    if not places:
        return "nothing"
    depth = chance.choice(sorted({len(place) for place in places}))
    place = chance.choice([place for place in places if len(place) == depth])
    holder = content
    for key in place[:-1]:
        holder = holder[key]
    match chance.randrange(6):
        case 0 if isinstance(holder, dict):
            del holder[place[-1]]
            return f"no {place}"
        case 1 if isinstance(holder, list):
            holder.extend([holder[place[-1]]] * chance.choice((1, 3, 1_000)))
            return f"more of {place}"
        case 2 if type(holder[place[-1]]) in (int, float):
            holder[place[-1]] += chance.choice((-1, 1, 2, 0.5))
            return f"{place} moved"
        case _:
            holder[place[-1]] = chance.choice(FORGED)
            return f"{place} = {holder[place[-1]]!r:.30}"


def _forge_json(file: Path, chance: Chance) -> Forged:
    content = json.loads(file.read_text("utf-8"))
    where = _forge(content, chance)
    text = json.dumps(content, indent=1, ensure_ascii=chance.random() < 0.5)
    if chance.random() < 0.15:
        # What no library writes: numbers without end, nesting without end.
        values = list(re.finditer(r'(?<=: )("[^"\n]*"|[\d.e-]+|true|false|null)', text))
        values = values or list(re.finditer(r'"[^"\n]*"|(?s:.+)', text))  # of a list
        value = chance.choice(values)
        text = text[: value.start()] + chance.choice(RAW) + text[value.end() :]
        where = "raw value"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    return where, False


def _forge_lines(file: Path, chance: Chance) -> Forged:
    lines = file.read_text("utf-8").splitlines()
    number = chance.randrange(len(lines))
    content = json.loads(lines[number])
    where = _forge(content, chance)
    lines[number] = chance.choice((json.dumps(content), *RAW))
    file.write_text("\n".join(lines) + "\n", "utf-8")
    return f"line {number}, {where}", False


def _forge_text(file: Path, chance: Chance) -> Forged:
    lines = file.read_text("utf-8").splitlines()
    number = chance.randrange(len(lines))
    key = lines[number].partition(" = ")[0]
    values = ("[" * 100_000, "1" * 5_000, '"' + "x" * 5_000 + '"', "nan", "-1", "0", "1e400",
              "true", '"\\u0000"', '"\\u001b[31m"', "2020-01-01", "0.5", "[[1]]", "{a=1}",
              str(10**30), "a." * 5_000 + "b = 1")  # fmt: skip
    lines[number] = chance.choice((f"{key} = {chance.choice(values)}", "", lines[0], "[" * 5_000,
                                   f"{key}.a = 1", "[task.a.b]"))  # fmt: skip
    file.write_text("\n".join(lines) + "\n", "utf-8")
    return f"line {number}", False


def _forge_parquet(file: Path, chance: Chance) -> Forged:
    table = pq.read_table(file)
    number = chance.randrange(table.num_columns)
    name = table.column_names[number]
    column = table.column(number)
    size = len(column)
    match chance.randrange(9):
        case 0:
            table = table.drop_columns([name])
        case 1:
            kind = chance.choice((pa.string(), pa.float64(), pa.int8(), pa.uint64()))
            table = table.set_column(number, name, column.cast(kind, safe=False))
        case 2:
            value = chance.choice((-1, 10**4, 2**15 - 1))
            values = column.to_pylist()
            values[chance.randrange(size)] = value
            table = table.set_column(number, name, pa.array(values, column.type))
        case 3:
            values = column.to_pylist()
            values[chance.randrange(size)] = None
            table = table.set_column(number, name, pa.array(values, column.type))
        case 4:
            order = list(range(size))
            chance.shuffle(order)
            table = table.take(order)
        case 5:
            table = table.slice(0, chance.randrange(size))
        case 6:
            table = pa.concat_tables([table, table])
        case 7:
            lists = pa.array([[value] for value in column.to_pylist()])
            table = table.set_column(number, name, lists)
        case _:
            table = table.rename_columns([*table.column_names[1:], table.column_names[0]])
    pq.write_table(table, file, row_group_size=chance.choice((1, 7, 10**6)))
    return f"column {name}", False


def _forge_tensors(file: Path, chance: Chance) -> Forged:
    if chance.random() < 0.4:
        with contextlib.suppress(HeadloomError):
            return _forge_saved(file, chance), True
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    where, fits = _forge_header(header, chance)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    length = len(text)
    if chance.random() < 0.1:
        length = chance.choice((0, 2**31, 2**63, 2**64 - 1, len(content)))
    if chance.random() < 0.05:
        text = chance.choice(RAW).encode()
        length = len(text)
    file.write_bytes(length.to_bytes(8, "little") + text + content[8 + size :])
    return f"header, {where}", fits


def _forge_saved(file: Path, chance: Chance) -> str:
    """One tensor becomes another, in a file of headloom's own with a digest that fits it.

    Raises: HeadloomError: it is no such file.
    """
    tensors, notes = load_tensors(file, "file")
    name = chance.choice(sorted(tensors))
    tensor = tensors.pop(name)
    way = chance.choice((*_OTHER_TENSORS, "gone", "renamed", "notes"))
    if way == "renamed":
        tensors[f"{name}.other"] = tensor
    elif way == "notes":
        tensors[name] = tensor
        way = _forge(notes, chance)
    elif way != "gone":
        tensors[name] = _OTHER_TENSORS[way](tensor)
    save_tensors(file, tensors, notes)
    return f"{name} {way}"


_OTHER_TENSORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "turned": lambda x: x.transpose(0, -1) if x.ndim else x[None],
    "empty": lambda x: x.flatten()[:0],
    "empty inside": lambda x: x[..., :0] if x.ndim else x,
    "flat": lambda x: x.flatten(),
    "shorter": lambda x: x[..., :-1] if x.ndim else x,
    "half as long": lambda x: x[: len(x) // 2] if x.ndim else x,
    "twice": lambda x: torch.cat((x, x), -1) if x.ndim else torch.stack((x, x)),
    "deeper": lambda x: x[None],
    "a number": lambda x: x.flatten()[0] if x.numel() else x,
    "float64": lambda x: x.double(),
    "int64": lambda x: x.long(),
    "bool": lambda x: x.bool(),
    "bfloat16": lambda x: x.bfloat16(),
    "nan": lambda x: x.float() * float("nan"),
    "endless": lambda x: (
        torch.full_like(x, 2**62 if not x.is_floating_point() else float("inf"))
        if x.dtype not in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.bool)
        else torch.full_like(x, 1)
    ),
    "negative": lambda x: torch.full_like(x, -7) if x.dtype is not torch.uint8 else x,
}


def _forge_header(header: dict[str, Any], chance: Chance) -> Forged:
    notes = header.get("__metadata__", {})
    if "notes" in notes and chance.random() < 0.4:
        content = json.loads(notes["notes"])
        where = _forge(content, chance)
        notes["notes"] = json.dumps(content)
        if chance.random() < 0.8:
            notes["notes_sha256"] = hashlib.sha256(notes["notes"].encode()).hexdigest()
            return f"notes {where}", True
        return f"notes {where}", False
    name = chance.choice([name for name in header if name != "__metadata__"])
    match chance.randrange(5):
        case 0:
            header[name]["dtype"] = chance.choice(("I32", "F16", "BF16", "F64", "BOOL", "Q9"))
        case 1:
            chance.shuffle(header[name]["shape"])
        case 2:
            del header[name]
        case 3:
            other = chance.choice([other for other in header if other != "__metadata__"])
            header[name], header[other] = header[other], header[name]
        case _:
            return _forge(header, chance), False
    return name, False


FORGERS: dict[str, Callable[[Path, Chance], Forged]] = {
    ".json": _forge_json, ".parquet": _forge_parquet, ".safetensors": _forge_tensors,
    ".toml": _forge_text, ".jsonl": _forge_lines, ".npy": forge_npy, ".npz": forge_npz,
    ".csv": forge_csv,
}  # fmt: skip


def reseal(folder: Path, file: Path) -> bool:
    """Make the digests of a trace fit again; False: there are none that can."""
    manifest = folder / "trace.json"
    if not manifest.exists() or file.parent != folder or manifest.stat().st_size > 2**30:
        return False
    try:
        content = json.loads(manifest.read_text("utf-8"))
        if file != manifest:
            entry = content["files"][file.name]
            entry["bytes"] = file.stat().st_size
            if entry["bytes"] > 2**30:
                return False
            entry["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
        content["sha256"] = manifest_digest(content)
        text = json.dumps(content, indent=1)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False
    manifest.write_text(text, "utf-8")
    return True
