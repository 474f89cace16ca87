"""Beam search: which row of each pass every sequence that came of it was in.

A pass reads a batch of hypotheses, of which some end, and some go on as several: between two passes
the cache is reordered. The rows of one sequence, followed through all passes, are those of one pass
over its text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headloom.errors import InputError
from headloom.tracing.recording.layer_call import RecordedCall

__all__ = ["Beams", "chosen_rows"]


@dataclass(frozen=True, eq=False)
class Beams:
    """The rows that sequences were in.

    rows     (sequences, passes): a row of the batch of each pass, -1 after the sequence has ended
    batches  how many rows each pass has
    """

    rows: Tensor
    batches: Sequence[int]

    @classmethod
    def returned(cls, indices: Tensor, orders: Sequence[Tensor | None], batch: int) -> Beams:
        """Of the sequences that a generation of Transformers returns.

        Args:
            indices: its `beam_indices`, (sequences, steps): at each step the row that the token of
                the step came from, -1 after the end.
            orders: of each pass, which row of the pass before it every row goes on from; None: each
                from itself.
            batch: the rows of a pass.

        Raises: InputError: the cache was reordered in another way.
        """
        # A long prompt may be read in several passes, all of them before the first token.
        steps = torch.tensor([order is not None for order in orders]).cumsum(0)
        padded = torch.nn.functional.pad(indices.cpu().long(), (0, len(orders)), value=-1)
        rows = padded[:, steps]
        for number, order in enumerate(orders):
            if order is None:
                continue
            alive = rows[:, number] >= 0
            before = order.cpu()[rows[alive, number]]
            if not torch.equal(before, rows[alive, number - 1]):
                raise InputError(
                    "watch: the beams that were returned do not go through the rows that "
                    f"the cache was reordered by before pass {number}. Trace the text that was "
                    "generated."
                )
        return cls(rows, [batch] * len(orders))

    @classmethod
    def followed(cls, orders: Sequence[Tensor | None], batches: Sequence[int]) -> Beams:
        """Of every row of the last pass, back to the first.

        A cache whose rows were repeated has those of one side by side.

        >>> Beams.followed([None, None, torch.tensor([3, 0])], [2, 4, 2]).rows
        tensor([[1, 3, 0],
                [0, 0, 1]])
        """
        row = torch.arange(batches[-1])
        rows = [row]
        for number in range(len(orders) - 1, 0, -1):
            order, before = orders[number], batches[number - 1]
            if order is not None:
                row = order.cpu()[row]
            elif before and batches[number] % before == 0:
                row = row // (batches[number] // before)
            rows.append(row)
        return cls(torch.stack(rows[::-1], 1), batches)

    @property
    def lengths(self) -> Tensor:
        """How many passes read each sequence."""
        return (self.rows >= 0).sum(1)

    def of_pass(self, number: int, size: int) -> Tensor | None:
        """The places of the sequences in a batch of so many inputs; None: nothing says it.

        A batch may hold each input once for all its hypotheses, as an encoder reads them, or each
        hypothesis in several parts. A sequence that has ended has the first place.
        """
        rows, batch = self.rows[:, number].clamp(min=0), self.batches[number]
        if size and batch % size == 0:
            return rows // (batch // size)
        if batch and size % batch == 0:
            parts = size // batch
            return (rows[:, None] * parts + torch.arange(parts)).flatten()
        return None


def chosen_rows(call: RecordedCall, rows: Tensor | None) -> RecordedCall:
    """A call with some inputs of its batch, in their order; None: nothing says which.

    Raises: InputError: it is not known which.
    """
    size = call.graph.shape[0]
    if rows is None:
        raise InputError(
            f"trace: layer {call.path} ran on a batch of {size} in a beam search, and nothing says "
            "which beam is where. Trace the text that was generated."
        )
    rows = rows.to(call.graph.keys.device)

    def taken(tensor: Tensor | None) -> Tensor | None:
        return tensor if tensor is None or (len(tensor) == 1 < size) else tensor[rows]

    places = rows.tolist()
    ranges, deviations = call.ranges, call.deviations
    return replace(
        call,
        graph=call.graph[rows],
        queries=taken(call.queries),
        keys=taken(call.keys),
        value_norms=taken(call.value_norms),
        bias=taken(call.bias),
        ranges=None if ranges is None else tuple(ranges[min(i, len(ranges) - 1)] for i in places),
        deviations=[deviations[min(i, len(deviations) - 1)] for i in places],
    )
