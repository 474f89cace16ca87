"""Ways to damage a folder: as a disk does, as a careless copy does, and as a forger does."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from weft.formats.trace_folder import manifest_digest

__all__ = ["damage"]

Chance = random.Random

#: Numbers and other values that a forger writes in place of others.
FORGED: tuple[Any, ...] = (
    0, -1, 1, 2, 3, 7, 255, 2**15, 2**31 - 1, 2**31, 2**32 + 1, 2**53 + 1, 2**63 - 1, 2**64, 10**30,
    -(10**30), 10**400, 0.5, 1e-320, 1e308, -1e308, float("nan"), float("inf"), True, False, None,
    "", "a", "\x1b[31m\u202e", "\ud800", "x" * 5_000, "../../etc/passwd", "/dev/zero", [], {},
    [0], [[]], {"a": 1}, [None] * 3, [10**30] * 3, [1] * 3,
)  # fmt: skip
RAW = ("1" * 5_000, "-" + "9" * 4_400, "[" * 100_000 + "]" * 100_000, '{"a":' * 100_000)


def damage(folder: Path, chance: Chance) -> str:
    """Damage a folder in one way; says which: "DAMAGE of FILE".

    It begins with "resealed" where digests were made to fit, and with "unsealed" where there are
    none, so that other data cannot be told from what was written.
    """
    files = sorted(path for path in folder.rglob("*.*") if path.is_file())
    file = chance.choice(files)
    kind = chance.choice(KINDS)
    forgers = {".json": _forge_json, ".parquet": _forge_parquet, ".safetensors": _forge_tensors,
               ".toml": _forge_text, ".jsonl": _forge_lines}  # fmt: skip
    if kind == "forge":
        what = forgers[file.suffix](file, chance)
        if chance.random() < 0.7 and _reseal(folder, file):
            what = f"resealed {what}"
        elif file.suffix in (".json", ".jsonl", ".toml") and not _sealed(file):
            what = f"unsealed {what}"
    else:
        DAMAGES[kind](file, chance)
        what = kind
        if kind in _OF_BYTES and not _sealed(file):
            what = f"unsealed {what}"
        elif kind in _OF_BYTES and chance.random() < 0.3 and _reseal(folder, file):
            what = f"resealed {what}"
    return f"{what} of {file.relative_to(folder)}"


def _sealed(file: Path) -> bool:
    """Whether a file has a digest, so that other content must be refused."""
    folder = file.parent
    if (folder / "trace.json").exists():
        return True
    in_run = (folder / "run.json").exists() or folder.name == "history"
    return in_run and file.suffix == ".safetensors"


# As a disk, or a copy.


def _truncate(file: Path, chance: Chance) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: chance.randrange(max(len(content), 1))])


def _flip(file: Path, chance: Chance) -> None:
    content = bytearray(file.read_bytes())
    for _ in range(chance.choice((1, 1, 1, 2, 8))):
        if content:
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    file.write_bytes(content)


def _flip_head(file: Path, chance: Chance) -> None:
    """Where headers and their lengths are: at the beginning, and of Parquet at the end."""
    content = bytearray(file.read_bytes())
    for _ in range(3):
        if content:
            place = chance.randrange(min(64, len(content)))
            content[place if chance.random() < 0.5 else -1 - place] = chance.randrange(256)
    file.write_bytes(content)


def _zeros(file: Path, chance: Chance) -> None:
    content = bytearray(file.read_bytes())
    start = chance.randrange(max(len(content), 1))
    end = min(len(content), start + chance.choice((1, 8, 512)))
    content[start:end] = bytes(end - start)
    file.write_bytes(content)


def _append(file: Path, chance: Chance) -> None:
    with file.open("ab") as opened:
        opened.write(chance.choice((b"\n{}", b"\0" * 9, b"x" * 100)))


def _random_content(file: Path, chance: Chance) -> None:
    file.write_bytes(
        chance.choice((b"", b"null", b"[]", b"{}", chance.randbytes(300), b"\xff\xfe"))
    )


def _sparse(file: Path, chance: Chance) -> None:
    os.truncate(file, chance.choice((2**34, 2**40)))


def _swap(file: Path, chance: Chance) -> None:
    other = chance.choice([path for path in file.parent.iterdir() if path.is_file()])
    file.write_bytes(other.read_bytes())


def _remove(file: Path, chance: Chance) -> None:
    file.unlink()


# Other things in the place of a file.


def _pipe(file: Path, chance: Chance) -> None:
    file.unlink()
    os.mkfifo(file)


def _socket(file: Path, chance: Chance) -> None:
    file.unlink()
    here = Path.cwd()
    os.chdir(file.parent)  # the name of a socket has a limit
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(file.name)
    finally:
        os.chdir(here)


def _folder(file: Path, chance: Chance) -> None:
    file.unlink()
    file.mkdir()


def _link(file: Path, chance: Chance) -> None:
    file.unlink()
    file.symlink_to(
        chance.choice(
            (file.name, "/dev/zero", "/dev/full", "/dev/tty", "/etc/hostname", "/nowhere", "..",
             "/proc/self/mem", "/proc/kmsg")
        )
    )  # fmt: skip


def _link_loop(file: Path, chance: Chance) -> None:
    file.unlink()
    file.symlink_to(f"{file.name}.other")
    file.with_name(f"{file.name}.other").symlink_to(file.name)


def _unreadable(file: Path, chance: Chance) -> None:
    (file if chance.random() < 0.7 else file.parent).chmod(0)


def _whole_folder(file: Path, chance: Chance) -> None:
    """The folder itself is something else."""
    folder = file.parent
    shutil.rmtree(folder)
    match chance.randrange(5):
        case 0:
            os.mkfifo(folder)
        case 1:
            folder.symlink_to(folder.name)
        case 2:
            folder.symlink_to("/dev")
        case 3:
            folder.write_text("{}")
        case _:
            folder.mkdir()


_OF_BYTES = ("truncate", "flip", "flip head", "zeros", "append", "random content", "swap", "sparse")
DAMAGES: dict[str, Callable[[Path, Chance], None]] = {
    "truncate": _truncate, "flip": _flip, "flip head": _flip_head, "zeros": _zeros,
    "append": _append, "random content": _random_content, "sparse": _sparse, "swap": _swap,
    "remove": _remove, "pipe": _pipe, "socket": _socket, "folder": _folder, "link": _link,
    "link loop": _link_loop, "unreadable": _unreadable, "whole folder": _whole_folder,
}  # fmt: skip
#: A forgery as often as all others.
KINDS = (*DAMAGES, *("truncate", "flip", "flip head", "zeros"), *["forge"] * 20)


# As a forger.


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


def _forge_json(file: Path, chance: Chance) -> str:
    content = json.loads(file.read_text("utf-8"))
    where = _forge(content, chance)
    text = json.dumps(content, indent=1, ensure_ascii=chance.random() < 0.5)
    if chance.random() < 0.15:
        # What no library writes: numbers without end, nesting without end.
        values = list(re.finditer(r'(?<=: )("[^"\n]*"|[\d.e-]+|true|false|null)', text))
        value = chance.choice(values)
        text = text[: value.start()] + chance.choice(RAW) + text[value.end() :]
        where = "raw value"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    return f"forged {where}"


def _forge_lines(file: Path, chance: Chance) -> str:
    lines = file.read_text("utf-8").splitlines()
    number = chance.randrange(len(lines))
    content = json.loads(lines[number])
    where = _forge(content, chance)
    lines[number] = chance.choice((json.dumps(content), *RAW))
    file.write_text("\n".join(lines) + "\n", "utf-8")
    return f"forged line {number}, {where}"


def _forge_text(file: Path, chance: Chance) -> str:
    lines = file.read_text("utf-8").splitlines()
    number = chance.randrange(len(lines))
    key = lines[number].partition(" = ")[0]
    values = ("[" * 100_000, "1" * 5_000, '"' + "x" * 5_000 + '"', "nan", "-1", "0", "1e400",
              "true", '"\\u0000"', '"\\u001b[31m"', "2020-01-01", "0.5", "[[1]]", "{a=1}",
              str(10**30), "a." * 5_000 + "b = 1")  # fmt: skip
    lines[number] = chance.choice((f"{key} = {chance.choice(values)}", "", lines[0], "[" * 5_000,
                                   f"{key}.a = 1", "[task.a.b]"))  # fmt: skip
    file.write_text("\n".join(lines) + "\n", "utf-8")
    return f"forged line {number}"


def _forge_parquet(file: Path, chance: Chance) -> str:
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
    return f"forged table, {name}"


def _forge_tensors(file: Path, chance: Chance) -> str:
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    where = _forge_header(header, chance)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    length = len(text)
    if chance.random() < 0.1:
        length = chance.choice((0, 2**31, 2**63, 2**64 - 1, len(content)))
    if chance.random() < 0.05:
        text = chance.choice(RAW).encode()
        length = len(text)
    file.write_bytes(length.to_bytes(8, "little") + text + content[8 + size :])
    if where.startswith("resealed"):
        return where
    return f"forged header, {where}"


def _forge_header(header: dict[str, Any], chance: Chance) -> str:
    notes = header.get("__metadata__", {})
    if "notes" in notes and chance.random() < 0.4:
        content = json.loads(notes["notes"])
        where = _forge(content, chance)
        notes["notes"] = json.dumps(content)
        if chance.random() < 0.8:
            notes["notes_sha256"] = hashlib.sha256(notes["notes"].encode()).hexdigest()
            return f"resealed notes {where}"
        return f"notes {where}"
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
            return _forge(header, chance)
    return name


def _reseal(folder: Path, file: Path) -> bool:
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
