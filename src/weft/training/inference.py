"""A trained run, ready to be used: its model, vocabulary and configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from weft.errors import DataError
from weft.formats.run import RunFolder
from weft.models.language_model import LanguageModel
from weft.models.transformer import Transformer
from weft.training.checkpoint import load_weights
from weft.training.config import LanguageConfig, RunConfig, check_config
from weft.training.text import Vocabulary

__all__ = ["TrainedRun", "build_model", "open_run"]


def build_model(config: RunConfig, vocabulary: Vocabulary) -> Transformer | LanguageModel:
    """The model that a configuration describes, its matrices drawn at random."""
    architecture = config.model.architecture()
    if isinstance(config.task, LanguageConfig):
        return LanguageModel(len(vocabulary), architecture, vocabulary.pad)
    return Transformer(len(vocabulary), architecture, vocabulary.pad)


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """A run that can be used.

    step: of the training, at which the weights were kept.
    """

    folder: RunFolder
    config: RunConfig
    vocabulary: Vocabulary
    model: Transformer | LanguageModel
    step: int


def open_run(path: Path | str) -> TrainedRun:
    """Open a run's best weights, in evaluation mode.

    Raises: DataError: no run, not a run, or nothing kept yet.
    """
    folder = RunFolder.open(Path(path))
    config = check_config(folder.config(), str(folder.path / "config.json"))
    vocabulary = Vocabulary.load(folder.vocabulary)
    model = build_model(config, vocabulary)
    if not folder.best.exists():
        raise DataError(
            f"{folder.path}: this run has kept no weights yet; they come with its first "
            "validation. Let it train on."
        )
    notes = load_weights(folder.best, model)
    nn.Module.eval(model)
    return TrainedRun(folder, config, vocabulary, model, int(notes["step"]))
