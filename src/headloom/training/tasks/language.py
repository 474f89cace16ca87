"""Language models: on a text file, or on sequences whose first half is repeated."""

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
#: Characters of a part that is tokenised at once; parts of one call, which run in parallel.
_PART, _PARTS = 1 << 18, 8
#: Candidate borders: before a single space that follows a word, or before a line end. (Before
#: several spaces, the text around the border may be spaces only, which some tokenizers strip.)
_BORDER = re.compile(r"(?<=\w)\s(?=\S)|(?<=\S)\n(?=\S)")
#: Characters around a border that are tokenised to check it; borders tried per part.
_AROUND, _TRIED = 200, 64


def ids_of(text: str, vocabulary: Vocabulary) -> NDArray[np.unsignedinteger]:
    """Encode a long text part by part, in 2 or 4 bytes a token; see `parts_of`.

    >>> ids_of("not to be", Vocabulary.of_characters(["to be or not to be"]))[:3].tolist()
    [9, 5, 6]
    """
    largest = max(vocabulary.tokenizer.get_vocab().values(), default=0)
    kind = np.dtype(np.uint16 if largest < 1 << 16 else np.uint32)
    parts, ids = parts_of(text, vocabulary), [np.zeros(0, kind)]
    while group := list(islice(parts, _PARTS)):
        ids += [np.array(encoded, kind) for encoded in vocabulary.encode_all(group)]
    return np.concatenate(ids)


def parts_of(text: str, vocabulary: Vocabulary) -> Iterator[str]:
    """Cut a text at borders that do not change its tokens, and yield the parts.

    A border is checked on the characters around it: tokenised whole and in two halves, they must
    give the same ids. Where none passes, as in a text without spaces, the part grows.

    >>> words = Vocabulary.of_characters(["a b"])
    >>> [len(part) for part in parts_of("word " * 200_000, words)]
    [262144, 262145, 475711]
    """
    start = position = 0
    while len(text) - position > 2 * _PART:
        position += _PART
        for border in islice(_BORDER.finditer(text, position, position + _PART), _TRIED):
            cut = border.start()
            before, after = text[max(0, cut - _AROUND) : cut], text[cut : cut + _AROUND]
            whole, left, right = vocabulary.encode_all([before + after, before, after])
            if whole == left + right:
                yield text[start:cut]
                start = position = cut
                break
    if start < len(text):
        yield text[start:]


