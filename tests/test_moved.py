"""Old names of modules lead to the new ones, with a warning."""

from __future__ import annotations

import importlib
import sys

import pytest

import weft
from weft.moved import MOVED


@pytest.mark.parametrize("old", MOVED)
def test_the_old_name_of_a_module_is_the_new_module(old: str) -> None:
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match="has moved to"):
        module = importlib.import_module(old)
    assert module is importlib.import_module(MOVED[old])
    assert module.__name__ == MOVED[old]


def test_the_matrix_is_found_where_it_was() -> None:
    with pytest.warns(DeprecationWarning, match=r"weft\.AttentionMatrix"):
        matrix = importlib.import_module("weft.mechanism.matrix").AttentionMatrix
    assert matrix is weft.AttentionMatrix


def test_a_name_that_never_was_is_still_not_there() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"weft\.analysis\.nothing"):
        importlib.import_module("weft.analysis.nothing")
