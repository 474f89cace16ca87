"""The tokens of a model that another library has trained."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from headloom.errors import DataError
from headloom.formats.files import JsonObject, read_text
from headloom.models.huggingface.tokens import NamedTokens
from headloom.training.text import Vocabulary

__all__ = ["NO_TOKEN", "PretrainedVocabulary"]

#: The id of a token that a vocabulary does not have.
NO_TOKEN = -1


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
        numbers = [ids.get(name) for name in ("pad", "unknown", "start", "end")]
        around = [ids.get(name) for name in ("before", "after")]
        if not all(type(number) is int for number in numbers) or not all(
            isinstance(part, list) and all(type(number) is int for number in part)
            for part in around
        ):
            raise DataError(
                "data.json of this run does not say which tokens begin and end a text. Put a copy "
                "back, or train again."
            )
        self.pad, self.unknown, self.start, self.end = (int(str(number)) for number in numbers)
        self.before, self.after = (
            [int(number) for number in part] if isinstance(part, list) else [] for part in around
        )
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
        return cls(
            tokenizer,
            {
                "pad": NO_TOKEN if named.padding is None else named.padding,
                "unknown": _or_none(unknown),
                "start": _or_none(next((id for id in starts if id is not None), None)),
                "end": _or_none(next(iter(ends), None)),
                "before": before,
                "after": after,
            },
        )

    def ids(self) -> JsonObject:
        """The second argument, as data.json keeps it."""
        return {
            "pad": self.pad,
            "unknown": self.unknown,
            "start": self.start,
            "end": self.end,
            "before": self.before,
            "after": self.after,
        }

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

    def decode_with_offsets(self, ids: Sequence[int]) -> tuple[str, list[tuple[int, int]]]:
        """See Vocabulary.decode_with_offsets; a token's part is what it adds to those before it.

        A character whose bytes are in several tokens belongs to the last one.
        """
        text, offsets = "", []
        for count in range(1, len(ids) + 1):
            grown = self.decode(ids[:count])
            whole = grown.rstrip("\ufffd")
            first = len(text)
            text = whole if len(whole) > first else text
            offsets.append((first, len(text)))
        return self.decode(ids), offsets

    def token_strings(self, ids: Sequence[int]) -> list[str]:
        """See Vocabulary.token_strings; as the tokenizer has them."""
        names = (self.tokenizer.id_to_token(index) for index in ids)
        return [
            f"#{index}" if name is None else name for index, name in zip(ids, names, strict=True)
        ]


def _or_none(index: int | None) -> int:
    return NO_TOKEN if index is None else index