class LanguageTask(TextTask):
    """Task on windows of one long text: predict each token from those before it."""

    shorter = "choose a smaller task.block"

    def __init__(
        self, vocabulary: Vocabulary, seed: int, train: NDArray[np.unsignedinteger],
        valid_text: str, block: int, digests: JsonObject,
    ) -> None:  # fmt: skip
        super().__init__(vocabulary)
        self.description = DataDescription(vocabulary, digests)
        self.seed, self.block = seed, block
        self.valid_text = valid_text
        ids, offsets = vocabulary.encode_with_offsets(valid_text)
        self._train, self._valid = train, torch.tensor(ids)
        #: Start of each token of the held-out text, in characters.
        self._starts = [start for start, _ in offsets]

    def sizes(self) -> dict[str, int]:
        return {
            "train_tokens": len(self._train),
            "valid_tokens": len(self._valid),
            "vocabulary": len(self.vocabulary),
        }

    def longest(self) -> int:
        return self.block

    def plan_epoch(self, epoch: int, batch_tokens: int) -> list[Plan]:
        """Plan windows at random places, with as many tokens as the text has."""
        numbers = random.Random(self.seed * 1_000_003 + epoch)
        tokens = len(self._train)
        windows = max(1, min(batch_tokens, tokens) // self.block)
        last = tokens - self.block - 1
        count = max(1, tokens // (windows * self.block))
        return [[numbers.randint(0, last) for _ in range(windows)] for _ in range(count)]

    def batch(self, plan: Plan) -> Batch:
        return self._windows(self._train, plan)

    def _windows(self, ids: NDArray[np.integer], starts: list[int]) -> Batch:
        places = np.array(starts)[:, None] + np.arange(self.block + 1)
        windows = torch.from_numpy(ids[places].astype(np.int64))
        return Batch({"tokens": windows[:, :-1]}, windows[:, 1:], len(starts) * self.block)

    def validation(self, batch_tokens: int) -> list[Batch]:
        """Return the held-out text, window by window."""
        starts = list(range(0, len(self._valid) - self.block, self.block))
        size = max(1, batch_tokens // self.block)
        return [
            self._windows(self._valid.numpy(), starts[place : place + size])
            for place in range(0, len(starts), size)
        ]

    def probe(self) -> Probe:
        """Return the first tokens of the held-out text."""
        ids = self._valid[: min(48, self.block)].tolist()
        return Probe.of_tokens(ids, self.vocabulary)

    def digest(self, split: str) -> str:
        self.check_split(split)
        return digest(self.valid_text)

    def results(
        self, model: Predictor, *, split: str, beam: int, progress: Callable[[int, int], None]
    ) -> Results:
        """Measure bits per byte, loss, perplexity and accuracy on the held-out text."""
        self.check_split(split)
        batches, scores = self.validation(8_192), []
        for done, batch in enumerate(batches, 1):
            scores.append(score_targets(model, batch, self.vocabulary.pad))
            progress(done, len(batches))
        nats = torch.cat([part.nats for part in scores]).numpy()
        right = torch.cat([part.right for part in scores]).double().numpy()
        # The windows are adjacent: together they predict the text from its second token on.
        sizes = token_bytes(self.valid_text, self._starts)[1 : len(nats) + 1]
        starts = np.array(self._starts[1 : len(nats) + 1], dtype=np.float64)
        unknown = (self._valid[1 : len(nats) + 1] == self.vocabulary.unknown).double().numpy()
        per_token = {"tokens": np.ones_like(nats), "bytes": sizes, "unknown_tokens": unknown}
        counts = {name: of_stretches(values, starts) for name, values in per_token.items()}
        facts = {name: int(values.sum()) for name, values in per_token.items()}
        measures = language_measures(nats, right, sizes, starts)
        ends = [*self._starts, len(self.valid_text)]
        covered = ends[1], ends[len(nats) + 1]
        return Results("valid", "stretches of text", measures, facts, counts, covered)


def language_task(
    config: LanguageConfig, seed: int, data: DataDescription | None = None
) -> LanguageTask:
    """Make the task: read its text, train on the first part, hold out the end.

    Raises: DataError: the text cannot be read. InputError: it is too short for the windows, or has
    changed since the run started.
    """
    path, what = Path(config.file), "text (task.file; or --data of headloom evaluate)"
    columns = read_columns(path, {"text": config.text}, what)
    text = "\n".join(columns[0]) if columns else read_text(path, what)
    # Cut before tokenising, so that no piece spans the border.
    border = int(len(text) * (1 - config.valid_share))
    train_text, valid_text = text[:border], text[border:]
    if not train_text.strip():
        raise InputError(f"{config.file}: the training part of the text is empty. Give more text.")
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


#: First symbol of every sequence.
START = "."

#: Symbols of the repeated parts.
SYMBOLS = string.ascii_lowercase + string.ascii_uppercase + string.digits

#: Batches of an epoch; the data are endless, so this only sets how epochs are counted.
_EPOCH = 200


class RepeatsTask(TextTask):
    """Random sequences, each followed by its copy; no sequence is drawn twice.

        .fK3qZ8fK3qZ8

    The length of the part varies, so that no fixed distance leads back to the copy: to predict a
    symbol, the model must find the earlier copy of the symbol before it and attend to the one
    after that (induction). Only the repeated symbols are targets.
    """

    shorter = "choose a smaller task.longest"

    def __init__(self, vocabulary: Vocabulary, seed: int, config: RepeatsConfig) -> None:
        super().__init__(vocabulary)
        self.seed, self.config = seed, config
        self._ids = vocabulary.encode(SYMBOLS[: config.symbols])
        (self._start,) = vocabulary.encode(START)

    def sizes(self) -> dict[str, int]:
        return {"symbols": len(self._ids), "shortest part": self.config.shortest,
                "longest part": self.config.longest}  # fmt: skip

    def longest(self) -> int:
        return 2 * self.config.longest

    def plan_epoch(self, epoch: int, batch_tokens: int) -> list[Plan]:
        """Plan each batch by its number, the length of its parts, and its number of sequences."""
        numbers = random.Random(self.seed * 1_000_003 + epoch)
        lengths = [
            numbers.randint(self.config.shortest, self.config.longest) for _ in range(_EPOCH)
        ]
        return [
            [epoch * _EPOCH + place, length, max(1, batch_tokens // (2 * length))]
            for place, length in enumerate(lengths)
        ]

    def batch(self, plan: Plan) -> Batch:
        number, length, count = plan
        return self._draw(2 * number, length, count)

    def _draw(self, number: int, length: int, count: int) -> Batch:
        """Draw sequences of one length. Even numbers are for training, odd ones for validation."""
        seed = (self.seed * 1_000_003 + number) % 2**63
        generator = torch.Generator().manual_seed(seed)
        order = torch.rand(count, len(self._ids), generator=generator).argsort(-1)
        part = torch.tensor(self._ids)[order[:, :length]]
        start = torch.full((count, 1), self._start)
        tokens = torch.cat((start, part, part), 1)
        targets = tokens[:, 1:].clone()
        # The first repeated symbol cannot be predicted: the end of the part is unknown.
        targets[:, : length + 1] = self.vocabulary.pad
        return Batch({"tokens": tokens[:, :-1]}, targets, count * 2 * length)

    def validation(self, batch_tokens: int) -> list[Batch]:
        """Return a batch of every length."""
        lengths = range(self.config.shortest, self.config.longest + 1)
        return [
            self._draw(2 * length + 1, length, max(1, batch_tokens // (2 * length)))
            for length in lengths
        ]

    def probe(self) -> Probe:
        """Return a validation sequence of medium length."""
        length = (self.config.shortest + self.config.longest) // 2
        ids = self._draw(2 * length + 1, length, 1).inputs["tokens"][0].tolist()
        return Probe.of_tokens(ids, self.vocabulary)

    def digest(self, split: str) -> str:
        """Return a hash of seed and settings, which determine the data."""
        self.check_split(split)
        settings = self.config
        return digest([self.seed, settings.symbols, settings.shortest, settings.longest])

    def results(
        self, model: Predictor, *, split: str, beam: int, progress: Callable[[int, int], None]
    ) -> Results:
        """Measure loss and accuracy on the repeated half, over all lengths."""
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
    """Make the task; its data are drawn when needed."""
    if not config.shortest <= config.longest <= config.symbols:
        raise InputError(
            f"task.shortest {config.shortest}, task.longest {config.longest}, task.symbols "
            f"{config.symbols}: expected shortest <= longest <= symbols (no symbol occurs twice)."
        )
    vocabulary = None if data is None else data.vocabulary
    if vocabulary is None:
        vocabulary = Vocabulary.of_characters([START, SYMBOLS[: config.symbols]])
    return RepeatsTask(vocabulary, seed, config)
