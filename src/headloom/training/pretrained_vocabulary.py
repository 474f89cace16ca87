"""The tokens of a model that another library has trained."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from headloom.errors import DataError
from headloom.formats.files import JsonObject, read_text
from headloom.formats.manifest import misfit
from headloom.models.huggingface.folder import NamedTokens
from headloom.training.text import Vocabulary

__all__ = ["NO_TOKEN", "PretrainedVocabulary"]

#: The id of a token that a vocabulary does not have.
NO_TOKEN = -1
#: What data.json knows of the tokens: four ids, and those around a text.
_NAMES = ("pad", "unknown", "start", "end", "before", "after")


class PretrainedVocabulary(Vocabulary):
    """A tokenizer as it is, and which of its ids fill, begin and end a sequence.

    Texts are split as the tokenizer splits them, but for special tokens: one that is written out
    in a text is text.

    Args:
        tokenizer: of tokenizer.json.
        ids: "pad", "unknown", "start" and "end", NO_TOKEN where there is none; "before" and
            "after": what an encoder reads around a text.
    """

    def __init__(self, tokenizer: Tokenizer, ids: JsonObject) -> None:
        self.tokenizer = tokenizer
        tokenizer.encode_special_tokens = True
        numbers = {name: [int] if name in ("before", "after") else int for name in _NAMES}
        if misfit(ids, numbers, "special_tokens") is not None:
            raise DataError(
                "data.json of this run does not say which tokens begin and end a text. Put a copy "
                "back, or train again."
            )
        self.pad, self.unknown, self.start, self.end = (ids[name] for name in _NAMES[:4])
        self.before, self.after = ids["before"], ids["after"]
        added = tokenizer.get_added_tokens_decoder()
        marked = {index for index, token in added.items() if token.special}
        self._special = {*marked, self.pad, self.start, self.end, *self.before, *self.after}

    @classmethod
    def of_folder(cls, tokenizer: Tokenizer, named: NamedTokens) -> PretrainedVocabulary:
        """With the ids that the settings of a folder name.

        What is read around a text is what the tokenizer adds to one.
        """
        inside = tokenizer.encode("a", add_special_tokens=False).ids
        framed = tokenizer.encode("a").ids
        place = next((n for n in range(len(framed)) if framed[n : n + len(inside)] == inside), None)
        before = [] if place is None else framed[:place]
        after = [] if place is None else framed[place + len(inside) :]
        starts = (named.start, named.first, *before[:1])
        ends = (*named.ends, *after[-1:])
        model = json.loads(tokenizer.to_str())["model"]
        unknown = model.get("unk_id")  # of unigrams
        if unknown is None and model.get("unk_token") is not None:
            unknown = tokenizer.token_to_id(model["unk_token"])
        start = next((token for token in starts if token is not None), None)
        tokens = named.padding, unknown, start, next(iter(ends), None)
        numbers = [NO_TOKEN if token is None else token for token in tokens]
        return cls(tokenizer, dict(zip(_NAMES, [*numbers, before, after], strict=True)))

    def ids(self) -> JsonObject:
        """The second argument, as data.json keeps it."""
        return {name: getattr(self, name) for name in _NAMES}

    @classmethod
    def read(cls, path: Path, ids: JsonObject) -> PretrainedVocabulary:
        """What `save` wrote. Raises: DataError: it is damaged."""
        text = read_text(path, "vocabulary")
        try:
            tokenizer = Tokenizer.from_str(text)
        except Exception as error:  # tokenizers raises plain Exception
            raise DataError(
                f"{path}: this vocabulary is damaged: {error}. Put a copy back, or train again."
            ) from error
        return cls(tokenizer, ids)

    def framed(self, ids: Sequence[int], longest: int) -> list[int]:
        """See Vocabulary.framed: with what the model was trained to read around a text."""
        room = max(0, longest - len(self.before) - len(self.after))
        return [*self.before, *ids[:room], *self.after][:longest]

    def is_special(self, index: int) -> bool:
        """See Vocabulary.is_special."""
        return index in self._special

    def decode(self, ids: Sequence[int]) -> str:
        """See Vocabulary.decode; a space before the first word is the tokenizer's affair."""
        return self.decode_continuation(ids)

    def token_strings(self, ids: Sequence[int]) -> list[str]:
        """See Vocabulary.token_strings; as the tokenizer has them."""
        names = (self.tokenizer.id_to_token(index) for index in ids)
        return [
            f"#{index}" if name is None else name for index, name in zip(ids, names, strict=True)
        ]
