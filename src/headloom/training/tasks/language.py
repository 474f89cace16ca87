"""A language model on the characters, or the byte-pair pieces, of a text file."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from headloom.errors import InputError
from headloom.formats.files import JsonObject, read_text
from headloom.formats.lines import text_lines
from headloom.models.predictor import Predictor
from headloom.training.batches import Batch
from headloom.training.data import DataDescription, check_unchanged
from headloom.training.measures import Results, digest, language_measures, of_stretches, token_bytes
from headloom.training.sections import LanguageConfig
from headloom.training.tasks.task import Plan, Probe, TextTask
from headloom.training.text import Vocabulary
from headloom.training.validation import score_targets

__all__ = ["LanguageTask", "ids_of", "language_task", "parts_of"]

#: Characters of a part that is tokenised at once, and parts of one call, which share the cores.
_PART, _PARTS = 1 << 18, 8
#: Where a text may be cut: before a single space that follows a word, or the end of a line. (Before
#: more of them, the characters around the border may be nothing but spaces, which some tokenizers
#: take off an end.)
_BORDER = re.compile(r"(?<=\w)\s(?=\S)|(?<=\S)\n(?=\S)")
#: Characters before and after a border that show whether it changes tokens, and borders tried.
_AROUND, _TRIED = 200, 64


def ids_of(text: str, vocabulary: Vocabulary) -> NDArray[np.unsignedinteger]:
    """Token ids of a long text, in 2 or 4 bytes each: those of the whole text, see `parts_of`.

    >>> ids_of("not to be", Vocabulary.of_characters(["to be or not to be"]))[:3].tolist()
    [9, 5, 6]
    """
    largest = max(vocabulary.tokenizer.get_vocab().values(), default=0)
    kind = np.dtype(np.uint16 if largest < 1 << 16 else np.uint32)
    parts, ids = parts_of(text, vocabulary), [np.zeros(0, kind)]
    while some := list(islice(parts, _PARTS)):
        ids += [np.array(each, kind) for each in vocabulary.encode_all(some)]
    return np.concatenate(ids)


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
    for border in islice(_BORDER.finditer(text, first, first + _PART), _TRIED):
        cut = border.start()
        before, after = text[max(0, cut - _AROUND) : cut], text[cut : cut + _AROUND]
        whole, left, right = vocabulary.encode_all([before + after, before, after])
        if whole == left + right:
            return cut
    return None


class LanguageTask(TextTask):
    """Windows of one long text; each token is predicted from those before it in its window."""

    shorter = "choose a smaller task.block"

    def __init__(
        self,
        vocabulary: Vocabulary,
        seed: int,
        train: NDArray[np.unsignedinteger],
        valid_text: str,
        block: int,
        digests: JsonObject,
    ) -> None:
        super().__init__(vocabulary)
        self.description = DataDescription(vocabulary, digests)
        self.seed, self.block = seed, block
        self.valid_text = valid_text
        ids, offsets = vocabulary.encode_with_offsets(valid_text)
        self._train, self._valid = train, torch.tensor(ids)
        #: Where each token of the held-out text begins, in characters.
        self._starts = [start for start, _ in offsets]

    def sizes(self) -> dict[str, int]:
        """See Task.sizes."""
        return {
            "train_tokens": len(self._train),
            "valid_tokens": len(self._valid),
            "vocabulary": len(self.vocabulary),
        }

    def longest(self) -> int:
        """See Task.longest."""
        return self.block

    def plan_epoch(self, epoch: int, batch_tokens: int) -> list[Plan]:
        """Windows at random places, as many tokens as the text has."""
        numbers = random.Random(self.seed * 1_000_003 + epoch)
        windows = max(1, batch_tokens // self.block)
        tokens = len(self._train)
        last = tokens - self.block - 1
        count = max(1, tokens // (windows * self.block))
        return [[numbers.randint(0, last) for _ in range(windows)] for _ in range(count)]

    def batch(self, plan: Plan) -> Batch:
        """See Task.batch."""
        return self._windows(self._train, plan)

    def _windows(self, ids: NDArray[np.integer], starts: list[int]) -> Batch:
        places = np.array(starts)[:, None] + np.arange(self.block + 1)
        windows = torch.from_numpy(ids[places].astype(np.int64))
        return Batch({"tokens": windows[:, :-1]}, windows[:, 1:], len(starts) * self.block)

    def validation(self, batch_tokens: int) -> list[Batch]:
        """The held-out text, window by window."""
        starts = list(range(0, len(self._valid) - self.block, self.block))
        size = max(1, batch_tokens // self.block)
        return [
            self._windows(self._valid.numpy(), starts[place : place + size])
            for place in range(0, len(starts), size)
        ]

    def probe(self) -> Probe:
        """The first tokens of the held-out text."""
        ids = self._valid[: min(48, self.block)].tolist()
        return Probe.of_tokens(ids, self.vocabulary)

    def digest(self, split: str) -> str:
        """See Task.digest."""
        self.check_split(split)
        return digest(self.valid_text)

    def results(
        self, model: Predictor, *, split: str, beam: int, progress: Callable[[int, int], None]
    ) -> Results:
        """Bits per byte, loss, perplexity and accuracy on the held-out text."""
        self.check_split(split)
        batches, scores = self.validation(8_192), []
        for done, batch in enumerate(batches, 1):
            scores.append(score_targets(model, batch, self.vocabulary.pad))
            progress(done, len(batches))
        nats = torch.cat([part.nats for part in scores]).numpy()
        right = torch.cat([part.right for part in scores]).double().numpy()
        # The windows stand side by side: what they predict is the text from its second token on.
        sizes = token_bytes(self.valid_text, self._starts)[1 : len(nats) + 1]
        starts = np.array(self._starts[1 : len(nats) + 1], dtype=np.float64)
        unknown = (self._valid[1 : len(nats) + 1] == self.vocabulary.unknown).double().numpy()
        each = {"tokens": np.ones_like(nats), "bytes": sizes, "unknown_tokens": unknown}
        counts = {name: of_stretches(values, starts) for name, values in each.items()}
        facts = {name: int(values.sum()) for name, values in each.items()}
        measures = language_measures(nats, right, sizes, starts)
        ends = [*self._starts, len(self.valid_text)]
        covered = ends[1], ends[len(nats) + 1]
        return Results("valid", "stretches of text", measures, facts, counts, covered)


def language_task(
    config: LanguageConfig, seed: int, data: DataDescription | None = None
) -> LanguageTask:
    """The task with its text read and split: the beginning to learn from, the end held out.

    Raises: DataError: the text cannot be read. InputError: it is too short for the windows, or no
    longer the text of this run.
    """
    text = read_text(Path(config.file), "text (task.file says where, in headloom evaluate --data)")
    # Cut before tokenising, so that no piece spans the border.
    border = int(len(text) * (1 - config.valid_share))
    train_text, valid_text = text[:border], text[border:]
    if not train_text.strip():
        raise InputError(f"{config.file}: the text is empty, or all held out. Give more text.")
    digests = {
        name: hashlib.sha256(part.encode()).hexdigest()
        for name, part in (("text", train_text), ("held_out", valid_text))
    }
    vocabulary = None
    if data is not None:
        check_unchanged(data.facts, digests, config.file)
        vocabulary = data.vocabulary
    if vocabulary is None and config.tokens == "characters":
        vocabulary = Vocabulary.of_characters([train_text])
    elif vocabulary is None:
        lines = (line for line in text_lines(train_text) if line)
        vocabulary = Vocabulary.of_pieces(lines, config.vocabulary)
    train = ids_of(train_text, vocabulary)
    task = LanguageTask(vocabulary, seed, train, valid_text, config.block, digests)
    sizes = task.sizes()
    for name, part in (("training", "train_tokens"), ("held-out", "valid_tokens")):
        if sizes[part] < config.block + 2:
            raise InputError(
                f"{config.file}: the {name} part has {sizes[part]} tokens; expected more than "
                f"task.block + 1 = {config.block + 1}. Give more text or a smaller block."
            )
    return task
