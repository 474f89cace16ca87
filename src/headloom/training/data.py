"""What a model must know of the data that it learns from; kept in the run's folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from headloom.errors import DataError
from headloom.formats.files import JsonObject, read_json, write_json
from headloom.formats.run import RunFolder
from headloom.training.pretrained_vocabulary import PretrainedVocabulary
from headloom.training.text import Vocabulary
from headloom.training.token_file import TokenFile

__all__ = ["DataDescription", "classes_of"]


@dataclass(frozen=True, eq=False)
class DataDescription:
    """The vocabulary of a text, and facts: names of classes, widths, sizes.

    vocabulary: None where nothing is read as tokens.
    facts: as JSON; what they are called is the task's choice.
    tokens: of the text to learn from, where it is one long text.
    digests: of that text, and of its end that is held out: by "text" and "held_out". A run that an
        earlier version began may not know them.
    folder: of the run that it was read from, for a message.
    """

    vocabulary: Vocabulary | None = None
    facts: JsonObject = field(default_factory=dict)
    tokens: TokenFile | None = None
    digests: JsonObject = field(default_factory=dict)
    folder: Path | None = None

    def fault(self, what: str) -> DataError:
        """The error of a run that lacks one of these files, or something in it."""
        place = "" if self.folder is None else f"{self.folder}: "
        return DataError(f"{place}{what}. Put a copy back, or train again.")

    def save(self, folder: RunFolder) -> None:
        """Write vocabulary.json, tokens.bin, data.json, each where there is something to write."""
        if self.vocabulary is not None:
            self.vocabulary.save(folder.vocabulary)
        facts = self.facts
        if self.tokens is not None:
            self.tokens.keep(folder.tokens)
            facts = {**facts, "tokens": {**self.digests, **self.tokens.facts}}
        if facts:
            write_json(folder.data, facts)

    @classmethod
    def load(cls, folder: RunFolder) -> DataDescription | None:
        """What `save` wrote; None: nothing yet.

        Raises: DataError: a file is damaged.
        """
        facts: JsonObject = {}
        if folder.data.exists():
            found = read_json(folder.data, "description of the data")
            if not isinstance(found, dict):
                raise DataError(f"{folder.data}: damaged; expected a JSON object. Put a copy back.")
            facts = found
            if not isinstance(facts.get("tokens", {}), dict):
                raise DataError(f'{folder.data}: damaged: "tokens" says nothing. Put a copy back.')
        known = facts.pop("tokens", {})
        tokens = TokenFile.open(folder.tokens, known)
        # Known also where the ids are lost: the text is then the same, or it is refused.
        digests = {name: known[name] for name in ("text", "held_out") if name in known}
        vocabulary: Vocabulary | None = None
        if folder.vocabulary.exists():
            ids = facts.get("special_tokens")
            if isinstance(ids, dict):
                vocabulary = PretrainedVocabulary.read(folder.vocabulary, ids)
            else:
                vocabulary = Vocabulary.load(folder.vocabulary)
        if not facts and vocabulary is None:
            return None
        return cls(vocabulary, facts, tokens, digests, folder.path)


def classes_of(data: DataDescription) -> list[str]:
    """The names of the classes that a run knows. Raises: DataError: data.json has not two."""
    names = data.facts.get("classes")
    if not names or not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise data.fault("data.json of this run names no classes")
    if len(names) < 2:
        raise data.fault(f"data.json of this run names {len(names)} class; expected two or more")
    return names
