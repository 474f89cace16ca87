"""What can be learned: dates, translation, language, repeats; with shared blocks and loop."""

from __future__ import annotations

from weft.training.config import DatesConfig, LanguageConfig, RepeatsConfig, TaskConfig
from weft.training.tasks.dates import dates_task
from weft.training.tasks.language import language_task
from weft.training.tasks.repeats import repeats_task
from weft.training.tasks.task import Task
from weft.training.tasks.translation import translation_task
from weft.training.text import Vocabulary

__all__ = ["make_task"]


def make_task(config: TaskConfig, seed: int, vocabulary: Vocabulary | None = None) -> Task:
    """A task with its data, ready to be learned.

    Args:
        config: which, and with which data.
        seed: of everything drawn.
        vocabulary: of a run that goes on; None: made from the training data.
    """
    if isinstance(config, DatesConfig):
        return dates_task(config, seed, vocabulary)
    if isinstance(config, LanguageConfig):
        return language_task(config, seed, vocabulary)
    if isinstance(config, RepeatsConfig):
        return repeats_task(config, seed, vocabulary)
    return translation_task(config, seed, vocabulary)
