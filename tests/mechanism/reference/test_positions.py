"""The reference's positions against the papers' numbers and answers worked out by hand.

`tests/mechanism/test_positions.py` holds the fast forms to these; nothing here calls those.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from headloom.mechanism.reference import positions


def exact(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_sinusoidal_waves_have_the_wavelengths_of_the_paper() -> None:
    """Width 4: angles of position and of position / 100, the second from 10000^(2 / 4)."""
    expected = [[math.sin(p), math.cos(p), math.sin(p / 100), math.cos(p / 100)] for p in range(3)]
    torch.testing.assert_close(positions.sinusoidal(3, 4), exact(expected), rtol=0, atol=1e-15)


@pytest.mark.parametrize(("base", "slow"), [(10_000.0, 0.01), (100.0, 0.1)])
def test_rotary_turns_each_pair_by_a_matrix(base: float, slow: float) -> None:
    """Depth 4: pairs (0, 2) and (1, 3), which turn by 1 and by base^(-1/2) at each position."""
    vectors = exact([[1.0, 2.0, 3.0, 4.0], [-1.0, 0.5, 0.25, -2.0], [0.0, 1.0, -1.0, 7.0]])
    for offset in (0, 5):
        expected = []
        for row, (a, b, c, d) in enumerate(vectors.tolist()):
            fast, slowly = row + offset, slow * (row + offset)
            expected.append([
                a * math.cos(fast) - c * math.sin(fast),
                b * math.cos(slowly) - d * math.sin(slowly),
                a * math.sin(fast) + c * math.cos(fast),
                b * math.sin(slowly) + d * math.cos(slowly),
            ])  # fmt: skip
        turned = positions.rotary(vectors, offset, base)
        torch.testing.assert_close(turned, exact(expected), rtol=0, atol=1e-13)
    # Where nobody says, the first position is 0 and the base that of the paper.
    if base == 10_000:
        assert torch.equal(positions.rotary(vectors), positions.rotary(vectors, 0, base))
    assert positions.rotary(vectors[:0]).shape == (0, 4)


def test_rotary_of_neighbours_and_of_a_part() -> None:
    """Depth 5, of which 4 turn: equation 34 of the paper, written out."""
    vectors = exact([[1.0, 2.0, 3.0, 4.0, 5.0], [-1.0, 0.5, 0.25, -2.0, 6.0]])
    for interleaved in (True, False):
        expected = []
        for row, (a, b, c, d, stays) in enumerate(vectors.tolist()):
            b, c = (b, c) if interleaved else (c, b)
            fast, slow = 3.0 + row, 0.01 * (3 + row)
            turned = [
                a * math.cos(fast) - b * math.sin(fast),
                b * math.cos(fast) + a * math.sin(fast),
                c * math.cos(slow) - d * math.sin(slow),
                d * math.cos(slow) + c * math.sin(slow),
            ]
            order = (0, 1, 2, 3) if interleaved else (0, 2, 1, 3)
            expected.append([*(turned[place] for place in order), stays])
        turned = positions.rotary(vectors, 3, dims=4, interleaved=interleaved)
        torch.testing.assert_close(turned, exact(expected), rtol=0, atol=1e-13)


def test_alibi_slopes_of_the_paper_and_its_code() -> None:
    assert positions.alibi_slopes(1) == [2**-8]
    assert positions.alibi_slopes(8) == [2**-n for n in range(1, 9)]
    assert positions.alibi_slopes(16) == pytest.approx([2 ** (-n / 2) for n in range(1, 17)])
    # 12 heads: those of 8, then the first, third, fifth and seventh of 16.
    last = [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]
    assert positions.alibi_slopes(12) == pytest.approx([2**-n for n in range(1, 9)] + last)


def test_buckets_of_t5() -> None:
    """32 buckets up to 128, on each side 16, 8 of them of one distance each.

    From there on bucket 8 + floor(8 log(d / 8) / log 16): a step wherever d passes 8 * 2^(n / 2),
    which is 8, 11.3, 16, 22.6, 32, 45.3, 64, 90.5; keys after the query are 16 further.
    """
    first = [*range(8), 8, 12, 16, 23, 32, 46, 64, 91]
    for bucket, distance in enumerate(first):
        assert positions.bucket(-distance, 32, 128, True) == bucket
        if distance:
            assert positions.bucket(1 - distance, 32, 128, True) == bucket - 1
            assert positions.bucket(distance, 32, 128, True) == 16 + bucket
    assert positions.bucket(-(10**6), 32, 128, True) == 15
    assert positions.bucket(10**6, 32, 128, True) == 31
    # Without keys after the query there are 16 of one distance each, then steps of 2^(3 / 16).
    assert [positions.bucket(d, 32, 128, False) for d in (9, 1, 0, -15, -18, -19)] == [
        0, 0, 0, 15, 16, 17,
    ]  # fmt: skip
    assert positions.bucket(-112, 32, 128, False) == 30
    assert positions.bucket(-113, 32, 128, False) == 31


def test_shaw_by_hand() -> None:
    """Depth 4, so that scores are halved: key 2 apart, with embeddings of keys and of values."""
    queries = exact([[2.0, 0.0, 0.0, 0.0]])
    keys = exact([[1.0, 9.0, 9.0, 9.0], [3.0, 9.0, 9.0, 9.0]])
    a_K = torch.zeros(1, 2, 4, dtype=torch.float64)
    a_K[0, 0, 0], a_K[0, 1, 0] = 5.0, -7.0
    assert positions.shaw_scores(queries, keys, a_K).tolist() == [[6.0, -4.0]]
    a_V = exact([[10.0], [20.0]])[None]
    weights, values = exact([[0.25, 0.75]]), exact([[4.0], [8.0]])
    assert positions.shaw_output(weights, values, a_V).tolist() == [[0.25 * 14 + 0.75 * 28]]
