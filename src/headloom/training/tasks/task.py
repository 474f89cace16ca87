"""Base class of tasks: data, batches, probe and measures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headloom.errors import InputError
from headloom.models.predictor import Predictor
from headloom.training.batches import Batch
from headloom.training.data import DataDescription
from headloom.training.measures import Results
from headloom.training.text import Vocabulary

#: A planned batch: indices of examples, or starts of windows.
Plan = list[int]


@dataclass(frozen=True, eq=False)
class Probe:
    """Fixed input whose attention is recorded during training.

    inputs: model inputs by name; ids (1, positions).
    tokens: the strings of each sequence: "source" and "target", or "tokens".
    """

    inputs: dict[str, Tensor]
    tokens: dict[str, list[str]]

    @classmethod
    def of_tokens(cls, ids: list[int], vocabulary: Vocabulary) -> Probe:
        """Make the probe of a model that reads one sequence."""
        return cls({"tokens": torch.tensor([ids])}, {"tokens": vocabulary.token_strings(ids)})


class Task(ABC):
    """Training task with its data.

    description: vocabulary, class names and sizes that the model needs.
    ignored: target value that is not scored, such as padding.
    """

    description: DataDescription = DataDescription()
    ignored: int = -100
    #: Advice for texts that are too long, for an error message.
    shorter = "leave longer texts out"

    @abstractmethod
    def plan_epoch(self, epoch: int, batch_tokens: int) -> list[Plan]:
        """Plan the batches of an epoch; equal arguments give equal plans."""

    @abstractmethod
    def batch(self, plan: Plan) -> Batch:
        """Return a planned batch of the training data."""

    @abstractmethod
    def validation(self, batch_tokens: int) -> list[Batch]:
        """Return the validation data in batches."""

    @abstractmethod
    def probe(self) -> Probe:
        """Return the fixed input of the history."""

    @abstractmethod
    def digest(self, split: str) -> str:
        """Return a hash of held-out data: models are compared on the same data only.

        Raises: InputError: the task has no such split.
        """

    @abstractmethod
    def results(
        self, model: Predictor, *, split: str, beam: int, progress: Callable[[int, int], None]
    ) -> Results:
        """Measure a trained model on held-out data, with each example's share of the sums.

        Args:
            model: in evaluation mode.
            split: "valid" or "test".
            beam: of the decoding, 1 = greedy.
            progress: called with the examples done and their total.
        """

    def longest(self) -> int:
        """Return the tokens of the longest text in training, validation or test; 0: no texts."""
        return 0

    def check_split(self, split: str) -> None:
        """Raise an InputError where a task without test data gets a split other than "valid"."""
        if split != "valid":
            raise InputError(f"this run has no {split} data: use --split valid.")

    @property
    def has_test(self) -> bool:
        """Presence of test data beside the validation data."""
        return False

    def sizes(self) -> dict[str, int]:
        """Return the sizes of the data, for the log."""
        return {}

    def notices(self) -> list[str]:
        """Return warnings about the data, one sentence each."""
        return []


def overlap_notices(parts: Mapping[str, Sequence[Hashable]]) -> list[str]:
    """Return a notice for each held-out part that shares examples with the training data.

    >>> overlap_notices({"train": ["a", "b"], "valid": ["b", "c"], "test": []})
    ['1 of 2 valid examples also in train: not new to the model.']
    """
    known = set(parts["train"])
    counts = {
        part: sum(example in known for example in examples)
        for part, examples in parts.items()
        if part != "train"
    }
    return [
        f"{count:,} of {len(parts[part]):,} {part} examples also in train: not new to the model."
        for part, count in counts.items()
        if count
    ]


class TextTask(Task):
    """Task on tokens; padding is no target."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.description = DataDescription(vocabulary)
        self.ignored = vocabulary.pad
