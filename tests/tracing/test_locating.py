"""Where a model is looked for: the disk first, and a hub that is not asked."""

from __future__ import annotations

import pytest

from headloom.errors import DataError
from headloom.tracing.pretrained import load_pretrained

pytest.importorskip("transformers")


@pytest.mark.parametrize("name", ["a b", "a/b c", "-a", "a..b", "x" * 150, "nobody/no-such-model"])
def test_what_is_no_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match=r"cannot load this model: .* the name of a model") as error:
        load_pretrained(name)
    assert "\n" not in str(error.value)
