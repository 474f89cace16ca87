"""The passes of a model of Transformers over one text, or one batch of texts."""

from __future__ import annotations

import torch
from torch import Tensor

from headloom.tracing.arguments import Arguments, Inputs

__all__ = ["Text"]


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
        self._name = "decoder_input_ids" if is_pair else "input_ids"
        #: Whether the model itself has run, not its encoder alone.
        self.decoded = False
        #: Tokens of the prompt: of the passes before the first that reads one token.
        self.prompt: int | None = None
        #: How many positions the text has; None: it is not known.
        self.length: int | None = None
        #: What else the passes were given last, and the ids of each.
        self._given: dict[str, Tensor] = {}
        self._ids: dict[str, list[Tensor]] = {}

    def new_pass(self, arguments: Inputs, before: int, model: bool) -> None:
        """Another pass with these arguments, after so many positions.

        model: whether it is one of the whole model.
        """
        tensors = {name: v for name, v in arguments.items() if isinstance(v, Tensor)}
        for name in ("input_ids", "decoder_input_ids"):
            if name in tensors and tensors[name].ndim == 2:
                ids = tensors.pop(name).detach().cpu()
                self._ids.setdefault(name, []).append(ids)
                if name == self._name:
                    self.length = before + ids.shape[1]
                if name == self._name and model:
                    reads_on = self.prompt == before and ids.shape[1] > 1
                    if self.prompt is None or reads_on:
                        self.prompt = before + ids.shape[1]
        for name, value in tensors.items():
            if name != "attention_mask" or value.ndim == 2:
                self._given[name] = value.detach()
        self.decoded = self.decoded or model

    def inputs(self) -> Arguments:
        """The arguments of the model as one pass over the whole text would take them."""
        arguments: Arguments = {
            name: value
            for name, value in self._given_first.items()
            if isinstance(value, Tensor) and name not in (self._name, "attention_mask")
        }
        arguments |= self._given
        arguments |= {name: torch.cat(parts, 1) for name, parts in self._ids.items()}
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
        arguments[mask_name] = self._until_end(ids, mask.cpu(), self.prompt)
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
