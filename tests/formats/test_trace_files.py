"""The files of a trace while they grow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from weft.formats import trace_files
from weft.formats.trace_files import TableFile


def test_a_table_that_cannot_begin_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []

    def full(file: Any, *_: Any, **__: Any) -> None:
        given.append(file)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(trace_files.pq, "ParquetWriter", full)
    with pytest.raises(OSError, match="No space"):
        TableFile(tmp_path / "edges.parquet", pa.schema({"layer": pa.int16()}))
    assert [file.closed for file in given] == [True]
