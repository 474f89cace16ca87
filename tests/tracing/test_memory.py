from __future__ import annotations

from pathlib import Path

import pytest

import headloom
from headloom.tracing.memory import check_memory

MODEL = Path("model")


def told(monkeypatch: pytest.MonkeyPatch, text: str | OSError) -> None:
    def read(path: Path, encoding: str) -> str:
        assert str(path) == "/proc/meminfo"
        if isinstance(text, OSError):
            raise text
        return text

    monkeypatch.setattr(Path, "read_text", read)


def test_weights_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch, "MemTotal:     9437184 kB\nMemFree:    10 kB\nMemAvailable: 3145728 kB\n")
    check_memory(MODEL, 3 * 2**30)
    with pytest.raises(
        headloom.InputError, match=r"^model: the weights take 4\.5 GiB, and 3\.0 GiB"
    ):
        check_memory(MODEL, 9 * 2**29)


@pytest.mark.parametrize(
    "text", [OSError("none here"), "", "MemTotal: 5 kB\n", "MemAvailable: much\n", "MemAvailable:"]
)
def test_a_system_that_does_not_tell(text: str | OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other systems than Linux have no such file: the weights are read, and may not fit."""
    told(monkeypatch, text)
    check_memory(MODEL, 2**60)
