"""Batches of sequences of similar length, within a token budget, in a repeatable order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Batch:
    """Input and targets of one step.

    inputs: inputs of the model's `outputs`, by name; ids (sequences, positions).
    targets: the ids to predict, (sequences, positions); padding does not count.
    tokens: source and target tokens, without padding.
    """

    inputs: dict[str, Tensor]
    targets: Tensor
    tokens: int

    def share(self, rank: int, ranks: int, ignored: int) -> Batch:
        """Return every ranks-th sequence from the rank-th on, for one of several processes.

        A process without sequences gets the first one without targets, so that all compute
        gradients. `tokens` stays that of the whole batch.

        >>> tokens = torch.tensor([[1], [2], [3]])
        >>> Batch({"tokens": tokens}, tokens + 1, 3).share(1, 2, ignored=0).inputs["tokens"]
        tensor([[2]])
        """
        rows = slice(rank, None, ranks) if rank < len(self.targets) else slice(0, 1)
        targets = self.targets[rows]
        if rank >= len(self.targets):
            targets = torch.full_like(targets, ignored)
        return Batch({n: tensor[rows] for n, tensor in self.inputs.items()}, targets, self.tokens)


def padded(sequences: Sequence[Sequence[int]], filler: int) -> Tensor:
    """Make a tensor of ids; short sequences are padded at the end.

    >>> padded([[5, 6, 7], [8]], filler=0)
    tensor([[5, 6, 7],
            [8, 0, 0]])
    """
    longest = max(map(len, sequences), default=0)
    rows = [[*sequence, *[filler] * (longest - len(sequence))] for sequence in sequences]
    return torch.tensor(rows, dtype=torch.long).reshape(len(sequences), longest)


def bucketed(
    lengths: Sequence[tuple[int, ...]], budget: int, *, seed: int | None = None
) -> list[list[int]]:
    """Group indices of sequences into batches of similar length within a token budget.

    Args:
        lengths: of each example: the lengths of its sequences, (source, target) or (text,).
        budget: maximum of tokens in a batch, padding included. A longer example is a batch of
            its own.
        seed: shuffles examples of equal length, and the batches; None keeps the order of lengths.

    Returns: batches of indices; each index once.

    >>> bucketed([(4, 4), (1, 1), (4, 3), (2, 1)], budget=16)
    [[1, 3], [2, 0]]
    """
    random_numbers = random.Random(seed)
    order = list(range(len(lengths)))
    if seed is not None:
        random_numbers.shuffle(order)
    # By the longest part first: each part is padded separately.
    order.sort(key=lambda index: (max(lengths[index]), lengths[index][::-1]))
    batches: list[list[int]] = []
    current: list[int] = []
    widths: tuple[int, ...] = ()
    for index in order:
        wider = tuple(map(max, widths, lengths[index])) if current else tuple(lengths[index])
        if current and (len(current) + 1) * sum(wider) > budget:
            batches.append(current)
            current, wider = [], tuple(lengths[index])
        current.append(index)
        widths = wider
    if current:
        batches.append(current)
    if seed is not None:
        random_numbers.shuffle(batches)
    return batches
