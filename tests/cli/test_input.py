"""What a verb reads from a person who types, or from a pipe."""

from __future__ import annotations

import io
from typing import Any

import pytest

from headloom.cli.input import standard_input_lines


@pytest.mark.parametrize("typed", [True, False])
def test_who_types_is_told_that_a_verb_waits(
    typed: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stream: Any = io.TextIOWrapper(io.BytesIO(b"one\ntwo\n"))
    stream.isatty = lambda: typed
    monkeypatch.setattr("sys.stdin", stream)
    assert standard_input_lines() == ["one", "two"]
    said = "headloom: type a line, then Enter; Ctrl-D ends.\n" if typed else ""
    assert capsys.readouterr() == ("", said)
