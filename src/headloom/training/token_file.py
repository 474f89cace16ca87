"""The token ids of a long text, in a file that is mapped: what is not read takes no memory."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from headloom.formats.files import JsonObject, atomic_file, disk_errors
from headloom.training.text import Vocabulary

__all__ = ["TokenFile", "digest_of", "parts_of"]

#: Characters of a part that is tokenised at once, and parts of one call, which share the cores.
_PART, _PARTS = 1 << 18, 8
#: Where a text may be cut: before a single space that follows a word, or the end of a line. (Before
#: more of them, the characters around the border may be nothing but spaces, which some tokenizers
#: take off an end.)
_BORDER = re.compile(r"(?<=\w)\s(?=\S)|(?<=\S)\n(?=\S)")
#: Characters before and after a border that show whether it changes tokens, and borders tried.
_AROUND, _TRIED = 200, 64


class TokenFile:
    """Token ids of a text, one after the other, each in 2 or 4 bytes.

    ids: (tokens,), mapped.
    facts: what `open` needs to know: how many ids of which type, and their digest.

    >>> vocabulary = Vocabulary.of_characters(["to be or not to be"])
    >>> tokens = TokenFile.of_text("not to be", vocabulary)
    >>> tokens.ids[:3].tolist(), vocabulary.decode(tokens.ids.tolist())
    ([9, 5, 6], 'not to be')
    """

    def __init__(self, file: IO[bytes] | Path, facts: JsonObject) -> None:
        self.facts = facts
        self._map(file)

    def _map(self, file: IO[bytes] | Path) -> None:
        kind, count = np.dtype(self.facts["type"]), int(self.facts["count"])
        # An empty file cannot be mapped.
        self.ids: NDArray[np.unsignedinteger] = (
            np.memmap(file, kind, mode="r", shape=(count,)) if count else np.zeros(0, kind)
        )

    @classmethod
    def of_text(cls, text: str, vocabulary: Vocabulary) -> TokenFile:
        """Tokenise a text, part by part, into a file that has no name.

        The ids are those of the whole text: see `parts_of`.

        Raises: DataError: there is no room for it. InputError: it is not UTF-8 text.
        """
        largest = max(vocabulary.tokenizer.get_vocab().values(), default=0)
        kind = np.dtype(np.uint16 if largest < 1 << 16 else np.uint32)
        count, digest = 0, hashlib.sha256()
        parts = parts_of(text, vocabulary)
        remedy = "Free some space, or set TMPDIR to a folder that has more."
        with (
            disk_errors(f"token ids in {tempfile.gettempdir()}", remedy),
            tempfile.TemporaryFile(prefix="headloom-tokens-") as file,
        ):
            while some := list(islice(parts, _PARTS)):
                for ids in vocabulary.encode_all(some):
                    content = np.array(ids, kind).tobytes()
                    file.write(content)
                    digest.update(content)
                    count += len(ids)
            file.flush()
            facts = {"type": kind.name, "count": count, "digest": digest.hexdigest()}
            # What is mapped stays when the file is closed, which then is no more.
            return cls(file, facts)

    def keep(self, path: Path) -> None:
        """Write the ids to a path, whole or not at all, and read them from there.

        Raises: DataError: there is no room for it.
        """
        with atomic_file(path) as temporary:
            temporary.write_bytes(self.ids.data)
        self._map(path)

    @classmethod
    def open(cls, path: Path, facts: JsonObject) -> TokenFile | None:
        """What `keep` wrote. None: it is not there, or no longer what was written."""
        try:
            size = np.dtype(str(facts["type"])).itemsize * int(facts["count"])
            with path.open("rb") as file:
                if path.stat().st_size != size:
                    return None
                if hashlib.file_digest(file, "sha256").hexdigest() != facts["digest"]:
                    return None
            return cls(path, {name: facts[name] for name in ("type", "count", "digest")})
        except (OSError, KeyError, TypeError, ValueError, OverflowError):
            return None


def digest_of(text: str) -> str:
    """What tells texts apart: the SHA-256 of their UTF-8."""
    digest = hashlib.sha256()
    for start in range(0, len(text), _PART):
        digest.update(text[start : start + _PART].encode())
    return digest.hexdigest()


def parts_of(text: str, vocabulary: Vocabulary) -> Iterator[str]:
    """A text cut where its tokens stay what they are: at borders that the tokenizer does not see.

    A border is tried on the characters around it, tokenised at once and in two. Where none passes,
    as in a text without spaces, the part goes on.

    >>> words = Vocabulary.of_characters(["a b"])
    >>> [len(part) for part in parts_of("word " * 200_000, words)]
    [262144, 262145, 475711]
    """
    start = looked = 0
    while len(text) - looked > 2 * _PART:
        looked += _PART
        cut = _border(text, looked, vocabulary)
        if cut is not None:
            yield text[start:cut]
            start = looked = cut
    if start < len(text):
        yield text[start:]


def _border(text: str, first: int, vocabulary: Vocabulary) -> int | None:
    """The next place where a text can be cut."""
    borders = _BORDER.finditer(text, first, first + _PART)
    for _, found in zip(range(_TRIED), borders, strict=False):
        cut = found.start()
        before, after = text[max(0, cut - _AROUND) : cut], text[cut : cut + _AROUND]
        whole, left, right = vocabulary.encode_all([before + after, before, after])
        if whole == left + right:
            return cut
    return None
