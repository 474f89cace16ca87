"""Tensors come back to the last bit, or are refused as a whole."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch

from headloom.errors import DataError
from headloom.formats.tensors import load_tensors, read_notes, save_tensors

TENSORS = {
    "floats": torch.tensor([[1.5, -0.0, float("nan")], [float("inf"), 1e-45, 2.0]]),
    "halves": torch.tensor([1.0, 2.0], dtype=torch.bfloat16),
    "integers": torch.arange(5),
    "truths": torch.tensor([True, False]),
    "scalar": torch.tensor(7.0, dtype=torch.float64),
    "nothing": torch.zeros(0, 3),
    "turned": torch.arange(6).reshape(2, 3).T,
}
NOTES = {"step": 3, "text": "ünï — 月", "nested": {"list": [1, None]}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_tensors(tmp_path / "x.safetensors", TENSORS, NOTES)
    return tmp_path / "x.safetensors"


def test_round_trip(path: Path) -> None:
    tensors, notes = load_tensors(path, "checkpoint")
    assert notes == NOTES == read_notes(path, "checkpoint")
    assert set(tensors) == set(TENSORS)
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert tensors[name].shape == tensor.shape
        assert torch.equal(tensors[name].nan_to_num(9), tensor.nan_to_num(9))


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"x: no such checkpoint\. Check the path\."):
        load_tensors(tmp_path / "x", "checkpoint")


def test_any_truncation_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    for length in {0, 1, 7, 8, 9, 100, len(whole) // 2, len(whole) - 8, len(whole) - 1}:
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match="this checkpoint is damaged"):
            load_tensors(path, "checkpoint")


def test_any_flipped_bit_is_refused_or_harmless(path: Path) -> None:
    """Everywhere in the file: sizes, names, notes, digests, numbers."""
    whole = path.read_bytes()
    refused = 0
    for place in range(0, len(whole), 7):
        changed = bytearray(whole)
        changed[place] ^= 1 << (place % 8)
        path.write_bytes(changed)
        try:
            tensors, notes = load_tensors(path, "checkpoint")
        except DataError as error:
            refused += 1
            assert str(path) in str(error)
            assert "\n" not in str(error)
            continue
        # What is let through says the same: a space in the header, an unused name.
        assert notes == NOTES
        assert all(
            torch.equal(tensors[name].nan_to_num(9), tensor.nan_to_num(9))
            for name, tensor in TENSORS.items()
        )
    assert refused > 0.9 * len(range(0, len(whole), 7))


def test_files_of_other_programs_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a": torch.ones(2)}, tmp_path / "x")
    with pytest.raises(DataError, match="damaged"):
        load_tensors(tmp_path / "x", "checkpoint")
    for notes, message in (
        ({"notes": "{}"}, "its notes do not match their digest"),
        (_noted("[]"), "its notes are no object"),
        (_noted("{"), "this checkpoint is damaged"),
        (_noted("{}"), "its content does not match its digest"),
    ):
        save_file({"a": torch.ones(2)}, tmp_path / "x", notes)
        with pytest.raises(DataError, match=message):
            load_tensors(tmp_path / "x", "checkpoint")


def _noted(notes: str) -> dict[str, str]:
    return {"notes": notes, "notes_sha256": hashlib.sha256(notes.encode()).hexdigest()}
