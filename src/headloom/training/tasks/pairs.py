"""Tasks that turn a source sequence into a target sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from headloom.errors import InputError
from headloom.models.predictor import Predictor
from headloom.training.batches import Batch, bucketed, padded
from headloom.training.measures import CorpusMeasure, Results, digest, mean_measure
from headloom.training.tasks.task import Plan, Probe, TextTask, told_before
from headloom.training.text import Vocabulary
from headloom.training.translation import translate
from headloom.training.validation import score_targets

__all__ = ["PairsTask", "TextPairs"]

TextPairs = list[tuple[str, str]]


@dataclass(frozen=True)
class _Encoded:
    """Pairs as ids. Sources end with the end token, targets begin and end with theirs."""

    sources: list[list[int]]
    targets: list[list[int]]

    @property
    def lengths(self) -> list[tuple[int, int]]:
        """What a batch holds of each pair: the source, and the target less one token."""
        return [
            (len(source), len(target) - 1)
            for source, target in zip(self.sources, self.targets, strict=True)
        ]


class PairsTask(TextTask):
    """Pairs of texts in one shared vocabulary."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        seed: int,
        train: TextPairs,
        valid: TextPairs,
        test: TextPairs,
        length_penalty: float = 1.0,
    ) -> None:
        super().__init__(vocabulary)
        self.seed, self._length_penalty = seed, length_penalty
        self.texts = {"train": train, "valid": valid, "test": test}
        self._train, self._valid = self._encode(train), self._encode(valid)

    def _encode(self, pairs: TextPairs) -> _Encoded:
        words = self.vocabulary
        sources = words.encode_all([source for source, _ in pairs])
        targets = words.encode_all([target for _, target in pairs])
        return _Encoded(
            [[*source, words.end] for source in sources],
            [[words.start, *target, words.end] for target in targets],
        )

    @property
    def has_test(self) -> bool:
        """See Task.has_test."""
        return bool(self.texts["test"])

    def sizes(self) -> dict[str, int]:
        """See Task.sizes."""
        return {
            **{split: len(pairs) for split, pairs in self.texts.items()},
            "vocabulary": len(self.vocabulary),
            "train_tokens": sum(map(sum, self._train.lengths)),
        }

    def notices(self) -> list[str]:
        """See Task.notices."""
        return told_before(self.texts)

    def longest(self) -> int:
        """See Task.longest."""
        test = self._encode(self.texts["test"])
        lengths = [length for data in (self._train, self._valid, test) for length in data.lengths]
        return max(max(pair) for pair in lengths)

    def plan_epoch(self, epoch: int, batch_tokens: int) -> list[Plan]:
        """See Task.plan_epoch."""
        return bucketed(self._train.lengths, batch_tokens, seed=self.seed * 1_000_003 + epoch)

    def batch(self, plan: Plan) -> Batch:
        """See Task.batch."""
        return self._batch(self._train, plan)

    def _batch(self, data: _Encoded, plan: Plan) -> Batch:
        filler = self.vocabulary.pad
        source = padded([data.sources[index] for index in plan], filler)
        target = padded([data.targets[index] for index in plan], filler)
        tokens = sum(len(data.sources[index]) + len(data.targets[index]) - 1 for index in plan)
        return Batch({"source": source, "target": target[:, :-1]}, target[:, 1:], tokens)

    def validation(self, batch_tokens: int) -> list[Batch]:
        """See Task.validation."""
        plans = bucketed(self._valid.lengths, batch_tokens)
        return [self._batch(self._valid, plan) for plan in plans]

    def probe(self) -> Probe:
        """The validation pair of median length."""
        order = sorted(range(len(self._valid.sources)), key=lambda i: sum(self._valid.lengths[i]))
        middle = order[len(order) // 2]
        source, target = self._valid.sources[middle], self._valid.targets[middle][:-1]
        return Probe(
            {"source": torch.tensor([source]), "target": torch.tensor([target])},
            {
                "source": self.vocabulary.token_strings(source),
                "target": self.vocabulary.token_strings(target),
            },
        )

    def pairs(self, split: str) -> TextPairs:
        """The texts of a split. Raises: InputError: there are none."""
        if not self.texts[split]:
            raise InputError(f"this run has no {split} data; name it in the configuration.")
        return self.texts[split]

    def digest(self, split: str) -> str:
        """See Task.digest."""
        return digest(self.pairs(split))

    def results(
        self, model: Predictor, *, split: str, beam: int, progress: Callable[[int, int], None]
    ) -> Results:
        """The task's measures of the translations of a split, and the loss of its targets."""
        pairs = self.pairs(split)
        sources, expected = ([pair[side] for pair in pairs] for side in (0, 1))
        loss = self._loss(model, self._encode(pairs))
        written = translate(
            model, self.vocabulary, sources, beam=beam, length_penalty=self._length_penalty,
            progress=progress,
        )  # fmt: skip
        facts = {"examples": len(pairs), "beam": beam}
        measures = [*self.measures(written, expected), loss]
        return Results(split, "sentences", measures, facts)

    def _loss(self, model: Predictor, data: _Encoded) -> CorpusMeasure:
        nats, tokens = np.zeros(len(data.sources)), np.zeros(len(data.sources))
        for plan in bucketed(data.lengths, 8_192):
            scores = score_targets(model, self._batch(data, plan), self.vocabulary.pad)
            nats[plan] = np.bincount(scores.rows.numpy(), scores.nats.numpy(), len(plan))
            tokens[plan] = np.bincount(scores.rows.numpy(), minlength=len(plan))
        return mean_measure("loss", "loss, nats", nats, tokens, higher=False, per_token=True)

    def measures(self, written: Sequence[str], expected: Sequence[str]) -> list[CorpusMeasure]:
        """How good translations are: the share of those that are exactly right."""
        exact = [float(text == right) for text, right in zip(written, expected, strict=True)]
        ones = np.ones(len(exact))
        return [mean_measure("exact_match", "exactly right", exact, ones, higher=True)]
