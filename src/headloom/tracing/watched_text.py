"""The passes of a model of Transformers over one text, or one batch of texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headloom.mechanism.graph import Keep
from headloom.tracing.arguments import Arguments, Inputs
from headloom.tracing.recording.beams import Beams
from headloom.tracing.recording.call_file import CallFile
from headloom.tracing.recording.passes import Passes
from headloom.tracing.recording.recorder import CallRecorder

__all__ = ["WatchedText"]


class WatchedText:
    """The passes of a model over one text, or one batch of texts."""

    def __init__(
        self,
        keep: Keep,
        layers: Sequence[int | str] | None,
        strict: bool,
        queries_keys: bool,
        save: Path | str | None,
    ) -> None:
        """Args: queries_keys: whether they are wanted. save: where the trace is to be."""
        file = None if save is None else CallFile(save)
        self.passes = Passes(queries_keys=queries_keys, file=file)
        self.recorder = CallRecorder(
            self.passes, keep, layers, self.passes.are_verified, strict,
            new_keys=self.passes.new_keys,
        )  # fmt: skip
        #: Whether the model itself has run, not its encoder alone.
        self.decoded = False
        #: Tokens of the first pass.
        self.prompt: int | None = None
        #: Of a beam search, where each sequence that it returned was: see Beams.returned.
        self.returned: Tensor | None = None
        #: How many tokens `generate` was asked to go on from, and the mask of them, of a model that
        #: only decodes: it may read them in several passes, or with more behind them.
        self.asked: int | None = None
        self.asked_mask: Tensor | None = None
        #: The tokens that end a text, and the one after them, as `generate` was told; None: not.
        self.ends: tuple[Any, int | None] | None = None
        #: The images that `generate` was given, which it encodes before the first pass.
        self.images: Arguments = {}
        #: What else the passes were given last, with the number of the pass.
        self._given: dict[str, tuple[int, Tensor]] = {}
        #: The ids of each pass, with its number.
        self._ids: dict[str, list[tuple[int, Tensor]]] = {}

    def new_pass(self, arguments: Inputs, before: int, model: bool) -> None:
        """Another pass with these arguments, after so many positions."""
        self.recorder.new_pass()
        self.passes.new_pass(before)
        tensors = {name: v for name, v in arguments.items() if isinstance(v, Tensor)}
        for name in ("input_ids", "decoder_input_ids"):
            if name in tensors and tensors[name].ndim == 2:
                ids = tensors.pop(name).detach().cpu()
                self._ids.setdefault(name, []).append((self.passes.passes - 1, ids))
                if model and not self.decoded:
                    asked = ids.shape[1] if self.asked is None else self.asked - before
                    self.prompt = asked if asked > 0 else ids.shape[1]
        for name, value in tensors.items():
            if name != "attention_mask" or value.ndim == 2:
                self._given[name] = self.passes.passes - 1, value.detach()
        self.decoded = self.decoded or model

    def goes_on_from(self, before: int) -> bool:
        """Whether a cache of so many positions may hold this text: it is as long."""
        name = "decoder_input_ids" if "decoder_input_ids" in self._ids else "input_ids"
        read = self._ids.get(name)
        return not read or before == self.passes.begins[read[-1][0]] + read[-1][1].shape[1]

    def crop(self, length: int, pair: bool) -> None:
        """The cache lets go of its positions from one on. pair: whether a target grows in it."""
        self.passes.crop(length, encodes=pair)
        name = "decoder_input_ids" if pair else "input_ids"
        self._ids[name] = [
            (number, ids[:, : max(0, length - self.passes.begins[number])])
            for number, ids in self._ids.get(name, [])
        ]

    @property
    def beams(self) -> Beams | None:
        """The rows of the sequences that a beam search returned, or of all in the last pass.

        None: every pass has the rows of the one before it.
        """
        orders = self.passes.orders
        searched = any(order is not None for order in orders)
        sizes = {len(ids) for parts in self._ids.values() for _, ids in parts}
        if self.returned is None and not searched and len(sizes) < 2:
            return None
        if self.returned is not None:
            return Beams.returned(self.returned, orders, max(sizes))
        known = {number: len(ids) for parts in self._ids.values() for number, ids in parts}
        return Beams.followed(orders, [known.get(n, max(sizes)) for n in range(len(orders))])

    def inputs(self, model: nn.Module, beams: Beams | None = None) -> Arguments:
        """The arguments of the model as one pass over the whole text would take them."""

        def taken(value: Tensor, number: int) -> Tensor:
            rows = None if beams is None else beams.of_pass(number, len(value))
            return value if rows is None else value[rows.to(value.device)]

        arguments: Arguments = self.images | {
            name: taken(value, number) if value.ndim > 1 else value
            for name, (number, value) in self._given.items()
        }
        for name, parts in self._ids.items():
            arguments[name] = torch.cat([taken(ids, number) for number, ids in parts], 1)
        name = "decoder_input_ids" if "decoder_input_ids" in arguments else "input_ids"
        mask_name = name.replace("input_ids", "attention_mask")
        if name in arguments and self.prompt is not None and self.prompt < arguments[name].shape[1]:
            mask = arguments.get(mask_name)
            if mask is None or mask.shape != arguments[name].shape:
                mask = self._mask_like(arguments[name], self.prompt)
            if self.returned is None or beams is None:
                own = getattr(model, "generation_config", None)
                ends = self.ends or tuple(
                    getattr(own, f"{n}_token_id", None) for n in ("eos", "pad")
                )
                arguments[mask_name] = _until_end(arguments[name], mask.cpu(), self.prompt, *ends)
            else:
                alive = [
                    (beams.rows[:, [number]] >= 0).expand(-1, ids.shape[1])
                    for number, ids in self._ids[name]
                ]
                arguments[mask_name] = mask.cpu().masked_fill(~torch.cat(alive, 1), 0)
        return arguments

    def _mask_like(self, ids: Tensor, prompt: int) -> Tensor:
        """The mask of the prompt, of which a cache of fixed size makes something else, and ones."""
        mask, asked = torch.ones_like(ids), self.asked_mask
        if asked is not None and len(asked) and not len(ids) % len(asked):
            asked = asked[:, -prompt:].to(mask).repeat_interleave(len(ids) // len(asked), 0)
            mask[:, : asked.shape[1]] = asked
        return mask


def _until_end(ids: Tensor, mask: Tensor, prompt: int, ends: Any, padding: Any) -> Tensor:
    """A mask of what each text of a batch is, up to the end token behind which it is padding."""
    if ends is None or len(ids) == 1:
        return mask  # one text ends where its generation does
    ends = torch.as_tensor(ends).cpu().flatten()
    written = ids[:, prompt:].cpu()
    filled = written == (int(ends[0]) if padding is None else padding)
    rest = filled.flip(1).cumprod(1).flip(1).bool()  # nothing but padding from here on
    last = torch.ones_like(rest[:, :1])
    closes = torch.isin(written, ends) & torch.cat((rest[:, 1:], last), 1)
    return mask.masked_fill(_pad_left(closes.cumsum(1) > 0, prompt), 0)


def _pad_left(tensor: Tensor, places: int) -> Tensor:
    """A bool tensor (batch, positions) with so many False in front."""
    return torch.cat((tensor.new_zeros(len(tensor), places), tensor), 1)
