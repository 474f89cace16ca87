"""Tasks that turn a source text into a target text, such as translation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from headloom.errors import InputError
from headloom.formats.files import JsonObject, read_text
from headloom.models.predictor import Predictor
from headloom.training.batches import Batch, bucketed, padded
from headloom.training.data import DataDescription, check_unchanged
from headloom.training.examples import read_columns
from headloom.training.measures import (
    CorpusMeasure,
    Results,
    digest,
    exact_match,
    mean_measure,
    translation_measures,
)
from headloom.training.sections import TranslationConfig
from headloom.training.tasks.labels import drawn_split
from headloom.training.tasks.task import Plan, Probe, TextTask, overlap_notices
from headloom.training.text import Vocabulary
from headloom.training.translation import Search, translate
from headloom.training.validation import score_targets

TextPairs = list[tuple[str, str]]
#: Pairs as ids: source + end token; start token + target + end token.
_Encoded = list[tuple[list[int], list[int]]]


class PairsTask(TextTask):
    """Pairs of texts in one shared vocabulary."""

    def __init__(
        self, vocabulary: Vocabulary, seed: int, train: TextPairs, valid: TextPairs,
        test: TextPairs, length_penalty: float = 1.0,
    ) -> None:  # fmt: skip
        super().__init__(vocabulary)
        self.seed, self._length_penalty = seed, length_penalty
        self.texts = {"train": train, "valid": valid, "test": test}
        self._train, self._valid = self._encode(train), self._encode(valid)

    def _encode(self, pairs: TextPairs) -> _Encoded:
        words = self.vocabulary
        sources, targets = (words.encode_all([pair[side] for pair in pairs]) for side in (0, 1))
        return [
            ([*source, words.end], [words.start, *target, words.end])
            for source, target in zip(sources, targets, strict=True)
        ]

    @property
    def has_test(self) -> bool:
        return bool(self.texts["test"])

    def sizes(self) -> dict[str, int]:
        return {
            **{split: len(pairs) for split, pairs in self.texts.items()},
            "vocabulary": len(self.vocabulary),
            "train_tokens": sum(map(sum, _lengths(self._train))),
        }

    def notices(self) -> list[str]:
        return overlap_notices(self.texts)

    def longest(self) -> int:
        pairs = [*self._train, *self._valid, *self._encode(self.texts["test"])]
        return max(map(max, _lengths(pairs)))

    def plan_epoch(self, epoch: int, batch_tokens: int) -> list[Plan]:
        return bucketed(_lengths(self._train), batch_tokens, seed=self.seed * 1_000_003 + epoch)

    def batch(self, plan: Plan) -> Batch:
        return self._batch(self._train, plan)

    def _batch(self, pairs: _Encoded, plan: Plan) -> Batch:
        filler, chosen = self.vocabulary.pad, [pairs[index] for index in plan]
        source = padded([source for source, _ in chosen], filler)
        target = padded([target for _, target in chosen], filler)
        tokens = sum(map(sum, _lengths(chosen)))
        return Batch({"source": source, "target": target[:, :-1]}, target[:, 1:], tokens)

    def validation(self, batch_tokens: int) -> list[Batch]:
        plans = bucketed(_lengths(self._valid), batch_tokens)
        return [self._batch(self._valid, plan) for plan in plans]

    def probe(self) -> Probe:
        """Return the validation pair of median length."""
        order = sorted(self._valid, key=lambda pair: sum(map(len, pair)))
        source, target = order[len(order) // 2]
        ids = {"source": source, "target": target[:-1]}
        return Probe(
            {name: torch.tensor([sequence]) for name, sequence in ids.items()},
            {name: self.vocabulary.token_strings(sequence) for name, sequence in ids.items()},
        )

    def pairs(self, split: str) -> TextPairs:
        """Return the texts of a split. Raises: InputError: it has none."""
        if not self.texts[split]:
            raise InputError(f"this run has no {split} data; name it in the configuration.")
        return self.texts[split]

    def digest(self, split: str) -> str:
        return digest(self.pairs(split))

    def results(
        self, model: Predictor, *, split: str, beam: int, progress: Callable[[int, int], None]
    ) -> Results:
        """Measure the translations of a split, and the loss of its targets."""
        pairs = self.pairs(split)
        sources, expected = ([pair[side] for pair in pairs] for side in (0, 1))
        loss, search = self._loss(model, self._encode(pairs)), Search(beam, self._length_penalty)
        written = translate(model, self.vocabulary, sources, search, progress)
        facts = {"examples": len(pairs), "beam": beam}
        measures = [*self.measures(written, expected), loss]
        return Results(split, "sentences", measures, facts)

    def _loss(self, model: Predictor, pairs: _Encoded) -> CorpusMeasure:
        nats, tokens = np.zeros(len(pairs)), np.zeros(len(pairs))
        for plan in bucketed(_lengths(pairs), 8_192):
            scores = score_targets(model, self._batch(pairs, plan), self.vocabulary.pad)
            nats[plan] = np.bincount(scores.rows.numpy(), scores.nats.numpy(), len(plan))
            tokens[plan] = np.bincount(scores.rows.numpy(), minlength=len(plan))
        return mean_measure("loss", "loss, nats", nats, tokens, higher=False, per_token=True)

    def measures(self, written: Sequence[str], expected: Sequence[str]) -> list[CorpusMeasure]:
        """Measure translations: the share that equals its reference."""
        return [exact_match(written, expected)]


def _lengths(pairs: _Encoded) -> list[tuple[int, int]]:
    """Return the source and target lengths of each pair in a batch."""
    return [(len(source), len(target) - 1) for source, target in pairs]


def read_pairs(
    folder: Path, files: Sequence[str], source: str | None = None, target: str | None = None
) -> TextPairs:
    """Read pairs of texts from two line-aligned files, or from one file of pairs.

    Args:
        folder: where the files are.
        files: two line-aligned files, or one of CSV, TSV, Parquet or JSON lines.
        source: its column of sources; see `headloom.training.examples`.
        target: its column of targets.

    Returns: (source, target), stripped of spaces; lines empty on both sides are skipped.

    Raises:
        DataError: a file is missing or not UTF-8.
        InputError: lines that do not pair, or no pairs at all.
    """
    paths = [folder / name for name in files]
    roles = {"source": source, "target": target}
    what = "text (task.folder; or --data of headloom evaluate)"
    if len(paths) == 1 and (columns := read_columns(paths[0], roles, what)):
        return list(zip(*columns, strict=True))
    texts = [read_text(path, what) for path in paths]
    lines = [text.removesuffix("\n").split("\n") for text in texts]
    if len(lines) == 2 and len(lines[0]) != len(lines[1]):
        raise InputError(
            f"{paths[0]} has {len(lines[0])} lines, {paths[1]} {len(lines[1])}; line-aligned "
            "files need the same number of lines. Align them again."
        )
    pairs = []
    for number, fields in enumerate(zip(*lines, strict=True), 1):
        if len(files) == 1:
            fields = tuple(fields[0].split("\t")) if fields[0].strip() else ("", "")
            if len(fields) != 2:
                raise InputError(
                    f"{paths[0]}: line {number} has {len(fields) - 1} tabs; expected source TAB "
                    "target."
                )
        source, target = (field.strip() for field in fields)
        if bool(source) != bool(target):
            empty = paths[0] if not source else paths[-1]
            raise InputError(
                f"{empty}: line {number} is empty, its partner is not. Remove both or fill it in."
            )
        if source:
            pairs.append((source, target))
    if not pairs:
        raise InputError(f"{' and '.join(map(str, paths))}: no pairs; the files are empty.")
    return pairs


class TranslationTask(PairsTask):
    """Task of translating lines of one language to another.

    left_out: number of training pairs that are too long, and the maximum in tokens.
    """

    left_out = 0, 0

    def notices(self) -> list[str]:
        count, most = self.left_out
        pairs = count + len(self.texts["train"])
        left_out = f"{count:,} of {pairs:,} training pairs, longer than task.max_length = {most:,} "
        return [*([f"{left_out}tokens, are left out."] if count else []), *super().notices()]

    def measures(self, written: Sequence[str], expected: Sequence[str]) -> list[CorpusMeasure]:
        """Compute BLEU, chrF, TER and exact matches; see translation_measures."""
        return translation_measures(written, expected)


def translation_task(
    config: TranslationConfig, seed: int, data: DataDescription | None = None
) -> TranslationTask:
    """Make the task: read its files."""
    read = partial(read_pairs, Path(config.folder), source=config.source, target=config.target)
    train, test = read(config.train), read(config.test) if config.test else []
    facts: JsonObject = {}
    if config.valid:
        valid = read(config.valid)
    else:
        source = " and ".join(str(Path(config.folder) / name) for name in config.train)
        facts = {"drawn_from": digest(train)}
        check_unchanged({} if data is None else data.facts, facts, source)
        if len(train) < 2:
            raise InputError(f"{source}: one pair; give more, or set task.valid.")
        shares = {"valid": config.valid_share}
        places = drawn_split([""] * len(train), shares, config.split_seed, source)
        train, valid = ([train[place] for place in places[part]] for part in ("train", "valid"))
    vocabulary = None if data is None else data.vocabulary
    if vocabulary is None:
        vocabulary = Vocabulary.of_pieces(
            (text for pair in train for text in pair), config.vocabulary
        )
    lengths = [max(map(len, vocabulary.encode_all(pair))) <= config.max_length for pair in train]
    fitting = [pair for pair, fits in zip(train, lengths, strict=True) if fits]
    if not fitting:
        raise InputError(
            f"every training pair is longer than task.max_length = {config.max_length} tokens."
        )
    task = TranslationTask(vocabulary, seed, fitting, valid, test, config.length_penalty)
    task.left_out = len(train) - len(fitting), config.max_length
    task.description = DataDescription(vocabulary, facts)
    return task
