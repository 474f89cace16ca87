"""`Trainer` of Transformers with the callback: the same bits, and a run as headloom's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.analysis.monitor.conftest import same_state

import headloom
from headloom.errors import InputError
from headloom.formats.history import History
from headloom.formats.run import Reports, RunFolder

transformers = pytest.importorskip("transformers", reason="needs Transformers")
pytest.importorskip("accelerate", reason="Trainer needs accelerate")


def train(
    folder: Path,
    callback: Any = None,
    *,
    resume: str | None = None,
    **options: Any,
) -> Any:
    """Train a small Llama on texts that repeat themselves; returns it."""
    torch.manual_seed(7)
    config = transformers.LlamaConfig(
        vocab_size=30, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, attention_dropout=0.1,
        max_position_embeddings=32,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    texts = torch.randint(0, 30, (64, 5), generator=torch.Generator().manual_seed(1)).repeat(1, 2)
    data = [{"input_ids": text, "labels": text} for text in texts]
    arguments = transformers.TrainingArguments(
        **{
            "output_dir": str(folder), "max_steps": 12, "per_device_train_batch_size": 4,
            "learning_rate": 0.01, "logging_steps": 4, "report_to": [], "use_cpu": True,
            "save_strategy": "no", "disable_tqdm": True,
        } | options
    )  # fmt: skip
    trainer = transformers.Trainer(
        model, arguments, train_dataset=data, eval_dataset=data[:4],
        callbacks=[] if callback is None else [callback],
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=resume)
    return model


def test_a_training_ends_with_the_same_bits_and_leaves_a_run(tmp_path: Path) -> None:
    # Evaluation draws a random number, with the callback and without.
    options: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 6}
    alone = train(tmp_path / "alone", **options)
    callback = headloom.MonitorCallback(tmp_path / "run", every=3)
    watched = train(tmp_path / "out", callback, **options)
    assert same_state(alone, watched)
    run = RunFolder.open(tmp_path / "run")
    assert run.state == "finished"
    assert History(run.history).steps == [0, 1, 2, 4, 8, 12]
    steps = [report["step"] for report in Reports(run.measures.path, "measures").read()]
    assert steps == [0, 1, 2, 3, 4, 6, 8, 9, 12]
    reports = run.reports.read()
    assert [report["step"] for report in reports if "loss" in report] == [4, 8, 12]
    assert [report["step"] for report in reports if "validation_loss" in report] == [6, 12]
    assert callback.monitor is not None and callback.monitor.overhead > 0
    layer = History(run.history)[12].layers[1]
    assert layer.name == "model.layers.1.self_attn"
    assert layer.matrices["W_K"].shape == (2, 16, 4)


@pytest.mark.slow
def test_a_training_that_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    """It goes on in its folder; begun anew, the folder is another training's."""
    options: dict[str, Any] = {"save_strategy": "steps", "save_steps": 6}

    def folders() -> tuple[list[int], list[Any]]:
        reports = Reports(tmp_path / "run" / "measures.jsonl", "measures").read()
        return [report["step"] for report in reports], [report["layers"] for report in reports]

    train(tmp_path / "out", headloom.MonitorCallback(tmp_path / "run", every=3), **options)
    steps, layers = folders()
    with pytest.raises(InputError, match="holds a training of 12 steps already"):
        train(tmp_path / "anew", headloom.MonitorCallback(tmp_path / "run"))
    train(
        tmp_path / "out", headloom.MonitorCallback(tmp_path / "run", every=3),
        resume=str(tmp_path / "out" / "checkpoint-6"), **options,
    )  # fmt: skip
    assert folders() == (steps, layers)
    assert RunFolder.open(tmp_path / "run").state == "finished"
