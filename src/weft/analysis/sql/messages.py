"""What passes between `weft.analysis.sql.bounded` and its process: JSON, and tables of Arrow."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import IO

import pyarrow as pa

from weft.formats.files import JsonObject

__all__ = ["receive", "send"]

_DIGITS = 12


def send(stream: IO[bytes], content: JsonObject, tables: Sequence[pa.Table] = ()) -> None:
    """Write a message: lengths in digits, then the JSON and each table as an Arrow stream."""
    parts: list[bytes | pa.Buffer] = [json.dumps(content, allow_nan=False).encode("ascii")]
    for table in tables:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        parts.append(sink.getvalue())
    stream.write(b"%0*d" % (_DIGITS, len(tables)))
    for part in parts:
        stream.write(b"%0*d" % (_DIGITS, len(part)))
        stream.write(part)
    stream.flush()


def receive(stream: IO[bytes]) -> tuple[JsonObject, list[pa.Table]]:
    """Read a message. Raises: EOFError: the other side has ended."""
    tables = _number(stream)
    content: JsonObject = json.loads(_exactly(stream, _number(stream)))
    return content, [
        pa.ipc.open_stream(pa.py_buffer(_exactly(stream, _number(stream)))).read_all()
        for _ in range(tables)
    ]


def _number(stream: IO[bytes]) -> int:
    return int(_exactly(stream, _DIGITS))


def _exactly(stream: IO[bytes], length: int) -> bytes:
    found = stream.read(length)
    if len(found) < length:
        raise EOFError
    return found
