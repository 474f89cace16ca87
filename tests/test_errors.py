"""headloom.errors."""

from __future__ import annotations

import sys

import pytest

from headloom.errors import InputError, optional_package


def test_a_package_that_is_missing_is_named_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(InputError) as caught, optional_package("query"):
        import duckdb  # noqa: F401
    assert str(caught.value) == (
        'query: duckdb is not installed. pip install ".[exchange]" in the clone of headloom'
    )


def test_other_errors_pass_through() -> None:
    with pytest.raises(KeyError), optional_package("query"):
        raise KeyError("rows")
