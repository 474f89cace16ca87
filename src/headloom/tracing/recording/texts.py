"""The passes of a model of Transformers over one text, or one batch of texts, and their beams.

A pass of a beam search reads a batch of hypotheses, of which some end, and some go on as several.
The rows of one sequence, followed through all passes, are those of one pass over its text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headloom.errors import InputError
from headloom.tracing.arguments import Arguments, Inputs
from headloom.tracing.recording.layer_call import LayerCall

__all__ = ["Beams", "Text", "chosen_rows"]


@dataclass(frozen=True, eq=False)
class Beams:
    """The rows that sequences were in.

    rows     (sequences, passes): a row of the batch of each pass, -1 after the sequence has ended
    batches  how many rows each pass has
    """

    rows: Tensor
    batches: Sequence[int]

    @classmethod
    def returned(cls, indices: Tensor, first: int, batches: Sequence[int]) -> Beams:
        """Of the sequences that a generation of Transformers returns.

        Args:
            indices: its `beam_indices`, (sequences, steps): at each step the row that the token of
                the step came from, -1 after the end.
            first: the pass that wrote the first token, the last one over the prompt.
            batches: how many rows each pass has.
        """
        steps = torch.arange(len(batches)).sub(first).clamp(min=0)
        padded = torch.nn.functional.pad(indices.cpu().long(), (0, len(batches)), value=-1)
        return cls(padded[:, steps], batches)

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
                row = order[row]
            elif before and batches[number] % before == 0:
                row = row // (batches[number] // before)
            rows.append(row)
        return cls(torch.stack(rows[::-1], 1), batches)

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


def chosen_rows(call: LayerCall, rows: Tensor | None) -> LayerCall:
    """A call with some inputs of its batch, in their order; None: nothing says which.

    Raises: InputError: it is not known which.
    """
    size = call.graph.shape[0]
    if rows is None:
        raise InputError(
            f"trace: layer {call.path} ran on a batch of {size} in a beam search, and nothing says "
            "which beam is where. Trace the text that was generated."
        )
    places, rows = rows.tolist(), rows.to(call.graph.keys.device)

    def taken(tensor: Tensor | None) -> Tensor | None:
        return tensor if tensor is None or (len(tensor) == 1 < size) else tensor[rows]

    ranges, deviations = call.ranges, call.deviations
    return call.changed(
        graph=call.graph[rows],
        queries=taken(call.queries),
        keys=taken(call.keys),
        value_norms=taken(call.value_norms),
        bias=taken(call.bias),
        ranges=None if ranges is None else tuple(ranges[min(i, len(ranges) - 1)] for i in places),
        deviations=[deviations[min(i, len(deviations) - 1)] for i in places],
    )


class Text:
    """The passes of a model over one text, or one batch of texts.

    Args:
        is_pair: whether a target grows, and its source does not.
        given: what the generation was asked to go on from; empty: it is not known.
        ends: the tokens that end a text, and the one that fills it up after them.
    """

    def __init__(
        self, is_pair: bool, given: Inputs, ends: tuple[int | list[int] | None, int | None]
    ) -> None:
        self._given_first, self._ends = given, ends
        #: Of each pass, how many positions the text had when it began.
        self._begins: list[int] = []
        self._name = "decoder_input_ids" if is_pair else "input_ids"
        #: Whether the model itself has run, not its encoder alone.
        self.decoded = False
        #: Tokens of the prompt: of the passes before the first that reads one token.
        self.prompt: int | None = None
        #: Of a beam search, its `beam_indices`.
        self.returned: Tensor | None = None
        #: What else the passes were given last, with the number of the pass.
        self._given: dict[str, tuple[int, Tensor]] = {}
        #: The ids of each pass, with its number.
        self._ids: dict[str, list[tuple[int, Tensor]]] = {}

    def new_pass(self, arguments: Inputs, before: int, model: bool) -> None:
        """Another pass with these arguments, after so many positions.

        model: whether it is one of the whole model.
        """
        number = len(self._begins)
        self._begins.append(before)
        tensors = {name: v for name, v in arguments.items() if isinstance(v, Tensor)}
        for name in ("input_ids", "decoder_input_ids"):
            if name in tensors and tensors[name].ndim == 2:
                ids = tensors.pop(name).detach().cpu()
                self._ids.setdefault(name, []).append((number, ids))
                if name == self._name and model:
                    reads_on = self.prompt == before and ids.shape[1] > 1
                    if self.prompt is None or reads_on:
                        self.prompt = before + ids.shape[1]
        for name, value in tensors.items():
            if name != "attention_mask" or value.ndim == 2:
                self._given[name] = number, value.detach()
        self.decoded = self.decoded or model

    @property
    def length(self) -> int | None:
        """How many positions the text has; None: it is not known."""
        read = self._ids.get(self._name)
        return None if not read else self._begins[read[-1][0]] + read[-1][1].shape[1]

    def beams(self, orders: Sequence[Tensor | None]) -> Beams | None:
        """The rows of the sequences that a beam search returned, or of all in the last pass.

        orders: of each pass, which row of the one before it every row goes on from; None: from
            itself. Returns: None: every pass has the rows of the one before it.
        """
        known = {number: len(ids) for parts in self._ids.values() for number, ids in parts}
        largest = max(known.values(), default=1)
        batches = [known.get(number, largest) for number in range(len(self._begins))]
        if self.returned is not None:
            return Beams.returned(
                self.returned,
                max(n for n, begin in enumerate(self._begins) if begin < (self.prompt or 1)),
                [largest] * len(batches),
            )
        searched = any(order is not None for order in orders)
        return Beams.followed(orders, batches) if searched or len(set(batches)) > 1 else None

    def inputs(self, beams: Beams | None) -> Arguments:
        """The arguments of the model as one pass over the whole text would take them."""

        def taken(value: Tensor, number: int) -> Tensor:
            rows = None if beams is None else beams.of_pass(number, len(value))
            return value if rows is None else value[rows.to(value.device)]

        arguments: Arguments = {
            name: value
            for name, value in self._given_first.items()
            if isinstance(value, Tensor) and name not in (self._name, "attention_mask")
        }
        arguments |= {
            name: taken(value, number) if value.ndim > 1 else value
            for name, (number, value) in self._given.items()
        }
        for name, parts in self._ids.items():
            arguments[name] = torch.cat([taken(ids, number) for number, ids in parts], 1)
        mask_name = self._name.replace("input_ids", "attention_mask")
        ids = arguments.get(self._name)
        if ids is None or self.prompt is None or self.prompt >= ids.shape[1]:
            return arguments
        mask = arguments.get(mask_name)
        if mask is None or mask.shape != ids.shape:
            mask = torch.ones_like(ids)
            first = self._given_first.get(mask_name)  # of which a cache of fixed size makes another
            if isinstance(first, Tensor) and first.ndim == 2 and len(ids) % len(first) == 0:
                prompt = first[:, : self.prompt].to(mask)
                mask[:, : prompt.shape[1]] = prompt.repeat_interleave(len(ids) // len(first), 0)
        mask = mask.cpu()
        if self.returned is None or beams is None:
            arguments[mask_name] = self._until_end(ids, mask, self.prompt)
        else:
            alive = [
                (beams.rows[:, [number]] >= 0).expand(-1, part.shape[1])
                for number, part in self._ids[self._name]
            ]
            arguments[mask_name] = mask.masked_fill(~torch.cat(alive, 1), 0)
        return arguments

    def _until_end(self, ids: Tensor, mask: Tensor, prompt: int) -> Tensor:
        """A mask of each text of a batch up to the end token behind which it is padding."""
        end, padding = self._ends
        if end is None or len(ids) == 1:
            return mask  # one text ends where its generation does
        ends = torch.as_tensor(end).cpu().flatten()
        written = ids[:, prompt:].cpu()
        filled = written == (int(ends[0]) if padding is None else padding)
        rest = filled.flip(1).cumprod(1).flip(1).bool()  # nothing but padding from here on
        last = torch.ones_like(rest[:, :1])
        closes = torch.isin(written, ends) & torch.cat((rest[:, 1:], last), 1)
        after = closes.cumsum(1) > 0
        return mask.masked_fill(torch.cat((after.new_zeros(len(after), prompt), after), 1), 0)
