"""Use of a trained run: open it, generate text, classify texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headloom.errors import DataError, InputError
from headloom.formats.run import RunFolder
from headloom.models.language_model import LanguageModel
from headloom.models.predictor import Predictor, other_kind
from headloom.models.transformer import Transformer
from headloom.training.batches import bucketed, padded
from headloom.training.checkpoint import load_weights
from headloom.training.config import RunConfig, check_config
from headloom.training.data import DataDescription, classes_of
from headloom.training.sections import TranslationConfig
from headloom.training.tasks import build_model, make_task
from headloom.training.tasks.labels import longest_text, text_ids
from headloom.training.tasks.task import Task
from headloom.training.text import PretrainedVocabulary, Vocabulary


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """Opened run with its best weights.

    step: training step of the weights.
    """

    folder: RunFolder
    config: RunConfig
    data: DataDescription
    model: Predictor
    step: int

    @property
    def vocabulary(self) -> Vocabulary:
        """Tokens of its texts. Raises: InputError: the run reads no text."""
        if self.data.vocabulary is None:
            raise InputError(f"{self.folder.path}: this run reads no text. Choose one that does.")
        return self.data.vocabulary

    def task(self, split: str | None = None) -> Task:
        """Make the task and read its data; a translator's with one split alone.

        split: "valid" or "test"; None: test where there is such data.
        """
        config, task = self.config, self.config.task
        if isinstance(task, TranslationConfig):
            split = split or ("test" if task.test else "valid")
            files = getattr(task, split) or task.valid
            if files is not None:  # else the validation data are drawn from the training data
                test = task.test if split == "test" else None
                task = task.model_copy(update={"train": files, "valid": files, "test": test})
        return make_task(config.model_copy(update={"task": task}), self.data)

    @property
    def translates(self) -> bool:
        """Whether the model reads one text and writes another."""
        return isinstance(self.model, Transformer)

    @property
    def length_penalty(self) -> float:
        """Length penalty of beam search in the run's configuration."""
        task = self.config.task
        return task.length_penalty if isinstance(task, TranslationConfig) else 1.0


def open_run(path: Path | str, data: Path | None = None) -> TrainedRun:
    """Open a run's best weights, in evaluation mode.

    data: path of its data; None: the path that the run has saved.

    Raises: DataError: no run, or no weights yet.
    """
    folder = RunFolder.open(Path(path))
    if folder.monitored() is not None:
        raise InputError(
            f"{folder.path}: a training watched by headloom.monitor: it has the history of the "
            "heads, not the model. `headloom view` and `headloom heads` read it; here the model "
            "itself is needed."
        )
    config = check_config(folder.config(), str(folder.path / "config.json"))
    if data is not None and config.task.place is None:
        raise InputError(f"data: {folder.path} was trained on generated data. Leave data out.")
    if config.task.place is not None and (place := data or folder.place()) is not None:
        task = config.task.model_copy(update={config.task.place: str(place)})
        config = config.model_copy(update={"task": task})
    description = DataDescription.load(folder)
    if description is None:
        raise DataError(
            f"{folder.path}: this run lacks its vocabulary.json or data.json. Put a copy back, or "
            "train it again."
        )
    model = build_model(config, description)
    if not folder.best.exists():
        raise DataError(
            f"{folder.path}: this run has kept no weights yet; its first validation will. Continue "
            f"the training, or put a copy of {folder.best.name} back."
        )
    step = int(load_weights(folder.best, model)["step"])
    nn.Module.eval(model)
    return TrainedRun(folder, config, description, model, step)


def generate_text(
    run: TrainedRun, prompt: str, *, length: int, temperature: float = 0.8, top: int | None = None,
    top_p: float | None = None, seed: int = 1,
) -> str:  # fmt: skip
    """Generate text after a prompt.

    Args:
        run: of a language model.
        prompt: at least one token.
        length: tokens to draw.
        temperature: see `headloom.LanguageModel.generate`.
        top: its top_k.
        top_p: likewise.
        seed: of the random numbers.
    """
    if not isinstance(run.model, LanguageModel):
        error = other_kind(run.model, "continue text", "a language model")
        raise InputError(f"{run.folder.path}: {error}")
    ids = run.vocabulary.encode(prompt)
    if not ids:
        raise InputError("the prompt is empty; give at least one character.")
    room = run.model.architecture.room
    # The last generated token is not read.
    if room is not None and len(ids) + length > room + 1:
        raise InputError(
            f"a prompt of {len(ids):,} tokens and {length:,} more: the model's positions end at "
            f"{room:,}. Give a shorter prompt, or fewer new tokens."
        )
    words = run.vocabulary
    # A run's own vocabulary has no end token in training, but label smoothing makes it likely.
    candidates = range(0 if isinstance(words, PretrainedVocabulary) else len(words))
    written = run.model.generate(
        torch.tensor([ids]), max_new_tokens=length, temperature=temperature, top_k=top, top_p=top_p,
        end=words.end, never=[token for token in candidates if words.is_special(token)], seed=seed,
    )  # fmt: skip
    return words.decode_continuation(written[0, len(ids) :].tolist())


class Classification(dict[str, Any]):
    """Prediction of a classifier: a dict of label, score and probabilities, also attributes.

    label: the most probable class; score: its probability; both None of an empty text.
    probabilities: of each class, by its name, in descending order.
    """

    label: str | None
    score: float | None
    probabilities: dict[str, float]

    def __init__(self, probabilities: dict[str, float]) -> None:
        label, score = next(iter(probabilities.items()), (None, None))
        super().__init__(label=label, score=score, probabilities=probabilities)
        self.__dict__.update(self)


def classify(model: Predictor, data: DataDescription, texts: Sequence[str]) -> list[Classification]:
    """Classify texts by a trained classifier.

    Args: model: in evaluation mode; data: of its run; texts: an empty one has no label.
    Raises: InputError: the model is no classifier.
    """
    if not model.classifies_texts or data.vocabulary is None:
        raise other_kind(model, "classify texts", "a classifier")
    names, words, longest = classes_of(data), data.vocabulary, longest_text(data)
    results = [Classification({}) for _ in texts]
    full = [place for place, text in enumerate(texts) if text.strip()]
    ids = [text_ids(words, texts[place], longest) for place in full]
    for plan in bucketed([(len(row),) for row in ids], 8_192):
        with torch.no_grad():
            logits = model(padded([ids[index] for index in plan], words.pad))
        for index, row in zip(plan, logits.double().softmax(-1), strict=True):
            order = row.argsort(descending=True, stable=True).tolist()
            results[full[index]] = Classification({names[n]: float(row[n]) for n in order})
    return results
