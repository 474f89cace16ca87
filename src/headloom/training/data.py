"""What a model must know of the data that it learns from; kept in the run's folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from headloom.errors import DataError, InputError
from headloom.formats.files import JsonObject, read_json, write_json
from headloom.formats.run import RunFolder
from headloom.training.text import Vocabulary


@dataclass(frozen=True, eq=False)
class DataDescription:
    """The vocabulary of a text, and facts: names of classes, widths, sizes, digests.

    vocabulary: None where nothing is read as tokens.
    facts: as JSON; what they are called is the task's choice.
    folder: of the run that it was read from, for a message.
    """

    vocabulary: Vocabulary | None = None
    facts: JsonObject = field(default_factory=dict)
    folder: Path | None = None

    @property
    def words(self) -> Vocabulary:
        """The vocabulary. Raises: DataError: the run lacks it."""
        if self.vocabulary is None:
            raise self.fault("this run lacks its vocabulary.json")
        return self.vocabulary

    def fault(self, what: str) -> DataError:
        """The error of a run that lacks one of these files, or something in it."""
        place = "" if self.folder is None else f"{self.folder}: "
        return DataError(f"{place}{what}. Put a copy back, or train again.")

    def save(self, folder: RunFolder) -> None:
        """Write vocabulary.json and data.json, each where there is something to write."""
        if self.vocabulary is not None:
            self.vocabulary.save(folder.vocabulary)
        if self.facts:
            write_json(folder.data, self.facts)

    @classmethod
    def load(cls, folder: RunFolder) -> DataDescription | None:
        """What `save` wrote; None: nothing yet. Raises: DataError: a file is damaged."""
        facts = read_json(folder.data, "description of the data") if folder.data.exists() else {}
        if not isinstance(facts, dict):
            raise DataError(f"{folder.data}: damaged; expected a JSON object. Put a copy back.")
        vocabulary = None
        if folder.vocabulary.exists():
            vocabulary = Vocabulary.load(folder.vocabulary, facts.get("special_tokens"))
        if not facts and vocabulary is None:
            return None
        return cls(vocabulary, facts, folder.path)


def check_unchanged(facts: JsonObject, digests: JsonObject, source: Path | str) -> None:
    """Raise an InputError where a run has learned from other data than are there now.

    From others, other parts would be held out: what is measured on would have been learned from.

    Args: facts: that the run knows; digests: of the data, by the names of facts.
    """
    if any(facts.get(name, digest) != digest for name, digest in digests.items()):
        raise InputError(
            f"{source}: it has changed since this run began to learn from it. Put it back, or "
            "train again in another folder with --run."
        )


def classes_of(data: DataDescription) -> list[str]:
    """The names of the classes that a run knows. Raises: DataError: data.json has not two."""
    names = data.facts.get("classes")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise data.fault("data.json of this run names no classes")
    if len(names) < 2:
        raise data.fault(f"data.json of this run names {len(names)} class; expected two or more")
    return names
