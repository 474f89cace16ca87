"""Text to token ids and back, by the `tokenizers` library: characters, words, pieces of words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from headloom.errors import DataError, InputError
from headloom.formats.files import atomic_file, read_text

__all__ = [
    "SPECIALS",
    "Vocabulary",
]

#: Ids of the special tokens: filler, unknown, start and end of a sequence.
SPECIALS = ("<pad>", "<unk>", "<start>", "<end>")

#: Letters, digits and the apostrophes between them; or any other sign that is no white space.
_WORD = r"\w+(?:['’]\w+)*|[^\w\s]"


class Vocabulary:
    """The tokens of a model.

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
    def of(cls, kind: str, texts: Sequence[str], size: int) -> Vocabulary:
        """One of "characters", "words" or "pieces"; size: of the last two."""
        if kind == "characters":
            return cls.of_characters(texts)
        return (cls.of_words if kind == "words" else cls.of_pieces)(texts, size)

    @classmethod
    def of_characters(cls, texts: Iterable[str]) -> Vocabulary:
        """One token for each character of the texts (after Unicode normal form C)."""
        normalizer = normalizers.NFC()
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(normalizer.normalize_str(text))
        if not counts:
            raise InputError("the texts are empty; a vocabulary needs at least one character.")
        # Frequent characters first, equal ones in code point order: the same texts give the
        # same ids whatever their order.
        characters = sorted(counts, key=lambda character: (-counts[character], character))
        words = [*SPECIALS, *characters]
        tokenizer = Tokenizer(
            models.WordLevel({word: index for index, word in enumerate(words)}, SPECIALS[1])
        )
        tokenizer.normalizer = normalizer
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        tokenizer.decoder = decoders.Fuse()
        return cls(tokenizer)

    @classmethod
    def of_words(cls, texts: Iterable[str], size: int) -> Vocabulary:
        """One token for each of the most frequent words of the texts, in lower case.

        A word is what stands together of letters, digits and apostrophes between them; every
        other sign but white space is a token of its own.

        size: number of tokens at most, the 4 specials among them.

        >>> vocabulary = Vocabulary.of_words(["It's a too-long film.", "A film!"], 7)
        >>> vocabulary.token_strings(vocabulary.encode("A film, it's"))
        ['a', 'film', '<unk>', '<unk>']
        """
        normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
        splitter = pre_tokenizers.Split(Regex(_WORD), "removed", invert=True)
        counts: Counter[str] = Counter()
        for text in texts:
            pieces = splitter.pre_tokenize_str(normalizer.normalize_str(text))
            counts.update(word for word, _ in pieces)
        if not counts:
            raise InputError("the texts are empty; a vocabulary needs at least one word.")
        ordered = sorted(counts, key=lambda word: (-counts[word], word))
        words = ordered[: max(1, size - len(SPECIALS))]
        names = {word: index for index, word in enumerate((*SPECIALS, *words))}
        tokenizer = Tokenizer(models.WordLevel(names, SPECIALS[1]))
        tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
        return cls(tokenizer)

    @classmethod
    def of_pieces(cls, texts: Iterable[str], size: int) -> Vocabulary:
        """Byte-pair encoding over bytes, learned from the texts; no text is out of its reach.

        size: number of tokens, the 256 bytes and 4 specials among them.
        Source: Sennrich et al. 2016.
        """
        if not 300 <= size <= 10_000_000:  # room for all is made before the first is learned
            raise InputError(
                f"vocabulary: {size} tokens; byte-pair encoding needs 300 or more, and ten million "
                "at most."
            )
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
        """Token ids of a text, without start and end."""
        return self.encode_all([text])[0]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Token ids of a text, and which of its characters each stands for, from start to end.

        >>> Vocabulary.of_characters(["3 May"]).encode_with_offsets("3 M")
        ([5, 4, 6], [(0, 1), (1, 2), (2, 3)])
        """
        _check_text(text)
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of many texts.

        Raises: InputError: a text holds half a surrogate pair, as from bytes that are not UTF-8.
        """
        for text in texts:
            _check_text(text)
        encodings = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def framed(self, ids: Sequence[int], longest: int) -> list[int]:
        """What an encoder reads of a text's ids: a start token, and its first tokens.

        A head that has nothing to look for can look at the start; pooling "first" reads there.
        """
        return [self.start, *ids][:longest]

    def is_special(self, index: int) -> bool:
        """Whether an id is no part of a text."""
        return index < len(SPECIALS)

    def unknown_parts(self, text: str) -> list[str]:
        """Characters, or words, of a text that the vocabulary lacks: the model reads <unk>.

        Each once, as the vocabulary would have it: composed, and in its case.

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
        """The text of token ids; special tokens vanish."""
        text = self.decode_continuation(ids)
        # Byte-pair encoding writes a space before the first word.
        return text.removeprefix(" ") if self.has_pieces else text

    def decode_continuation(self, ids: Sequence[int]) -> str:
        """The text of token ids that follow other text: a space before it is kept."""
        return self.tokenizer.decode([index for index in ids if not self.is_special(index)])

    @property
    def has_pieces(self) -> bool:
        """Whether tokens are pieces of words rather than characters."""
        return isinstance(self.tokenizer.model, models.BPE)

    def token_names(self) -> list[str]:
        """Every token as the tokenizer has it, in the order of their ids."""
        names = self.tokenizer.get_vocab()
        return sorted(names, key=lambda name: names[name])

    def token_strings(self, ids: Sequence[int]) -> list[str]:
        """Each token as a person reads it; specials by name, bytes that are no text as <0xE2>."""
        strings = []
        for index in ids:
            name = self.tokenizer.id_to_token(index)
            if name is None:
                raise InputError(f"token id {index}: the vocabulary has 0 to {len(self) - 1}.")
            if self.has_pieces and not self.is_special(index):
                text = self.tokenizer.decode([index])
                if "\ufffd" in text:
                    text = "".join(f"<0x{byte:02X}>" for byte in _bytes_of(name))
                name = text
            strings.append(name)
        return strings

    def save(self, path: Path) -> None:
        """Write a tokenizer.json, whole or not at all."""
        with atomic_file(path) as temporary:
            temporary.write_text(self.tokenizer.to_str(pretty=False), "utf-8")

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Read what `save` wrote."""
        text = read_text(path, "vocabulary")
        try:
            return cls(Tokenizer.from_str(text))
        except Exception as error:  # tokenizers raises plain Exception
            raise DataError(
                f"{path}: this vocabulary is damaged: {error}. Put a copy back, or train again."
            ) from error


def _check_text(text: str) -> None:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise InputError(f"the text {text[:40]!r} is not UTF-8 text. Convert it.")


def _byte_alphabet() -> dict[str, int]:
    """Which byte each character of a byte-level piece stands for.

    Printable Latin-1 stands for itself, the other 68 bytes for the code points from 256 on, in
    order.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + place): byte for place, byte in enumerate(others)
    }


_BYTE_OF = _byte_alphabet()


def _bytes_of(piece: str) -> bytes:
    """The bytes behind a byte-level piece."""
    return bytes(_BYTE_OF[character] for character in piece)
