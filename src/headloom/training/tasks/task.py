"""What the training loop asks of a task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headloom.errors import InputError
from headloom.mechanism.attention_layer import LayerKind
from headloom.models.predictor import Predictor
from headloom.training.batches import Batch
from headloom.training.data import DataDescription
from headloom.training.measures import Results
from headloom.training.text import Vocabulary

#: A batch that is not made yet: which examples, or where windows begin.
Plan = list[int]


@dataclass(frozen=True, eq=False)
class Probe:
    """A fixed input whose attention is followed through the training.

    inputs: what the model takes, by name; ids (1, positions).
    tokens: the strings of each sequence: "source" and "target", or "tokens".
    """

    inputs: dict[str, Tensor]
    tokens: dict[str, list[str]]

    @classmethod
    def of_tokens(cls, ids: list[int], vocabulary: Vocabulary) -> Probe:
        """The probe of a model that reads one sequence."""
        return cls({"tokens": torch.tensor([ids])}, {"tokens": vocabulary.token_strings(ids)})

    def sequences_of(self, kind: LayerKind) -> tuple[str, str]:
        """Which sequences a layer's queries and keys come from."""
        if "tokens" in self.tokens:
            return "tokens", "tokens"
        return {
            "encoder": ("source", "source"),
            "decoder": ("target", "target"),
            "cross": ("target", "source"),
        }[kind]


class Task(ABC):
    """A task with its data.

    description: what a model must know of the data.
    ignored: the number among a batch's targets that is no target.
    """

    description: DataDescription = DataDescription()
    ignored: int = -100
    #: How one has fewer tokens to read at once, for a message.
    shorter = "leave longer texts out"

    @abstractmethod
    def plan_epoch(self, epoch: int, batch_tokens: int) -> list[Plan]:
        """The batches of a pass over the training data; the same for the same arguments."""

    @abstractmethod
    def batch(self, plan: Plan) -> Batch:
        """A planned batch of the training data."""

    @abstractmethod
    def validation(self, batch_tokens: int) -> list[Batch]:
        """The validation data."""

    @abstractmethod
    def probe(self) -> Probe:
        """The fixed input of the history."""

    @abstractmethod
    def digest(self, split: str) -> str:
        """What tells held-out data apart: two models are compared on the same only.

        Raises: InputError: there is no such split.
        """

    @abstractmethod
    def results(
        self, model: Predictor, *, split: str, beam: int, progress: Callable[[int, int], None]
    ) -> Results:
        """A trained model's measures on held-out data, with what each example adds to them.

        Args:
            model: in evaluation mode.
            split: "valid" or "test".
            beam: of the decoding, 1 = greedy.
            progress: told how many examples of how many are done.
        """

    def longest(self) -> int:
        """Tokens of the longest text that the model reads, in training, validation or test.

        0: it reads none.
        """
        return 0

    def check_split(self, split: str) -> None:
        """Raise an InputError where a task without test data is asked for other than "valid"."""
        if split != "valid":
            raise InputError(f"this run has no {split} data: use --split valid.")

    @property
    def has_test(self) -> bool:
        """Whether there are test data beside the validation data."""
        return False

    def sizes(self) -> dict[str, int]:
        """What there is to learn from, for the log."""
        return {}

    def notices(self) -> list[str]:
        """What somebody should know of the data before it is learned; a sentence each."""
        return []


def told_before(parts: Mapping[str, Sequence[Hashable]]) -> list[str]:
    """Which held-out examples are among those to learn from; a sentence for each part with such.

    >>> told_before({"train": ["a", "b"], "valid": ["b", "c"], "test": []})
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
    """A task on tokens; the filler of short sequences is no target."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.description = DataDescription(vocabulary)
        self.ignored = vocabulary.pad
