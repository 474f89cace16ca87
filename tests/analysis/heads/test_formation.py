"""Heads along a training: the scores of a snapshot's probe, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import headloom
from headloom.analysis.heads.formation import formation, trace_of_snapshot
from headloom.formats.history import (
    MATRICES,
    MEASURES,
    History,
    LayerSnapshot,
    Snapshot,
    write_snapshot,
)

TOKENS = ["a", "b", "a"]


def layer(name: str, kind: str, on_previous: float) -> LayerSnapshot:
    """One head that looks at the token before with some weight, and else at itself."""
    lower = torch.full((3, 3), -torch.inf)
    lower[0, 0] = 0
    for i in (1, 2):
        lower[i, : i + 1] = -50
        lower[i, i - 1], lower[i, i] = torch.tensor([on_previous, 1 - on_previous]).log()
    zeros = torch.zeros(1, 3, 1)
    rules = {"bias": lower, "mask": headloom.causal()}
    _, graph = headloom.attend(zeros, zeros, zeros, keep=headloom.Top(64), **rules)
    matrices = {matrix: torch.zeros(1, 4, 4) for matrix in MATRICES}
    measures: dict[str, list[float | None]] = {measure: [0.0] for measure in MEASURES}
    return LayerSnapshot(name, kind, matrices, measures, graph, TOKENS, TOKENS)


def test_scores_of_every_step(tmp_path: Path) -> None:
    for step, weight in ((0, 0.25), (10, 0.5), (100, 0.9)):
        layers = [layer("decoder.0", "decoder", weight), layer("decoder.1", "decoder", 0.5)]
        write_snapshot(tmp_path, Snapshot(step, 3.0 if step else None, layers))
    moments = formation(History(tmp_path), "previous")
    assert [moment.step for moment in moments] == [0, 10, 100]
    assert [moment.loss for moment in moments] == [None, 3.0, 3.0]
    scores = [moment.scores[0, 0] for moment in moments]
    assert scores == pytest.approx([0.25, 0.5, 0.9], abs=1e-5)
    assert [moment.scores[1, 0] for moment in moments] == pytest.approx([0.5] * 3, abs=1e-5)
    # "a" comes again at 2, and "b" followed it before.
    induction = formation(History(tmp_path), "induction")
    assert [moment.scores[0, 0] for moment in induction] == pytest.approx(scores, abs=1e-5)


def test_an_encoder_decoder_has_two_sequences() -> None:
    kinds = ("encoder", "decoder", "cross", "decoder")
    layers = [layer(f"{place}", kind, 0.5) for place, kind in enumerate(kinds)]
    trace = trace_of_snapshot(Snapshot(0, None, layers))
    assert set(trace.sequences) == {"source", "target"}
    assert [(one.kind, one.index) for one in trace.layers] == [
        ("encoder", 0), ("decoder", 0), ("cross", 0), ("decoder", 1),
    ]  # fmt: skip
    assert (trace.layers[2].queries_from, trace.layers[2].keys_from) == ("target", "source")


def test_bad_questions(tmp_path: Path) -> None:
    with pytest.raises(headloom.InputError, match="measure='size'; expected one of"):
        formation(History(tmp_path), "size")
    with pytest.raises(headloom.InputError, match="no snapshots"):
        formation(History(tmp_path), "first")
