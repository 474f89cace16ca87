"""What tests of the native kernels share."""

from __future__ import annotations

import pytest

from headloom.mechanism.backends import compiled


@pytest.fixture(params=compiled.instruction_sets())
def instruction_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Calls run on the kernels of one instruction set, each in turn."""
    monkeypatch.setattr(compiled, "INSTRUCTION_SET", request.param)
    return str(request.param)
