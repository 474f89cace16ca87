"""Batches: sequences of like length together, under a budget of tokens, in a repeatable order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Batch:
    """One step's input.

    inputs: what the model's `outputs` takes, by name; ids (sequences, positions).
    targets: the ids to predict, (sequences, positions); padding does not count.
    tokens: how many real tokens there are, source and target together.
    """

    inputs: dict[str, Tensor]
    targets: Tensor
    tokens: int

    def share(self, rank: int, ranks: int, ignored: int) -> Batch:
        """Every ranks-th sequence from the rank-th on: what one of several processes learns from.

        Where none is left for it, the first sequence without targets, so that each has something
        to compute. `tokens` stays that of the whole batch.

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
    """Ids as one tensor, short sequences filled at their end.

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
    """Indices of sequences, in batches of like lengths that fill a budget of tokens.

    Args:
        lengths: of each example: the lengths of its sequences, (source, target) or (text,).
        budget: at most so many tokens in a batch, padding included. A single longer example
            still makes a batch.
        seed: shuffles which examples of like length meet, and the order of the batches; None
            keeps the order of lengths.

    Returns: batches of indices; each index once.

    >>> bucketed([(4, 4), (1, 1), (4, 3), (2, 1)], budget=16)
    [[1, 3], [2, 0]]
    """
    random_numbers = random.Random(seed)
    order = list(range(len(lengths)))
    if seed is not None:
        random_numbers.shuffle(order)
    # The longest part first: padding is paid on each part of its own.
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
