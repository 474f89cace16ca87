"""Description of the training data that the model needs; saved in the run's folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from headloom.errors import DataError, InputError
from headloom.formats.files import JsonObject, read_json, write_json
from headloom.formats.run import RunFolder
from headloom.training.text import Vocabulary


@dataclass(frozen=True, eq=False)
class DataDescription:
    """Vocabulary, and facts: names of classes, widths, sizes, digests.

    vocabulary: None where the model reads no tokens.
    facts: as JSON; each task chooses the names.
    folder: of the run, for error messages.
    """

    vocabulary: Vocabulary | None = None
    facts: JsonObject = field(default_factory=dict)
    folder: Path | None = None

    @property
    def words(self) -> Vocabulary:
        """Vocabulary. Raises: DataError: the run lacks it."""
        if self.vocabulary is None:
            raise self.fault("this run lacks its vocabulary.json")
        return self.vocabulary

    def fault(self, what: str) -> DataError:
        """Return the error of a run that lacks a file, or a value in it."""
        place = "" if self.folder is None else f"{self.folder}: "
        return DataError(f"{place}{what}. Put a copy back, or train again.")

    def save(self, folder: RunFolder) -> None:
        """Write vocabulary.json and data.json, where there is content."""
        if self.vocabulary is not None:
            self.vocabulary.save(folder.vocabulary)
        if self.facts:
            write_json(folder.data, self.facts)

    @classmethod
    def load(cls, folder: RunFolder) -> DataDescription | None:
        """Load a saved description; None: not saved yet. Raises: DataError: a file is damaged."""
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
    """Raise an InputError where the training data have changed since the run started.

    A split of other data would hold out other parts, and test on training data.

    Args: facts: of the run; digests: of the data, by the names of facts.
    """
    if any(facts.get(name, digest) != digest for name, digest in digests.items()):
        raise InputError(
            f"{source}: this file has changed since the run started. Restore it, or train again "
            "in another folder with --run."
        )


def classes_of(data: DataDescription) -> list[str]:
    """Return a run's class names. Raises: DataError: data.json has fewer than two."""
    names = data.facts.get("classes")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise data.fault("data.json of this run names no classes")
    if len(names) < 2:
        raise data.fault(f"data.json of this run names {len(names)} class; expected two or more")
    return names
