"""Examples of the user, as held-out data of a run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from headloom.errors import InputError
from headloom.formats.files import read_text
from headloom.models.language_model import LanguageModel
from headloom.training.data import classes_of
from headloom.training.examples import Roles, as_columns, read_columns, role_texts
from headloom.training.inference import TrainedRun
from headloom.training.sections import LabelsConfig, TranslationConfig
from headloom.training.tasks.labels import LabelledTexts, LabelsTask, Parts, read_labelled
from headloom.training.tasks.language import BLOCK, LanguageTask
from headloom.training.tasks.pairs import PairsTask, TranslationTask, read_pairs
from headloom.training.tasks.task import Task


def user_columns(data: object, roles: Roles) -> list[list[str]]:
    """Read the columns of the roles from memory or files; see `headloom.train`."""
    paths = [Path(path) for path in ([data] if isinstance(data, str | Path) else _paths(data))]
    if not paths:
        return role_texts(as_columns(data), roles, "data")
    if "source" in roles:
        pairs = read_pairs(Path(), [str(path) for path in paths], **roles)
        return [[pair[side] for pair in pairs] for side in (0, 1)]
    if "label" in roles:
        examples = read_labelled(paths[0], **roles)
        return [examples.texts, examples.labels]
    return read_columns(paths[0], roles, "text") or [[read_text(paths[0], "text")]]


def _paths(data: object) -> Sequence[Path]:
    return data if isinstance(data, list | tuple) and all(isinstance(p, Path) for p in data) else ()


def user_task(run: TrainedRun, data: object) -> Task:
    """Make the task of a run with other examples, all of them held out."""
    task, words, seed = run.config.task, run.vocabulary, run.config.training.seed
    columns = partial(user_columns, data)
    if run.translates:
        names = (task.source, task.target) if isinstance(task, TranslationConfig) else (None, None)
        pairs = list(zip(*columns({"source": names[0], "target": names[1]}), strict=True))
        kind = TranslationTask if isinstance(task, TranslationConfig) else PairsTask
        return kind(words, seed, [], pairs, pairs, run.length_penalty)
    if isinstance(task, LabelsConfig):
        texts, labels = columns({"text": task.text, "label": task.label})
        classes = classes_of(run.data)
        if unknown := set(labels) - set(classes):
            raise InputError(
                f"data: {min(unknown)!r} is no class of this run; its classes are "
                f"{', '.join(map(repr, classes[:10]))}. Correct it, or name the column of labels."
            )
        held_out, empty = LabelledTexts(labels, texts), LabelledTexts([], [])
        examples = {"train": empty, "valid": held_out, "test": held_out}
        parts = Parts(examples, {}, {"classes": classes})
        return LabelsTask(task, seed, words, parts)
    if not isinstance(run.model, LanguageModel):
        raise InputError(f"{run.folder.path}: this run reads no text; leave data out.")
    text = "\n".join(columns({"text": getattr(task, "text", None)})[0]) + "\n"
    count = len(words.encode(text))
    if count < 4:
        raise InputError(f"data: a text of {count} tokens. Give more.")
    block = min(getattr(task, "block", None) or BLOCK, count - 2)
    return LanguageTask(words, seed, np.zeros(0, np.uint32), text, block, {})
