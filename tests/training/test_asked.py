"""The claims of examples/asked.py: two words that belong together need attention weights."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.training.test_induction import example_called


@pytest.mark.slow
def test_learned_weights_hold_at_other_lengths_and_uniform_ones_do_not(tmp_path: Path) -> None:
    """The same positions, steps and sizes; only the weights differ."""
    example = example_called("asked")
    example.draw(tmp_path / "sentences.tsv", 12_000)
    shares = {
        name: {
            count: example.accuracy(run, count)
            for run in [example.trained(tmp_path / name, [f"task.folder={tmp_path}", *more])]
            for count in (2, 3, 4)
        }
        for name, more in example.KINDS.items()
        if name != "learned, rotary"
    }
    assert shares["learned"][2] > 0.97 and shares["learned"][3] > 0.97
    assert shares["uniform"][2] < 0.85
    assert shares["learned"][4] > shares["uniform"][4] + 0.1
