"""Whom a warning names, measure by measure."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from headloom.analysis.monitor.alarms import Alarms


def seen(evenness: list[float | None], entropy: list[float | None]) -> Any:
    measures = {"evenness": evenness, "entropy": entropy, "largest_score": [1.0] * len(entropy)}
    return SimpleNamespace(name="layer", measures=measures)


def test_a_head_whose_evenness_is_not_known_has_not_collapsed() -> None:
    alarms = Alarms()
    assert not alarms.check(0, [seen([0.5, 0.5, None], [1.0, 1.0, 0.0])])
    (alarm,) = alarms.check(1, [seen([0.001, 0.015, None], [0.1, 0.1, 0.0])])
    assert (alarm["kind"], alarm["heads"]) == ("entropy collapse", [0, 1])


def test_a_head_without_rows_to_choose_in_is_not_broken() -> None:
    """Its rows may look at one key alone, or at none; another has numbers that are none."""
    alarms = Alarms()
    assert not alarms.check(0, [seen([0.5, None, None], [1.0, 0.0, None])])
    assert not alarms.check(1, [seen([0.5, None, None], [1.0, 0.0, None])])
    (alarm,) = alarms.check(2, [seen([None, None, None], [None, 0.0, None])])
    assert (alarm["kind"], alarm["heads"]) == ("not finite", [0])
