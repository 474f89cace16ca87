"""A tiny language model's configuration: a run of it takes a second."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from headloom.formats.files import JsonObject
from headloom.formats.run import RunFolder
from headloom.formats.tensors import load_tensors
from headloom.training.config import RunConfig, check_config
from headloom.training.inference import TrainedRun

ConfigMaker = Callable[..., RunConfig]

TEXT = "the cat sat on the mat, the dog lay by the log; " * 30


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ConfigMaker:
    """A function from settings of [training] (and `model=`) to a configuration."""
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text(TEXT)

    def make(*, model: dict[str, Any] | None = None, **training: Any) -> RunConfig:
        settings = {
            "max_steps": 12, "batch_tokens": 32, "warmup": 2, "validate_every": 4,
            "checkpoint_every": 5, "label_smoothing": 0.0, **training,
        }  # fmt: skip
        sizes = {"width": 16, "heads": 2, "feed_forward": 16, "decoder_layers": 1, "dropout": 0.0}
        task = {"kind": "language", "file": str(file), "block": 8}
        return check_config(
            {"task": task, "model": sizes | (model or {}), "training": settings}, "test"
        )

    return make


@pytest.fixture(scope="session")
def text_file(tiny: ConfigMaker) -> Path:
    """The text of `tiny`."""
    return Path(tiny().task.file)  # type: ignore[union-attr]


def measures_of(run: TrainedRun, split: str) -> JsonObject:
    """A run's measures on held-out data."""
    results = run.task(split).results(
        run.model, split=split, beam=1, progress=lambda done, total: None
    )
    return results.values()


def toml(config: RunConfig) -> str:
    """A configuration as a file, without defaults: which keys nothing reads, load_config says."""
    lines = []
    for section, values in config.model_dump(mode="json", exclude_unset=True).items():
        lines.append(f"[{section}]")
        lines += [f"{key} = {json.dumps(v)}" for key, v in values.items() if v is not None]
    return "\n".join(lines)


def everything(path: Path) -> tuple[dict[str, Tensor], list[Any]]:
    """All that a run leaves, but for the clock."""
    tensors: dict[str, Tensor] = {}
    others: list[Any] = [sorted(str(file.relative_to(path)) for file in path.rglob("*"))]
    for file in sorted(path.rglob("*.safetensors")):
        content, notes = load_tensors(file, "file")
        name = str(file.relative_to(path))
        tensors |= {f"{name}:{key}": tensor for key, tensor in content.items()}
        notes.get("position", {}).pop("seconds", None)
        others.append((name, notes))
    for report in RunFolder(path).reports.read():
        report.pop("seconds")
        others.append(report)
    texts = (path / name for name in ("vocabulary.json", "run.json"))  # images have no vocabulary
    others += [file.read_text() for file in texts if file.exists()]
    return tensors, others


def assert_same(first: Path, second: Path) -> None:
    """Equal to the last bit."""
    (tensors, others), (other_tensors, other_others) = everything(first), everything(second)
    assert others == other_others
    assert tensors.keys() == other_tensors.keys()
    assert [name for name in tensors if not torch.equal(tensors[name], other_tensors[name])] == []
