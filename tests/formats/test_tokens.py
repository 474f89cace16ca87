from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headloom.formats.tokens import visible


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("the", "the"),
        (" the ", "␣the␣"),
        ("a b", "a b"),
        ("", "∅"),
        ("\t\n\r\x7f", "⇥⏎␍␡"),
        ("\u202e", "‹202E›"),
        ("\ud800", "‹D800›"),
        ("\u0301", "◌\u0301"),
        ("e\u0301", "e\u0301"),
        ("\u00a0", "⍽"),
        ("שלום", "שלום"),
        ("\U0001f469\u200d\U0001f467", "\U0001f469\u200d\U0001f467"),
        ("\u200d", "‹200D›"),
    ],
)
def test_what_is_shown(token, shown) -> None:
    assert visible(token) == shown


@given(st.text(st.characters(), max_size=60))
def test_nothing_hides_and_nothing_runs_on(token) -> None:
    shown = visible(token, 20)
    assert shown.strip()
    assert not any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in shown)
    # Every character becomes at most ten.
    assert len(shown) <= 200
    assert (len(token) > 20) == (shown.endswith("…") and not token.endswith("…")) or "…" in token
