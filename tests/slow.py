"""Cases of a test that take their time: `make test-all` runs them, `make test` the others."""

from __future__ import annotations

from typing import Any

import pytest

__all__ = ["slow"]


def slow(*cases: Any) -> list[Any]:
    """Cases for `pytest.mark.parametrize`, marked slow; of several arguments a tuple for each."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in cases
    ]
