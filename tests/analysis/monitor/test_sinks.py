"""What sinks are told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import headloom
from headloom.formats.run import Reports


class Callback:
    """A sink of one's own."""

    def __init__(self) -> None:
        self.told: dict[int, dict[str, float]] = {}
        self.closed = False

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.told[step] = dict(values)

    def close(self) -> None:
        self.closed = True


def watched(folder: Path, model: Any, batches: list[Tensor], **options: Any) -> list[Any]:
    """Three steps without a training, measured; returns what the folder holds."""
    probe = {"input_ids": batches[0][:1]}
    with headloom.monitor(model, folder, probe=probe, every=1, **options) as monitor:
        for _ in range(2):
            with torch.no_grad():
                model.transformer.h[0].attn.c_attn.weight.mul_(1.5)
            monitor.step()
    return Reports(folder / "measures.jsonl", "measures").read()


def test_a_sink_of_ones_own(tmp_path: Path, gpt2: Any, batches: list[Tensor]) -> None:
    """The mean and the largest score of a layer, and of all."""
    sink = Callback()
    reports = watched(tmp_path / "run", gpt2(), batches, sinks=[sink])
    assert sink.closed and list(sink.told) == [0, 1, 2]
    first, second = reports[2]["layers"].values()
    told = sink.told[2]
    layer = "attention/transformer.h.0.attn"
    assert told[f"{layer}/entropy"] == pytest.approx(sum(first["entropy"]) / 2, rel=1e-5)
    assert told[f"{layer}/largest_score"] == pytest.approx(max(first["largest_score"]), rel=1e-5)
    assert told[f"{layer}/norm"] == pytest.approx(sum(first["norm"]) / 2, rel=1e-5)
    every = first["largest_score"] + second["largest_score"]
    assert told["attention/largest_score"] == pytest.approx(max(every), rel=1e-5)
    assert told["attention/entropy"] == pytest.approx(
        sum(first["entropy"] + second["entropy"]) / 4, rel=1e-5
    )


def test_a_sink_that_fails_does_not_stop_a_training(
    tmp_path: Path, gpt2: Any, batches: list[Tensor]
) -> None:
    class Broken(Callback):
        def log(self, step: int, values: Mapping[str, float]) -> None:
            raise ConnectionError("the board does not answer")

    other = Callback()
    with pytest.warns(UserWarning, match="Broken: ConnectionError: the board") as told:
        reports = watched(tmp_path / "run", gpt2(), batches, sinks=[Broken(), other])
    assert len(told) == 1
    assert len(reports) == len(other.told) == 3
