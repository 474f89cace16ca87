"""Sequences with a repeated part: what was drawn once comes again, and can be predicted then.

    .fK3qZ8fK3qZ8

A full stop, a part of different symbols drawn at random, and the same part once more. How long
the part is differs from sequence to sequence, so that no fixed distance leads back to the copy:
the way to predict a symbol is to find the earlier copy of the one before it, and to look at what
followed there (induction). Only the repeated symbols are targets; nothing predicts the others,
nor where the repetition begins.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable

import numpy as np
import torch

from headloom.errors import InputError
from headloom.models.predictor import Predictor
from headloom.training.batches import Batch
from headloom.training.data import DataDescription
from headloom.training.measures import Floats, Results, digest, mean_measure
from headloom.training.sections import RepeatsConfig
from headloom.training.tasks.task import Plan, Probe, TextTask
from headloom.training.text import Vocabulary
from headloom.training.validation import score_targets

__all__ = ["START", "SYMBOLS", "RepeatsTask", "repeats_task"]

#: What every sequence begins with.
START = "."

#: What is repeated.
SYMBOLS = string.ascii_lowercase + string.ascii_uppercase + string.digits

#: Batches of an epoch: the data never end, so this is only how often it is counted.
EPOCH = 200


class RepeatsTask(TextTask):
    """Parts drawn at random, each followed by its copy; no sequence is ever drawn twice."""

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
        lengths = [numbers.randint(self.config.shortest, self.config.longest) for _ in range(EPOCH)]
        return [
            [epoch * EPOCH + place, length, max(1, batch_tokens // (2 * length))]
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
