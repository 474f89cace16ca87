"""Vocabularies of characters, words or pieces of words, by the `tokenizers` library."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from headloom.errors import DataError, InputError
from headloom.formats.files import JsonObject, atomic_file, read_text
from headloom.formats.manifest import misfit
from headloom.formats.tokens import BYTES
from headloom.models.huggingface.folder import NamedTokens

#: Ids of the special tokens: filler, unknown, start and end of a sequence.
SPECIALS = ("<pad>", "<unk>", "<start>", "<end>")

#: The id of a token that a vocabulary does not have.
NO_TOKEN = -1
#: Keys of the tokens in data.json: four ids, and the ids before and after a text.
_NAMES = ("pad", "unknown", "start", "end", "before", "after")
#: Letters, digits and the apostrophes between them; or any other sign that is no white space.
_WORD = r"\w+(?:['’]\w+)*|[^\w\s]"


class Vocabulary:
    """Tokens of a model.

    >>> vocabulary = Vocabulary.of_characters(["3 May"])
    >>> vocabulary.encode("3 Ma")
    [5, 4, 6, 7]
    >>> vocabulary.decode([5, 4, 6, 7])
    '3 Ma'
    """

    pad: int
    unknown: int
    start: int
    end: int
    pad, unknown, start, end = range(4)

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        # "<end>" in a text is five characters, not the end of the sequence.
        tokenizer.encode_special_tokens = True
        for index, special in enumerate(SPECIALS):
            if tokenizer.token_to_id(special) != index:
                raise DataError(
                    f"the tokenizer has {special} at {tokenizer.token_to_id(special)}, expected "
                    f"{index}. It was not made by headloom."
                )

    @classmethod
    def of(cls, kind: str, texts: Iterable[str], size: int) -> Vocabulary:
        """Make a vocabulary of "characters", "words" or "pieces"; size: of the last two."""
        if kind == "characters":
            return cls.of_characters(texts)
        return (cls.of_words if kind == "words" else cls.of_pieces)(texts, size)

    @classmethod
    def of_characters(cls, texts: Iterable[str]) -> Vocabulary:
        """Make a token for each character of the texts (in Unicode normal form C)."""
        normalizer = normalizers.NFC()
        tokens = (normalizer.normalize_str(text) for text in texts)
        tokenizer = _word_level(itertools.chain.from_iterable(tokens), "character")
        tokenizer.normalizer = normalizer
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        tokenizer.decoder = decoders.Fuse()
        return cls(tokenizer)

    @classmethod
    def of_words(cls, texts: Iterable[str], size: int) -> Vocabulary:
        """Make a token for each of the most frequent words of the texts, in lower case.

        A word is a run of letters, digits and apostrophes between them; every other character but
        white space is a token of its own.

        size: number of tokens at most, the 4 specials among them.

        >>> vocabulary = Vocabulary.of_words(["It's a too-long film.", "A film!"], 7)
        >>> vocabulary.token_strings(vocabulary.encode("A film, it's"))
        ['a', 'film', '<unk>', '<unk>']
        """
        normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
        splitter = pre_tokenizers.Split(Regex(_WORD), "removed", invert=True)
        words = (
            word
            for text in texts
            for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))
        )
        tokenizer = _word_level(words, "word", max(1, size - len(SPECIALS)))
        tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
        return cls(tokenizer)

    @classmethod
    def of_pieces(cls, texts: Iterable[str], size: int) -> Vocabulary:
        """Learn byte-pair encoding over bytes, which can encode any text.

        size: number of tokens, the 256 bytes and 4 specials among them.
        Source: Sennrich et al. 2016.
        """
        tokenizer = Tokenizer(models.BPE())
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=list(SPECIALS),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        return cls(tokenizer)

    def __len__(self) -> int:
        return self.tokenizer.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, without start and end."""
        return self.encode_all([text])[0]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the token ids of a text, and the characters of each, from start to end.

        >>> Vocabulary.of_characters(["3 May"]).encode_with_offsets("3 M")
        ([5, 4, 6], [(0, 1), (1, 2), (2, 3)])
        """
        _check_text(text)
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of many texts.

        Raises: InputError: a text holds half a surrogate pair, as from bytes that are not UTF-8.
        """
        for text in texts:
            _check_text(text)
        encodings = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def framed(self, ids: Sequence[int], longest: int) -> list[int]:
        """Return the ids that an encoder reads of a text: a start token, and its first ids.

        A head can attend to the start where no key matters; pooling "first" reads it.
        """
        return [self.start, *ids][:longest]

    def is_special(self, index: int) -> bool:
        """Return whether an id is a special token."""
        return index < len(SPECIALS)

    def unknown_parts(self, text: str) -> list[str]:
        """Return the characters, or words, of a text that the vocabulary lacks (<unk>).

        Each once, normalised as the vocabulary's own tokens.

        >>> Vocabulary.of_characters(["3 May"]).unknown_parts("4 May 4")
        ['4']
        """
        _check_text(text)
        normalizer = self.tokenizer.normalizer
        normal = text if normalizer is None else normalizer.normalize_str(text)
        encoding = self.tokenizer.encode(normal, add_special_tokens=False)
        places = zip(encoding.ids, encoding.offsets, strict=True)
        unknown = (normal[start:end] for number, (start, end) in places if number == self.unknown)
        return list(dict.fromkeys(unknown))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens."""
        text = self.decode_continuation(ids)
        # Byte-pair encoding writes a space before the first word.
        return text.removeprefix(" ") if self.has_pieces else text

    def decode_continuation(self, ids: Sequence[int]) -> str:
        """Return the text of token ids that follow other text, with a leading space."""
        return self.tokenizer.decode([index for index in ids if not self.is_special(index)])

    @property
    def has_pieces(self) -> bool:
        """Whether tokens are pieces of words."""
        return isinstance(self.tokenizer.model, models.BPE)

    def token_names(self) -> list[str]:
        """Return all tokens of the tokenizer in the order of their ids."""
        names = self.tokenizer.get_vocab()
        return sorted(names, key=lambda name: names[name])

    def token_strings(self, ids: Sequence[int]) -> list[str]:
        """Return each token as readable text; bytes that are no text as <0xE2>."""
        strings = []
        for index in ids:
            name = self.tokenizer.id_to_token(index)
            if name is None:
                raise InputError(f"token id {index}: the vocabulary has 0 to {len(self) - 1}.")
            if self.has_pieces and not self.is_special(index):
                text = self.tokenizer.decode([index])
                if "\ufffd" in text:
                    text = "".join(f"<0x{BYTES[sign]:02X}>" for sign in name)
                name = text
            strings.append(name)
        return strings

    def save(self, path: Path) -> None:
        """Write a tokenizer.json atomically."""
        with atomic_file(path) as temporary:
            temporary.write_text(self.tokenizer.to_str(pretty=False), "utf-8")

    @classmethod
    def load(cls, path: Path, special_tokens: object = None) -> Vocabulary:
        """Load a saved vocabulary; special_tokens: the ids of a PretrainedVocabulary."""
        text = read_text(path, "vocabulary")
        try:
            tokenizer = Tokenizer.from_str(text)
            if isinstance(special_tokens, dict):
                return PretrainedVocabulary(tokenizer, special_tokens)
            return cls(tokenizer)
        except Exception as error:  # tokenizers raises plain Exception
            raise DataError(
                f"{path}: this vocabulary is damaged: {error}. Put a copy back, or train again."
            ) from error


def _check_text(text: str) -> None:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise InputError(f"the text {text[:40]!r} is not UTF-8 text. Convert it.")


def _word_level(tokens: Iterable[str], kind: str, most: int | None = None) -> Tokenizer:
    """Make a tokenizer of the most frequent tokens.

    Ties are in code point order: the order of the texts does not matter.
    """
    counts = Counter(tokens)
    if not counts:
        raise InputError(f"the texts are empty; a vocabulary needs at least one {kind}.")
    names = sorted(counts, key=lambda token: (-counts[token], token))[:most]
    ids = {name: index for index, name in enumerate((*SPECIALS, *names))}
    return Tokenizer(models.WordLevel(ids, SPECIALS[1]))


class PretrainedVocabulary(Vocabulary):
    """Unchanged tokenizer of a pretrained model, with the ids of its special tokens.

    A special token that is written out in a text is read as text.

    Args:
        tokenizer: of tokenizer.json.
        ids: "pad", "unknown", "start" and "end", NO_TOKEN where there is none; "before" and
            "after": ids that an encoder reads around a text.
    """

    def __init__(self, tokenizer: Tokenizer, ids: JsonObject) -> None:
        self.tokenizer = tokenizer
        tokenizer.encode_special_tokens = True
        numbers = {name: [int] if name in ("before", "after") else int for name in _NAMES}
        if misfit(ids, numbers, "special_tokens") is not None:
            raise DataError(
                "data.json of this run lacks the ids of its special tokens. Put a copy back, or "
                "train again."
            )
        self.pad, self.unknown, self.start, self.end = (ids[name] for name in _NAMES[:4])
        self.before, self.after = ids["before"], ids["after"]
        added = tokenizer.get_added_tokens_decoder()
        marked = {index for index, token in added.items() if token.special}
        self._special = {*marked, self.pad, self.start, self.end, *self.before, *self.after}

    @classmethod
    def of_folder(cls, tokenizer: Tokenizer, named: NamedTokens) -> PretrainedVocabulary:
        """Make the vocabulary of a folder from its tokenizer and settings.

        The tokens around a text are those that the tokenizer adds.
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
        """Return the ids as data.json keeps them."""
        return {name: getattr(self, name) for name in _NAMES}

    def framed(self, ids: Sequence[int], longest: int) -> list[int]:
        """Return the ids with the tokens that the model expects around a text."""
        room = max(0, longest - len(self.before) - len(self.after))
        return [*self.before, *ids[:room], *self.after][:longest]

    def is_special(self, index: int) -> bool:
        return index in self._special

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids; spaces are left to the tokenizer."""
        return self.decode_continuation(ids)

    def token_strings(self, ids: Sequence[int]) -> list[str]:
        """Return each token as the tokenizer has it."""
        names = (self.tokenizer.id_to_token(index) for index in ids)
        return [
            f"#{index}" if name is None else name for index, name in zip(ids, names, strict=True)
        ]
