"""Texts that a model reads in several passes: of a generation, or of each request of a batch.

A pass of `generate_batch` of Transformers reads the next tokens of several requests, packed in one
row. If a request shares its first tokens with another one, they are not computed again; the rows of
the other are taken.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable
from itertools import pairwise
from math import inf
from typing import Any

import torch
from torch import Tensor

from headloom.errors import InputError
from headloom.tracing.arguments import Arguments, Inputs
from headloom.tracing.recording.layer_call import LayerCall
from headloom.tracing.recording.session import Session

_NOT_SEEN = (
    "a request's first tokens were computed before the block began: generate_batch needs a new "
    "manager in the block."
)
_NO_CALL = (
    "generate_batch changed to flash attention, which cannot be recorded: give "
    "ContinuousBatchingConfig(auto_switch_to_flash=False)."
)
_GRAPH = (
    "generate_batch captures a CUDA graph, which cannot be traced: give "
    "ContinuousBatchingConfig(use_cuda_graph=False)."
)


class Text:
    """Passes of a model over one text, or one batch of texts.

    Args:
        is_pair: whether only the target grows, as in an encoder-decoder.
        prompt: the arguments of the generation; empty: unknown.
        ends: the tokens that end a text, and the padding token after them.
    """

    def __init__(
        self, is_pair: bool, prompt: Inputs, ends: tuple[int | list[int] | None, int | None]
    ) -> None:
        self._prompt_inputs, self._ends = prompt, ends
        self._name = "decoder_input_ids" if is_pair else "input_ids"
        #: Whether the model itself has run, not only its encoder.
        self.decoded = False
        #: Tokens of the prompt: of all passes before the first pass of one token.
        self.prompt: int | None = None
        #: Number of positions of the text; None: unknown.
        self.length: int | None = None
        #: Whether the last pass ended inside the prompt.
        self.goes_on = False
        #: Other arguments of the last pass, and the ids of each pass.
        self._others: dict[str, Tensor] = {}
        self._ids: dict[str, list[Tensor]] = {}

    @property
    def ids(self) -> Tensor:
        """Token ids of all passes, (batch, length)."""
        return torch.cat(self._ids[self._name], 1)

    def begin_with(self, other: Text, count: int) -> None:
        """Take the first tokens of another text, which come before those of the first pass."""
        self._ids[self._name].insert(0, other.ids[:, :count])

    def new_pass(
        self, arguments: Inputs, before: int, model: bool, *, goes_on: bool = False
    ) -> None:
        """Add a pass with these arguments.

        before: number of positions before it. model: whether the whole model runs. goes_on: whether
        the prompt does after it.
        """
        tensors = {name: v for name, v in arguments.items() if isinstance(v, Tensor)}
        for name in ("input_ids", "decoder_input_ids"):
            if name in tensors and tensors[name].ndim == 2:
                ids = tensors.pop(name).detach().cpu()
                self._ids.setdefault(name, []).append(ids)
                if name == self._name:
                    self.length = before + ids.shape[1]
                if name == self._name and model:
                    reads_on = self.prompt == before and (self.goes_on or ids.shape[1] > 1)
                    if self.prompt is None or reads_on:
                        self.prompt = before + ids.shape[1]
                    self.goes_on = goes_on
        for name, value in tensors.items():
            if name != "attention_mask" or value.ndim == 2:
                self._others[name] = value.detach()
        self.decoded = self.decoded or model

    def inputs(self) -> Arguments:
        """Return the arguments for one pass over the whole text."""
        arguments: Arguments = {
            name: value
            for name, value in self._prompt_inputs.items()
            if isinstance(value, Tensor) and name not in (self._name, "attention_mask")
        }
        arguments |= self._others
        arguments |= {name: torch.cat(parts, 1) for name, parts in self._ids.items()}
        mask_name = self._name.replace("input_ids", "attention_mask")
        ids = arguments.get(self._name)
        if ids is None or self.prompt is None or self.prompt >= ids.shape[1]:
            return arguments
        mask = arguments.get(mask_name)
        if mask is None or mask.shape != ids.shape:
            mask = torch.ones_like(ids)
            first = self._prompt_inputs.get(mask_name)  # a cache of fixed size changes the mask
            if isinstance(first, Tensor) and first.ndim == 2 and len(ids) % len(first) == 0:
                prompt = first[:, : self.prompt].to(mask)
                mask[:, : prompt.shape[1]] = prompt.repeat_interleave(len(ids) // len(first), 0)
        arguments[mask_name] = self._until_end(ids, mask.cpu(), self.prompt)
        return arguments

    def _until_end(self, ids: Tensor, mask: Tensor, prompt: int) -> Tensor:
        """Return the mask of each text of a batch up to its end token; padding follows it."""
        end, padding = self._ends
        if end is None or len(ids) == 1:
            return mask  # one text ends where its generation does
        ends = torch.as_tensor(end).cpu().flatten()
        written = ids[:, prompt:].cpu()
        filled = written == (int(ends[0]) if padding is None else padding)
        rest = filled.flip(1).cumprod(1).flip(1).bool()  # only padding from here on
        last = torch.ones_like(rest[:, :1])
        closes = torch.isin(written, ends) & torch.cat((rest[:, 1:], last), 1)
        after = closes.cumsum(1) > 0
        return mask.masked_fill(torch.cat((after.new_zeros(len(after), prompt), after), 1), 0)


class Request:
    """Recording of a request.

    failure: the reason why it has no trace; None: it has one. missing: number of first tokens that
    another request computed, whose rows were not taken yet.
    """

    def __init__(self, name: str, session: Session, text: Text, missing: int) -> None:
        assert session.passes is not None
        self.name, self.session, self.text, self.missing = name, session, text, missing
        self.passes = session.passes
        self.failure: Exception | None = None

    def record(self, call: LayerCall, others: Iterable[Request]) -> None:
        """Record a call, in the first one with the rows of another request."""
        for other in others if self.missing else ():
            if other.failure is None and other.passes.holds(call, self.missing):
                self.passes.begin_with(other.passes, self.missing)
                self.text.begin_with(other.text, self.missing)
                self.missing = 0
                break
        self.session(call)
        if self.missing and not self.passes.is_empty:
            raise InputError(_NOT_SEEN)

    def check(self) -> None:
        """Raise the error of a request without a trace."""
        if self.failure is not None:
            raise self.failure
        if not self.session.paths:
            raise InputError(_NO_CALL)

    def continues(self, other: Request) -> bool:
        """Return whether it is a request that began again; take the prompt of that, or a parent."""
        again = self.name == other.name
        if not again and self.name.partition("__child#")[0] != other.name:
            return False
        ids = other.text.ids[:, : None if again else other.text.prompt]
        if not torch.equal(self.text.ids[:, : ids.shape[1]], ids):
            return False
        if not other.text.goes_on:
            self.text.prompt = other.text.prompt
        return again


class Requests:
    """Requests of the cache of a `generate_batch`. start: returns a session and a text."""

    def __init__(self, cache: Any, start: Callable[[], tuple[Session, Text]]) -> None:
        self.cache, self._start = cache, start
        self._all: list[Request] = []
        #: Requests of the running pass, in the order of their rows.
        self._running: list[Request] = []

    def new_pass(self, arguments: Inputs) -> None:
        """Begin a pass with these arguments of the model."""
        self._running = []
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise InputError(_GRAPH)
        latest = {request.name: request for request in self._all}
        places, writes = (arguments[name].tolist() for name in ("position_ids", "logits_indices"))
        name_of = self._owners(arguments)
        for first, last in pairwise(arguments["cu_seq_lens_q"].tolist()):
            if first == last:  # padding
                continue
            name, before = name_of(last - 1), places[0][first]
            request = latest.get(name)
            if request is None or request.text.length != before:
                request = Request(name, *self._start(), before)
                self._all.append(request)
            request.session.new_pass(before)
            ids = {"input_ids": arguments["input_ids"][:, first:last].clone()}
            request.text.new_pass(ids, before, True, goes_on=last - 1 not in writes)
            self._running.append(request)

    def _owners(self, arguments: Inputs) -> Callable[[int], str]:
        """Return a function from rows to the ids of the requests that own their cache blocks."""
        try:
            blocks = next(iter(self.cache.cache_allocators.values()))
            owners = {block: name for name, own in blocks.block_table.items() for block in own}
            places, size = arguments["write_index"][blocks.index], blocks.block_physical_stride
        except AttributeError:
            version = importlib.import_module("transformers").__version__
            raise InputError(
                f"generate_batch of Transformers {version} does not tell which request a row "
                "belongs to; that of 5.24 does."
            ) from None
        return lambda row: owners[int(places[row]) // size]

    def __call__(self, call: LayerCall) -> None:
        """Record a layer's call for each request."""
        for request, part in zip(self._running, call.packed, strict=False):
            if request.failure is None:
                try:
                    request.record(part, self._all)
                except Exception as error:
                    request.failure = error

    def fail(self, error: Exception) -> None:
        """Note an error for the requests of the running pass."""
        for request in self._running:
            request.failure = request.failure or error

    def finished(self) -> list[Request]:
        """Return the requests in the order of `generate_batch`: by number, children first.

        Where the cache is full, a request is taken out and begins again with what it has written.
        """
        kept: list[Request] = []
        for request in self._all:
            if not request.name.startswith("__warmup"):
                kept = [other for other in kept if not request.continues(other)] + [request]
        return sorted(kept, key=lambda request: [*map(int, re.findall(r"\d+", request.name)), inf])
