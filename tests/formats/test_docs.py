"""The Python lines of docs/formats.md run as they stand, without headloom, and say what headloom
says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest
import torch

import headloom
from headloom.models.language_model import LanguageModel

DOCS = Path(__file__).parents[2] / "docs" / "formats.md"


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the names of the examples are after they have run beside a trace."""
    torch.manual_seed(6)
    model = LanguageModel(30, width=16, heads=4, feed_forward=16, layers=2)
    headloom.trace(
        model.eval(), torch.arange(1, 13), keep=headloom.Top(4), save=tmp_path / "t.loom"
    )
    monkeypatch.chdir(tmp_path)
    after = DOCS.read_text("utf-8").split("Other tools read a trace without headloom")[1]
    blocks = re.findall(r"```python\n(.*?)```", after, re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, Any] = {}
    for block in blocks:
        assert "import headloom" not in block
        exec(compile(block, str(DOCS), "exec"), names)
    return names


def test_the_examples_say_what_headloom_says(example: dict[str, Any]) -> None:
    layer = headloom.open("t.loom").layers[1]
    dense = layer.graph.to_dense()
    assert np.allclose(example["strongest"]["weight"], dense.amax(-1).flatten())
    assert len(example["heads"]) == 2 * 4
    assert np.allclose(
        example["heads"].query("layer == 1")["entropy"], layer.graph.entropy.mean(-1), atol=1e-6
    )
    given = dense[0].sum(0) * layer.value_norms[0]
    found = example["received"].set_index("key")["given"].sort_index()
    assert np.allclose(found, given[found.index], atol=1e-5)
    assert found.sum() == pytest.approx(float(given.sum()), abs=1e-5)
    assert np.allclose(example["tile"], layer.matrix[0, 4:9, 0:5], atol=1e-6)
    assert np.allclose(example["tile"].sum(-1)[0], 1, atol=1e-5)


@pytest.mark.parametrize("name", ["edges", "rows", "keys"])
def test_polars_and_duckdb_read_what_pandas_reads(example: dict[str, Any], name: str) -> None:
    path = f"t.loom/{name}.parquet"
    expected = example["pandas"].read_parquet(path)
    for found in (
        polars.read_parquet(path).to_dict(as_series=False),
        polars.scan_parquet(path).collect().to_dict(as_series=False),
        example["duckdb"].sql(f"select * from '{path}'").df().to_dict("list"),
    ):
        assert list(found) == list(expected.columns)
        for column, values in found.items():
            assert np.array_equal(values, expected[column])
