"""Where a model is looked for: the disk first, and a hub that is not there costs seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from headloom.errors import DataError
from headloom.tracing import locating

pytest.importorskip("huggingface_hub")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache of Hugging Face; its folder."""
    from huggingface_hub import constants

    cache = tmp_path / "hub"
    cache.mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    return cache


def test_offline_by_the_environment(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match="HF_HUB_OFFLINE forbids it"):
        locating.locate("nobody/no-such-model")


@pytest.mark.parametrize("name", ["a b", "a/b c", "-a", "a..b", "x" * 150, "a\nb"])
def test_what_is_no_name(hub: Path, name: str) -> None:
    with pytest.raises(DataError, match="no name that a model of Hugging Face can have"):
        locating.locate(name)


def test_a_misspelled_name_of_a_packaged_model_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match=r"forbids it\. Did you mean minilm\?$"):
        locating.locate("minilmm")
    with pytest.raises(DataError, match=r"forbids it\. Check the name"):
        locating.locate("something-else")
