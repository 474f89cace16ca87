"""A language model on the characters, or the byte-pair pieces, of a text file."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from weft.errors import InputError
from weft.formats.files import JsonObject, read_text
from weft.training.batches import Batch
from weft.training.config import LanguageConfig
from weft.training.tasks.task import Plan, Probe, Task
from weft.training.text import Vocabulary

__all__ = ["LanguageTask", "language_task"]


class LanguageTask(Task):
    """Windows of one long text; each token is predicted from those before it in its window."""

    def __init__(
        self, vocabulary: Vocabulary, seed: int, train: Tensor, valid: Tensor, block: int
    ) -> None:
        self.vocabulary, self.seed, self.block = vocabulary, seed, block
        self._train, self._valid = train, valid

    def sizes(self) -> dict[str, int]:
        """See Task.sizes."""
        return {
            "train_tokens": len(self._train),
            "valid_tokens": len(self._valid),
            "vocabulary": len(self.vocabulary),
        }

    def plan_epoch(self, epoch: int, batch_tokens: int) -> list[Plan]:
        """Windows at random places, as many tokens as the text has."""
        numbers = random.Random(self.seed * 1_000_003 + epoch)
        windows = max(1, batch_tokens // self.block)
        last = len(self._train) - self.block - 1
        count = max(1, len(self._train) // (windows * self.block))
        return [[numbers.randint(0, last) for _ in range(windows)] for _ in range(count)]

    def batch(self, plan: Plan) -> Batch:
        """See Task.batch."""
        return self._windows(self._train, plan)

    def _windows(self, text: Tensor, starts: list[int]) -> Batch:
        windows = torch.stack([text[start : start + self.block + 1] for start in starts])
        return Batch({"tokens": windows[:, :-1]}, windows[:, 1:], len(starts) * self.block)

    def validation(self, batch_tokens: int) -> list[Batch]:
        """The held-out text, window by window."""
        starts = list(range(0, len(self._valid) - self.block, self.block))
        size = max(1, batch_tokens // self.block)
        return [
            self._windows(self._valid, starts[place : place + size])
            for place in range(0, len(starts), size)
        ]

    def probe(self) -> Probe:
        """The first tokens of the held-out text."""
        ids = self._valid[: min(48, self.block)].tolist()
        return Probe.of_tokens(ids, self.vocabulary)

    def evaluate(
        self, model: nn.Module, *, split: str, beam: int, progress: Callable[[int, int], None]
    ) -> JsonObject:
        """Loss and perplexity on the held-out text."""
        result = self.evaluation(model, split, progress)
        return {
            "split": "valid",
            "tokens": result.targets,
            "loss": result.loss,
            "perplexity": math.exp(result.loss),
        }


def language_task(config: LanguageConfig, seed: int, vocabulary: Vocabulary | None) -> LanguageTask:
    """The task with its text read and split: the beginning to learn from, the end held out."""
    text = read_text(Path(config.file), "text")
    if not text.strip():
        raise InputError(f"{config.file}: the text is empty.")
    # Cut before tokenising, so that no piece spans the border.
    border = int(len(text) * (1 - config.valid_share))
    train_text, valid_text = text[:border], text[border:]
    if vocabulary is None:
        if config.tokens == "characters":
            vocabulary = Vocabulary.of_characters([train_text])
        else:
            lines = (line for line in train_text.splitlines() if line)
            vocabulary = Vocabulary.of_pieces(lines, config.vocabulary)
    train, valid = (torch.tensor(vocabulary.encode(part)) for part in (train_text, valid_text))
    for name, ids in (("training", train), ("held-out", valid)):
        if len(ids) < config.block + 2:
            raise InputError(
                f"{config.file}: the {name} part has {len(ids)} tokens; expected more than "
                f"task.block + 1 = {config.block + 1}. Give more text or a smaller block."
            )
    return LanguageTask(vocabulary, seed, train, valid, config.block)
