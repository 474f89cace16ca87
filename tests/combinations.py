"""Which combinations of its cases a test has in `make test`; in `make test-all` it has them all.

A test that is parametrized several times has every row of one list with every row of the others.
`make test` takes some of these products: each row at least once, and `FEWEST` where there are as
many. The same ones always, drawn by the name of the test. A single list is always taken whole.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest

__all__ = ["mark_the_others_slow"]

FEWEST = 8


def mark_the_others_slow(items: list[pytest.Item]) -> None:
    """Mark as slow what is left out of the combinations of each test."""
    tests: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            tests[item.nodeid.partition("[")[0]].append(item)
    for name, cases in tests.items():
        rows = [_rows(case) for case in cases]
        taken = chosen(name, rows)
        for place, case in enumerate(cases):
            if place not in taken:
                case.add_marker(pytest.mark.slow)


def chosen(name: str, rows: list[set[Any]]) -> set[int]:
    """Places of the cases that are taken, given the rows that each is a combination of.

    >>> rows = [{("kernel", kernel), ("length", length)} for kernel in "ab" for length in range(50)]
    >>> taken = chosen("a test", rows)
    >>> len(taken), set().union(*(rows[place] for place in taken)) == set().union(*rows)
    (50, True)
    >>> len(chosen("a test", rows[:5])), len(chosen("a test", [{1}, {1}] * 10))
    (5, 8)
    """
    order = list(range(len(rows)))
    random.Random(name).shuffle(order)
    taken = []
    missing = set().union(*rows)
    while missing:
        best = max(order, key=lambda place: len(rows[place] & missing))
        taken.append(best)
        missing -= rows[best]
    more = (place for place in order if place not in taken)
    return {*taken, *list(more)[: max(0, FEWEST - len(taken))]}


def _rows(case: pytest.Function) -> set[tuple[Any, ...]]:
    """Of each list that the test is parametrized by, its row: the same objects in each product."""
    params = dict(case.callspec.params)
    rows = set()
    for mark in case.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs["argnames"]
        names = names.split(",") if isinstance(names, str) else names
        names = tuple(name.strip() for name in names)
        rows.add((names, tuple(id(params.pop(name)) for name in names)))
    rows |= {(name, id(value)) for name, value in params.items()}  # of fixtures with parameters
    return rows
