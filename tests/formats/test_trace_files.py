"""The files of a trace while they grow."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headloom.formats import trace_files
from headloom.formats.trace_files import TableFile


def test_what_a_table_s_thread_cannot_write_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Any, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(trace_files._Behind, "_write", full)
    numbers = pa.table({"score": np.random.default_rng(0).random(1 << 21, np.float32)})
    table = TableFile(tmp_path / "edges.parquet", numbers.schema)
    with pytest.raises(OSError, match="No space"):
        for _ in range(3):
            table.append(numbers)
        table.close()
    with pytest.raises(OSError, match="No space"):
        table.close()
    assert table._file.closed


def test_a_table_is_whole_and_its_digest_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "edges.parquet"
    numbers = pa.table({"score": np.random.default_rng(0).random(1 << 20, np.float32)})
    table = TableFile(path, numbers.schema)
    for _ in range(3):
        table.append(numbers)
    table.close()
    assert table.digest() == hashlib.sha256(path.read_bytes()).hexdigest()
    read = pq.read_table(path)
    assert read.equals(pa.concat_tables([numbers] * 3))
