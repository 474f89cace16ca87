"""`live`: the newest attention row of chosen heads, while a model runs."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import get_ident
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headloom.errors import InputError
from headloom.mechanism.attention_layer import AttentionLayer, Editor, HeadOutputs
from headloom.mechanism.graph import AttentionGraph, Top
from headloom.mechanism.shapes import whole_number
from headloom.mechanism.watching import layers_of
from headloom.tracing.huggingface import reader_of
from headloom.tracing.model_state import Hook, uncompiled
from headloom.tracing.recording.layer_call import LayerCall
from headloom.tracing.sources.functions import recorded
from headloom.tracing.sources.transformers import is_transformers_model, routed, routes

#: A head: layer number or path, and head; or kind, index among the layers of the kind, and head.
Address = tuple[int | str, int] | tuple[str, int, int]


class Rows(dict[Any, Any]):
    """Dict by the heads that were named; an error tells which layers have run."""

    def __init__(self) -> None:
        #: Paths of the layers that have run, in their order.
        self.paths: list[str] = []

    def __missing__(self, address: object) -> Tensor:
        """Raise the error of a head without a row."""
        ran = f"the layers {', '.join(self.paths[:40])} have run" if self.paths else "nothing ran"
        raise InputError(
            f"live: no row of {address!r}; name it in heads=, as (layer, head), and run the model "
            f"first: {ran}."
        )


class Live:
    """Rows of the named heads of a running model.

    rows: by the heads as they were named, (batch, keys), float32: the weights of the last query of
        each sequence, over all keys in the cache. Hidden keys, as of padding, have weight 0.
    history: lists of the last rows of each head, the newest last.
    """

    def __init__(self, heads: Sequence[Address], history: int) -> None:
        self.rows = Rows()
        self.history: dict[Any, deque[Tensor]] = {
            address: deque(maxlen=history) for address in heads
        }
        #: Named heads of each layer, by its path and the count of earlier calls in a pass.
        self._heads: dict[tuple[str, int], list[tuple[Address, int]]] = {}
        self._passed: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        self._running = False
        #: The thread of the running pass, and whether another ran the model beside it.
        self._thread, self._beside = get_ident(), False

    def skips(self, path: str) -> bool:
        """Return whether the next call of a layer has no named head, and count it."""
        if self._is_beside():
            return True
        if self._heads.get((path, self._passed.get(path, 0)), True):
            return False
        self._count(path)
        return True

    def __call__(self, call: LayerCall) -> None:
        """Compute the rows of the named heads of a call."""
        if self._is_beside():
            return
        place = call.path, self._passed.get(call.path, 0)
        self._count(call.path)
        if place not in self._heads:
            self._heads[place] = self._named(call)
        for address, head in self._heads[place]:
            row = newest_row(call, head)
            self.rows[address] = row
            self.history[address].append(row)

    def _count(self, path: str) -> None:
        if self._running:
            self._passed[path] = self._passed.get(path, 0) + 1

    def _named(self, call: LayerCall) -> list[tuple[Address, int]]:
        """Return the named heads of a layer at its first call."""
        number, index = len(self._heads), self._counts.get(call.kind, 0)
        self._counts[call.kind] = index + 1
        self.rows.paths.append(call.path)
        names: tuple[object, ...] = (number,), (call.path,), (call.kind, index)
        named = [(address, address[-1]) for address in self.history if address[:-1] in names]
        for address, head in named:
            if head >= call.queries.shape[1]:
                raise InputError(
                    f"live: heads has {address!r}; {call.path} has the heads 0 to "
                    f"{call.queries.shape[1] - 1}."
                )
            if not call.has_products:
                raise InputError(f"live: {call.path} has no rows: {call.missing or 'weights only'}")
        return named

    def take(self, call: LayerCall, graph: AttentionGraph) -> None:
        """Count a layer that computes its own graph."""
        self(call)

    def edit(
        self, layer: AttentionLayer, heads: HeadOutputs, path: str, editor: Editor | None
    ) -> Tensor:
        """Compute the rows of a layer of headloom; return its output, edited as before."""
        if not self.skips(path):
            tensors = heads.queries, heads.keys, heads.values
            call = LayerCall(path, layer.kind, *tensors, heads.scale, heads.mask)
            call.relative, call.softcap, call.sinks = heads.relative, heads.softcap, heads.sinks
            self(call)
        return heads.output if editor is None else editor(layer, heads)

    def begin(self, *_: object) -> None:
        """Begin a pass of the model."""
        if self._is_beside():
            self._beside = True
            return
        self._running, self._thread = True, get_ident()
        self._passed.clear()

    def end(self, *_: object) -> None:
        """End a pass."""
        if self._is_beside():
            return
        self._running = False
        self._passed.clear()

    def _is_beside(self) -> bool:
        """Return whether this thread runs beside the pass of another."""
        return self._running and self._thread != get_ident()

    def check(self) -> None:
        """Warn of named heads without a row, and of passes without rows."""
        if self._beside:
            warnings.warn(
                "live: the model ran in two threads at once; rows are of one alone.", stacklevel=4
            )
        missing = [repr(address) for address in self.history if address not in self.rows]
        if missing:
            warnings.warn(
                f"live: no row of {', '.join(missing)}; "
                f"{len(self.rows.paths)} layers ran: {', '.join(self.rows.paths[:40])}.",
                stacklevel=4,
            )


@torch.no_grad()
def newest_row(call: LayerCall, head: int) -> Tensor:
    """Return the weights of the last query of a head, (batch, keys), computed in float64.

    Of texts packed in one row: (texts, keys), padded with 0.

    w_j = exp(s_j) / (sum_k exp(s_k) + exp(sink)),  s_j = softcap(scale q . k_j) + bias_j
    """
    if call.packed:
        rows = [newest_row(text, head)[0] for text in call.packed]
        return nn.utils.rnn.pad_sequence(rows, batch_first=True)
    queries, keys = call.products()
    last = queries.shape[2] - 1
    length, device = keys.shape[2], queries.device
    row, exact = range(last, last + 1), torch.float32 if device.type == "mps" else torch.float64

    def of_head(tensor: Tensor) -> Tensor:
        return tensor[:, head if tensor.shape[1] > 1 else 0, 0]

    group = queries.shape[1] // keys.shape[1]
    scores = _products(queries[:, head, last].detach(), keys[:, head // group].detach(), exact)
    relative = call.relative
    if relative is not None:
        terms = relative.key_scores(queries[:, :, last : last + 1].to(exact), row, length)
        scores = scores if terms is None else scores + of_head(terms)
    scores = scores * call.scale
    if call.softcap is not None:
        scores = call.softcap * (scores / call.softcap).tanh()
    distance = None if relative is None else relative.bias(row, length, device)
    if distance is not None:
        scores = scores + of_head(distance[None]).to(exact)
    added = call.bias_of(torch.tensor([last]))
    if added is not None:
        scores = scores + of_head(added).to(exact)
    if call.mask is not None:
        scores = scores.masked_fill(~of_head(call.mask.cells(row, length, device)), -torch.inf)
    sink = None if call.sinks is None else call.sinks[head].detach().to(exact)
    largest = scores.amax(-1, keepdim=True).clamp(min=torch.finfo(exact).min)
    # NumPy's has one thread, as in _products.
    powers = (
        np.exp(scores.sub_(largest).numpy()) if device.type == "cpu" else scores.sub(largest).exp()
    )
    shares = torch.as_tensor(powers)
    total = shares.sum(-1, keepdim=True)
    if sink is not None:
        total = total + (sink - largest).exp()
    return (shares / total.clamp(min=torch.finfo(exact).tiny)).float()


def _products(query: Tensor, keys: Tensor, exact: torch.dtype) -> Tensor:
    """Return the products of one query with keys, (batch, keys).

    On a processor by NumPy, in one thread: for so few numbers, threads wait for each other.
    """
    if query.device.type != "cpu":
        return torch.einsum("bd,bkd->bk", query.to(exact), keys.to(exact))
    rows, columns = (
        (tensor if tensor.dtype.itemsize > 2 else tensor.float()).numpy().astype(np.float64)
        for tensor in (query, keys)
    )
    return torch.from_numpy(np.matmul(columns, rows[:, :, None])[:, :, 0])


@contextmanager
def live(
    model: nn.Module, heads: Sequence[Address], *, history: int | None = None
) -> Iterator[Live]:
    """Give the newest attention row of chosen heads while a model runs.

        with headloom.live(model, heads=[(9, 2), ("cross", 1, 0)]) as live:
            model.generate(**inputs, logits_processor=[...])    # reads live.rows[9, 2]

    A row is there as soon as its layer has run: in a hook, a LogitsProcessor, a StoppingCriteria
    or a streamer, before the next token is chosen. Only the rows of the named heads are computed,
    one query by all keys each; the model computes with its own attention, and its output keeps its
    bits. Compiled models run uncompiled in the block; flash and flex attention by torch's fused
    attention, which rounds differently.

    Args:
        model: a model of Transformers that uses the attention interface (sdpa, eager, flash, flex),
            one of headloom, or any module that calls torch's attention functions.
        heads: (layer, head), the layer by its number in `headloom.trace` or its path; or (kind,
            index, head), as ("cross", 1, 0).
        history: rows of each head to keep in ``live.history``; None: all.

    Yields: a `Live`: ``rows`` and ``history``, by the heads as named. In a beam search, rows are
        in the order of the beams in that step; in ``generate_batch`` in that of its requests, and
        shorter ones end in 0.

    Raises: InputError: a head that the model lacks, when its layer runs; a model that is traced or
        watched at the same time. A warning names heads whose layer did not run.
    """
    chosen = [tuple(each) if isinstance(each, Sequence) else (each,) for each in heads]
    for address in chosen:
        if len(address) not in (2, 3) or not isinstance(address[-1], int) or address[-1] < 0:
            raise InputError(f"live: heads has {address!r}; expected (layer, head), as (9, 2).")
    if history is not None:
        whole_number("live", "history", history, 0)
    reader = reader_of(model, "live")
    inner: Any = reader.model
    rows = Live(chosen, history)  # type: ignore[arg-type]
    parts = [inner]
    if getattr(getattr(inner, "config", None), "is_encoder_decoder", False):
        parts.append(inner.get_encoder())
    with ExitStack() as stack:
        stack.enter_context(uncompiled())
        for part in parts:
            stack.callback(part.register_forward_pre_hook(Hook(rows.begin)).remove)
        stack.callback(inner.register_forward_hook(Hook(rows.end), always_call=True).remove)
        own = layers_of(inner)
        if is_transformers_model(inner) and routes(inner):
            stack.enter_context(routed(inner, rows, skips=rows.skips))
        elif own:
            for path, layer in own:
                stack.callback(setattr, layer, "editor", layer.editor)
                layer.editor = partial(rows.edit, path=path, editor=layer.editor)
        else:
            stack.enter_context(recorded(inner, Top(0), rows, rows.take))
        yield rows
        rows.check()
