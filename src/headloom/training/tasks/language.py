"""Language models: on a text file, or on sequences whose first half comes again."""

from __future__ import annotations

import hashlib
import random
import re
import string
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from headloom.errors import InputError
from headloom.formats.files import JsonObject, read_text, text_lines
from headloom.models.predictor import Predictor
from headloom.training.batches import Batch
from headloom.training.data import DataDescription, check_unchanged
from headloom.training.examples import read_columns
from headloom.training.measures import (
    Floats,
    Results,
    digest,
    language_measures,
    mean_measure,
    of_stretches,
    token_bytes,
)
from headloom.training.sections import LanguageConfig, RepeatsConfig
from headloom.training.tasks.task import Plan, Probe, TextTask
from headloom.training.text import Vocabulary
from headloom.training.validation import score_targets

#: Tokens of a window, where the text has as many.
BLOCK = 128
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
        for border in islice(_BORDER.finditer(text, looked, looked + _PART), _TRIED):
            cut = border.start()
            before, after = text[max(0, cut - _AROUND) : cut], text[cut : cut + _AROUND]
            whole, left, right = vocabulary.encode_all([before + after, before, after])
            if whole == left + right:
                yield text[start:cut]
                start = looked = cut
                break
    if start < len(text):
        yield text[start:]


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
        tokens = len(self._train)
        windows = max(1, min(batch_tokens, tokens) // self.block)
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
    path, what = Path(config.file), "text (task.file says where, in headloom evaluate --data)"
    columns = read_columns(path, {"text": config.text}, what)
    text = "\n".join(columns[0]) if columns else read_text(path, what)
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
    if vocabulary is None:
        texts = [train_text] if config.tokens == "characters" else text_lines(train_text)
        vocabulary = Vocabulary.of(config.tokens, filter(None, texts), config.vocabulary)
    train = ids_of(train_text, vocabulary)
    task = LanguageTask(vocabulary, seed, train, valid_text, config.block or BLOCK, digests)
    sizes = task.sizes()
    if config.block is None:
        task.block = max(2, min(BLOCK, sizes["train_tokens"] - 2, sizes["valid_tokens"] - 2))
    for name, part in (("training", "train_tokens"), ("held-out", "valid_tokens")):
        if sizes[part] < task.block + 2:
            raise InputError(
                f"{config.file}: the {name} part has {sizes[part]} tokens; expected more than "
                f"task.block + 1 = {task.block + 1}. Give more text, a larger task.valid_share "
                "or a smaller task.block."
            )
    return task


#: What every sequence begins with.
START = "."

#: What is repeated.
SYMBOLS = string.ascii_lowercase + string.ascii_uppercase + string.digits

#: Batches of an epoch: the data never end, so this is only how often it is counted.
_EPOCH = 200


class RepeatsTask(TextTask):
    """Parts drawn at random, each followed by its copy; no sequence is ever drawn twice.

        .fK3qZ8fK3qZ8

    How long the part is differs from sequence to sequence, so that no fixed distance leads back to
    the copy: the way to predict a symbol is to find the earlier copy of the one before it, and to
    look at what followed there (induction). Only the repeated symbols are targets.
    """

    shorter = "choose a smaller task.longest"

    def __init__(self, vocabulary: Vocabulary, seed: int, config: RepeatsConfig) -> None:
        super().__init__(vocabulary)
        self.seed, self.config = seed, config
        self._ids = vocabulary.encode(SYMBOLS[: config.symbols])
        (self._start,) = vocabulary.encode(START)

    def sizes(self) -> dict[str, int]:
        """See Task.sizes."""
        return {"symbols": len(self._ids), "shortest part": self.config.shortest,
                "longest part": self.config.longest}  # fmt: skip

    def longest(self) -> int:
        """See Task.longest."""
        return 2 * self.config.longest

    def plan_epoch(self, epoch: int, batch_tokens: int) -> list[Plan]:
        """Each batch by its number, the length of its parts, and how many sequences it has."""
        numbers = random.Random(self.seed * 1_000_003 + epoch)
        lengths = [
            numbers.randint(self.config.shortest, self.config.longest) for _ in range(_EPOCH)
        ]
        return [
            [epoch * _EPOCH + place, length, max(1, batch_tokens // (2 * length))]
            for place, length in enumerate(lengths)
        ]

    def batch(self, plan: Plan) -> Batch:
        """See Task.batch."""
        number, length, count = plan
        return self._draw(2 * number, length, count)

    def _draw(self, number: int, length: int, count: int) -> Batch:
        """Sequences of one length. Even numbers are for training, odd ones for validation."""
        seed = (self.seed * 1_000_003 + number) % 2**63
        generator = torch.Generator().manual_seed(seed)
        order = torch.rand(count, len(self._ids), generator=generator).argsort(-1)
        part = torch.tensor(self._ids)[order[:, :length]]
        start = torch.full((count, 1), self._start)
        tokens = torch.cat((start, part, part), 1)
        targets = tokens[:, 1:].clone()
        # The first of the repeated ones could be any: where the part ends is not known before.
        targets[:, : length + 1] = self.vocabulary.pad
        return Batch({"tokens": tokens[:, :-1]}, targets, count * 2 * length)

    def validation(self, batch_tokens: int) -> list[Batch]:
        """A batch of every length."""
        lengths = range(self.config.shortest, self.config.longest + 1)
        return [
            self._draw(2 * length + 1, length, max(1, batch_tokens // (2 * length)))
            for length in lengths
        ]

    def probe(self) -> Probe:
        """A sequence of the validation, of a length in the middle."""
        length = (self.config.shortest + self.config.longest) // 2
        ids = self._draw(2 * length + 1, length, 1).inputs["tokens"][0].tolist()
        return Probe.of_tokens(ids, self.vocabulary)

    def digest(self, split: str) -> str:
        """See Task.digest; the data follow from the seed."""
        self.check_split(split)
        settings = self.config
        return digest([self.seed, settings.symbols, settings.shortest, settings.longest])

    def results(
        self, model: Predictor, *, split: str, beam: int, progress: Callable[[int, int], None]
    ) -> Results:
        """Loss and accuracy on the repeated half, of all lengths together."""
        self.check_split(split)
        batches = self.validation(8_192)
        sums: list[Floats] = []
        for done, batch in enumerate(batches, 1):
            scores = score_targets(model, batch, self.vocabulary.pad)
            rows, count = scores.rows.numpy(), len(batch.targets)
            values = (scores.nats.numpy(), scores.right.double().numpy(), np.ones(len(rows)))
            sums.append(np.stack([np.bincount(rows, value, count) for value in values], -1))
            progress(done, len(batches))
        nats, right, targets = np.concatenate(sums).T
        measures = [
            mean_measure("loss", "loss, nats", nats, targets, higher=False),
            mean_measure("accuracy", "right tokens", right, targets, higher=True),
        ]
        facts = {"targets": int(targets.sum()), "chance": 1 / self.config.symbols}
        return Results("valid", "sequences", measures, facts)


def repeats_task(
    config: RepeatsConfig, seed: int, data: DataDescription | None = None
) -> RepeatsTask:
    """The task; its data are drawn when they are asked for."""
    if not config.shortest <= config.longest <= config.symbols:
        raise InputError(
            f"task.shortest {config.shortest}, task.longest {config.longest}, task.symbols "
            f"{config.symbols}: expected each no more than the next: a part has no symbol twice."
        )
    vocabulary = None if data is None else data.vocabulary
    if vocabulary is None:
        vocabulary = Vocabulary.of_characters([START, SYMBOLS[: config.symbols]])
    return RepeatsTask(vocabulary, seed, config)
