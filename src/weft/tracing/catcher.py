"""Receives the attention calls of a running model: computes each, and hands on what was caught."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import InputError
from weft.mechanism.function import attend, attention
from weft.mechanism.graph import All, Keep, Top
from weft.tracing.caught import Caught
from weft.tracing.interface import InterfaceCall, transformers
from weft.tracing.sequences import layer_kind
from weft.tracing.terms import ranges_of
from weft.tracing.verification import deviation

__all__ = ["Catcher"]


class Catcher:
    """Computes the attention calls of a model's run, and hands each on.

    Args:
        receive: is given what was caught of each call of a layer that is wanted.
        keep: edges of each query.
        layers: numbers in the order of the run, or paths; None: all.
        verified: whether a call is to be verified, from its queries and the keys before them.
        strict: whether a call that differs from the model's own attention is an error.
    """

    def __init__(
        self,
        receive: Callable[[Caught], None],
        keep: Keep,
        layers: Sequence[int | str] | None,
        verified: Callable[[], bool] = lambda: True,
        strict: bool = True,
    ) -> None:
        self._receive, self._keep, self._wanted = receive, keep, layers
        self._verified, self._strict = verified, strict
        #: Told the path and the number of each layer that has run.
        self.progress: Callable[[str, int], None] = lambda path, number: None
        #: Number and index of each layer by its path and how often the path came before in a pass.
        self._known: dict[tuple[str, int], tuple[int, int]] = {}
        self._passed: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        self._used: set[int | str] = set()
        # With the mask itself, so that no other takes its id meanwhile.
        self._ranges: dict[tuple[int, int, tuple[int, int]], tuple[Any, Tensor | None]] = {}

    def __call__(self, call: InterfaceCall) -> Tensor:
        """The output of one attention call, (batch, heads, queries, value_depth)."""
        kind = layer_kind(call.path, call.module, call.is_causal)
        number, index = self._next(call.path, kind)
        if not self._is_wanted(number, call.path):
            return attention(call.queries, call.keys, call.values, **call.arguments())
        # Half precision is for the model; scores and their sums are taken in float32.
        tensors = (call.queries.float(), call.keys.float(), call.values.float())
        keep = self._places(call.keys.shape[2])
        output, graph = attend(*tensors, keep=keep, **call.arguments())
        found: Tensor = output.to(call.values.dtype)
        depth = call.queries.shape[-1]
        batch = len(call.queries)
        deviates = None
        if self._verified():
            deviates = deviation(call, found, graph, strict=self._strict)
        self._receive(
            Caught(
                path=call.path,
                kind=kind,
                index=index,
                graph=graph.detach(),
                scale=depth**-0.5 if call.scale is None else call.scale,
                positions="none" if call.bias is None else "bias",
                deviation=deviates,
                queries=call.queries.detach(),
                keys=call.keys.detach(),
                value_norms=call.values.detach().float().norm(dim=-1),
                ranges=tuple(self._mask_ranges(call, sample) for sample in range(batch)),
                bias=call.bias,
                sinks=call.sinks,
                softcap=call.softcap,
                is_causal=call.is_causal,
            )
        )
        self.progress(call.path, number)
        return found

    def weights(self, path: str, module: nn.Module, weights: Tensor) -> None:
        """Receive the dense weights of a layer, (batch, heads, queries, keys), instead of a call.

        Its scores are the logarithms of its weights: the true ones less a number for each row.
        """
        ahead = weights.triu(1) if weights.shape[-2] == weights.shape[-1] > 1 else weights
        # In one input at least: a row of padding may look anywhere.
        is_causal = not bool(ahead.flatten(1).any(-1).all())
        kind = layer_kind(path, module, is_causal)
        number, index = self._next(path, kind)
        if not self._is_wanted(number, path):
            return
        empty = weights.new_zeros(*weights.shape[:3], 1, dtype=torch.float32)
        nothing = weights.new_zeros(*weights.shape[:2], weights.shape[3], 1, dtype=torch.float32)
        keep = self._places(weights.shape[-1])
        _, graph = attend(empty, nothing, nothing, bias=weights.float().log(), keep=keep)
        self._receive(Caught(path, kind, index, graph, 1.0, "bias", None))
        self.progress(path, number)

    def new_pass(self) -> None:
        """The model begins another pass through its layers."""
        self._passed.clear()
        self._ranges.clear()

    def _places(self, keys: int) -> Top:
        return Top(keys) if isinstance(self._keep, All) else self._keep

    def _next(self, path: str, kind: str) -> tuple[int, int]:
        """The number of the layer that comes, and its index among those of its kind."""
        before = self._passed.get(path, 0)
        self._passed[path] = before + 1
        if (path, before) not in self._known:
            index = self._counts.get(kind, 0)
            self._counts[kind] = index + 1
            self._known[path, before] = len(self._known), index
        return self._known[path, before]

    def _is_wanted(self, number: int, path: str) -> bool:
        if self._wanted is None:
            return True
        matches = [
            wanted
            for wanted in self._wanted
            if (wanted == number if isinstance(wanted, int) else fnmatchcase(path, wanted))
        ]
        self._used.update(matches)
        return bool(matches)

    def _mask_ranges(self, call: InterfaceCall, sample: int) -> Tensor | None:
        """The ranges of a call's mask; layers that share a mask share them."""
        shape = call.queries.shape[2], call.keys.shape[2]
        where = id(call.mask), sample, shape
        if where not in self._ranges:
            self._ranges[where] = call.mask, ranges_of(call.mask, *shape, sample)
        return self._ranges[where][1]

    @property
    def paths(self) -> list[str]:
        """The paths of all layers that have run, wanted or not."""
        return [path for path, _ in self._known]

    def check(self, model: nn.Module) -> None:
        """Raise where nothing came, or not every layer that was asked for."""
        if not self._known:
            raise InputError(
                f"trace: {type(model).__name__} neither uses the attention interface of "
                f"Transformers {transformers().__version__} nor returns dense weights that could "
                "be taken instead. docs/tracing.md lists models that can be traced."
            )
        missing = [wanted for wanted in self._wanted or () if wanted not in self._used]
        if missing:
            paths = self.paths
            raise InputError(
                f"trace: no layer {', '.join(map(repr, missing))}; the model has layers 0 to "
                f"{len(paths) - 1}: {paths[0]} ... {paths[-1]}."
            )
