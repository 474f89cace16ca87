"""Decisions from rows, against numbers worked by hand."""

from __future__ import annotations

import pytest
import torch

import headloom
from headloom import rows


def test_align_att_waits_where_the_newest_token_looks_at_the_last_frames() -> None:
    """Two heads: one alone would not wait, their mean does."""
    one, other = torch.tensor([[0.5, 0.1, 0.1, 0.3]]), torch.tensor([[0.0, 0.1, 0.1, 0.8]])
    assert rows.align_att(one, last=2).tolist() == [False]
    assert rows.align_att([one, other], last=1).tolist() == [True]  # means 0.25, 0.1, 0.1, 0.55
    assert rows.align_att([one, other], last=0).tolist() == [False]


@pytest.mark.parametrize(
    ("places", "within", "expected"),
    [
        ((0, 1, 2, 3), 0, False), ((0, 3, 3, 3), 0, True), ((1, 3, 4, 3), 0, False),
        ((1, 3, 4, 3), 1, True), ((3, 3), 0, False),
    ],
)  # fmt: skip
def test_an_alignment_that_stands_still(
    places: tuple[int, ...], within: int, expected: bool
) -> None:
    history = [torch.eye(6)[[place]] for place in places]
    assert rows.is_stuck(history, steps=3, within=within).tolist() == [expected]


def test_shares_and_lookback_ratios() -> None:
    """Keys: a padding, an instruction of two, a context of two, two written tokens."""
    row = torch.tensor([[0.0, 0.1, 0.2, 0.25, 0.15, 0.2, 0.1]])
    assert float(rows.share(row, slice(1, 3))) == pytest.approx(0.3)
    assert float(rows.share([row, torch.eye(7)[[1]]], [1, 2])) == pytest.approx((0.3 + 1) / 2)
    # Means: 0.4 / 2 of the context, 0.3 / 2 of the text.
    assert float(rows.lookback_ratio(row, 5, start=3)) == pytest.approx(0.2 / (0.2 + 0.15))
    table = rows.lookback_table({(3, 1): [row[:, :5], row]}, 5, start=3)
    assert table["3.1"].tolist() == pytest.approx([1.0, 0.2 / 0.35])


def test_what_does_not_fit() -> None:
    row = torch.ones(1, 4) / 4
    with pytest.raises(headloom.ShapeError, match="align_att: rows of"):
        rows.align_att([row, torch.ones(1, 3)], last=1)
    with pytest.raises(headloom.InputError, match="context from 0 to 9 of 4 keys"):
        rows.lookback_ratio(row, 9)
    with pytest.raises(headloom.InputError, match="history is empty"):
        rows.is_stuck([], steps=2)
    with pytest.raises(headloom.InputError, match="1 steps for 2 tokens"):
        rows.word_timestamps([row], ["a", " b"])


def test_words_by_the_path_through_rows() -> None:
    """Three tokens and the end, which look at frames 0 to 1, 2 to 4, 5 and 6."""
    frames = [(0, 2), (2, 5), (5, 6), (6, 7)]
    history = [torch.zeros(1, 7) for _ in frames]
    for row, (start, end) in zip(history, frames, strict=True):
        row[0, start:end] = 1
    table = rows.word_timestamps(history, [" un", "do", " it"], seconds=0.5, median=1)
    assert table.values.tolist() == [["undo", 0.0, 2.5], ["it", 2.5, 3.0]]
