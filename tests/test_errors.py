"""headloom.errors."""

from __future__ import annotations

import sys

import pytest

from headloom.errors import Hints, InputError, optional_package


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


def test_a_hint_hides_no_error_of_a_property() -> None:
    class Table(Hints):
        _elsewhere = {"to_frame": "to_pandas()"}  # noqa: RUF012

        @property
        def rows(self) -> int:
            return None.count  # type: ignore[attr-defined,no-any-return]

    table = Table()
    for name, message in (
        ("to_frame", r"^Table has no to_frame; use to_pandas\(\)$"),
        ("columns", "^'Table' object has no attribute 'columns'$"),
        ("rows", "'NoneType' object has no attribute 'count'"),
    ):
        with pytest.raises(AttributeError, match=message):
            getattr(table, name)
