"""The file in which recorded calls wait for the end of a generation."""

from __future__ import annotations

import tempfile
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from torch import Tensor

import headloom
from headloom.tracing.recording import call_file, free_memory
from headloom.tracing.recording.call_file import CallFile
from headloom.tracing.recording.joining import shape_of
from headloom.tracing.recording.layer_call import RecordedCall


def recorded(dtype: torch.dtype = torch.float32, rows: int = 7) -> RecordedCall:
    """A call whose queries are a view, as models give them, and whose keys are one number."""
    torch.manual_seed(0)
    queries, keys, values = torch.randn(3, 1, rows, 2, 4).transpose(2, 3)
    _, graph = headloom.attend(queries, keys, values, keep=headloom.Top(3))
    return RecordedCall(
        path="layer", kind="decoder", index=0, graph=graph, scale=0.5, positions="none",
        deviations=[None], queries=queries.to(dtype), keys=shape_of(keys),
        value_norms=torch.zeros(1, 2, 0), bias=torch.tensor(float("nan")).reshape(1, 1, 1, 1),
    )  # fmt: skip


def tensors_of(call: RecordedCall) -> dict[str, Tensor]:
    every = [(part.name, getattr(call, part.name)) for part in fields(call)]
    every += [(f"graph.{part.name}", getattr(call.graph, part.name)) for part in fields(call.graph)]
    return {name: tensor for name, tensor in every if isinstance(tensor, Tensor)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_calls_come_back_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(call_file, "LARGE", 1)
    file = CallFile(tmp_path / "t.loom")
    calls = [recorded(dtype), recorded(dtype, rows=300)]
    before = [{name: tensor.clone() for name, tensor in tensors_of(c).items()} for c in calls]
    put = [file.put(call) for call in calls]
    assert list(tmp_path.iterdir()) == []
    held = tensors_of(put[0][1])
    assert [name for name, tensor in held.items() if not tensor.is_meta] == ["keys", "value_norms"]
    assert put[1][1].graph.shape == calls[1].graph.shape
    for (place, call), expected in reversed(list(zip(put, before, strict=True))):
        back = file.get(call, place)
        assert (back.path, back.scale, back.graph.length) == ("layer", 0.5, call.graph.length)
        found = tensors_of(back)
        assert found.keys() == expected.keys()
        for name, tensor in found.items():
            assert tensor.dtype == expected[name].dtype and tensor.shape == expected[name].shape
            assert torch.equal(tensor.nan_to_num(9), expected[name].nan_to_num(9)), name


def test_what_is_small_stays(tmp_path: Path) -> None:
    call = recorded()
    _, same = CallFile(tmp_path / "t.loom").put(call)
    assert tensors_of(same) == tensors_of(call)


def test_a_folder_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        headloom.DataError, match="Choose a folder that exists and is writable"
    ) as error:
        CallFile(tmp_path / "no" / "t.loom")
    assert "\n" not in str(error.value)


def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**options: object) -> object:
        return Path("/dev/full").open("w+b", buffering=0)

    monkeypatch.setattr(call_file, "LARGE", 1)
    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(headloom.DataError, match=r"t\.loom: no space left on device\. Nothing was"):
        CallFile(tmp_path / "t.loom").put(recorded())


def test_free_memory_is_given_back_for_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[None] = []
    monkeypatch.setattr(free_memory, "give_back", lambda: given.append(None))
    monkeypatch.setattr(call_file, "LARGE", 1)
    monkeypatch.setattr(call_file, "GIVEN_BACK", 2000)
    file = CallFile(tmp_path / "t.loom")
    call = recorded()  # 224 bytes of queries, 4 of a bias, 728 of a graph
    counts = []
    for _ in range(6):
        file.put(call)
        counts.append(len(given))
    assert counts == [0, 0, 1, 1, 2, 2]
