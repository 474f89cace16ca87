"""Which sequence comes to which place of a batch, so that few of its caches are copied."""

from __future__ import annotations

__all__ = ["closed_up", "in_place"]


def in_place(parents: list[int]) -> list[int]:
    """Of each place of a beam, which child comes there: the first of the parent that was there,
    or, where that has none, one whose parent's place is taken.

    >>> in_place([2, 2, 0])
    [2, 1, 0]
    """
    places = [-1] * len(parents)
    others = []
    for child, parent in enumerate(parents):
        if places[parent] < 0:
            places[parent] = child
        else:
            others.append(child)
    return [others.pop(0) if child < 0 else child for child in places]


def closed_up(rows: list[int]) -> list[int]:
    """Rows that go on, the last ones in the places of those that do not.

    >>> closed_up([0, 2, 3, 5])
    [0, 5, 2, 3]
    """
    count = len(rows)
    beyond = [row for row in rows if row >= count]
    staying = set(rows) - set(beyond)
    return [row if row in staying else beyond.pop() for row in range(count)]
