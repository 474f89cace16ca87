"""Sequences of the positions in any torch module.

A length that exactly one input has names a sequence; any other length is a separate sequence. Of
two inputs of the same length, positions are told apart by the kinds of the layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headloom.mechanism.grid import Grid
from headloom.tracing.arguments import Inputs, Tokenizer
from headloom.tracing.names import special_known, texts_known, token_names
from headloom.tracing.recording.layer_call import LayerCall
from headloom.tracing.recording.sequences import InputSequence, NamesOfSequences, name_of_grid

#: Words in the names of arguments that describe a sequence.
_BESIDE = ("mask", "type", "segment", "position", "label", "step", "edge", "batch")


def samples_of(inputs: Inputs, calls: Sequence[LayerCall]) -> int:
    """Return the number of inputs in the batch of a model's call.

    It is the first dimension of the first input; or the second, if every call has that batch size
    and the length of the first: then the sequence comes first, as in `nn.Transformer`. A model
    whose calls have a batch of 1 has read one input.
    """
    first = next((t for t in _tensors(inputs).values() if t.ndim >= 2), None)
    batches = {len(call.graph.keys) for call in calls}
    if first is None or batches == {1}:
        return 1
    rows, columns = first.shape[:2]
    if rows > 1 and all(batch % rows == 0 for batch in batches):
        return rows
    lengths = {length for call in calls for length in call.graph.shape[2:]}
    if rows in lengths and batches == {columns}:
        return columns
    return rows


def _tensors(inputs: Inputs) -> dict[str, Tensor]:
    return {name: value for name, value in inputs.items() if isinstance(value, Tensor)}


class ModuleSequences(NamesOfSequences):
    """Sequences of a model's call, from its layers: see `NamesOfSequences`."""

    def __init__(
        self, model: nn.Module, inputs: Inputs, samples: int, calls: Sequence[LayerCall],
        tokenizer: Tokenizer,
    ) -> None:  # fmt: skip
        self._tokenizer, self._samples = tokenizer, samples
        self._lengths: dict[str, int] = {}
        self._ids: dict[str, Tensor] = {}
        # A tensor given twice, as queries and keys, is one sequence.
        once = {id(tensor): name for name, tensor in reversed(_tensors(inputs).items())}
        for name, tensor in _tensors(inputs).items():
            if once[id(tensor)] == name:
                self._add(name, tensor)
        self._grid = _grid(model, inputs)
        #: Grids of layers, by the names of their sequences.
        self._layer_grids: dict[str, Grid] = {}
        #: Lengths of cross-attention layers with as many queries as keys.
        self._both = {
            call.graph.shape[2]
            for call in calls
            if call.kind == "cross" and call.graph.shape[2] == call.graph.shape[3]
        }
        #: Whether the only sequence is a text, which is always named "tokens".
        self._one_text = len(self._lengths) == 1 and bool(self._ids)

    def _add(self, name: str, tensor: Tensor) -> None:
        """Note the length of an input: the dimension beside the batch."""
        if tensor.ndim == 2 and self._samples == 1 and tensor.is_floating_point():
            tensor = tensor[None]
        ids = not tensor.is_floating_point() and tensor.dtype != torch.bool
        if any(word in name.lower() for word in _BESIDE):
            return
        if ids and tensor.ndim == 1:
            tensor = tensor[None]
        if tensor.ndim not in ((2,) if ids else (3,)) or not tensor.shape[0] or tensor.is_complex():
            return
        rows, columns = tensor.shape[:2]
        if rows == self._samples and (columns != self._samples or rows == 1):
            self._lengths[name] = columns
        elif columns == self._samples:
            tensor, self._lengths[name] = tensor.transpose(0, 1), rows
        else:
            # Length and batch size are equal, so the dimensions cannot be told apart.
            return
        if ids:
            self._ids[name] = tensor.detach().cpu()

    def ends(self, call: LayerCall) -> tuple[str, str]:
        kind, (queries, keys) = call.kind, call.graph.shape[2:]
        if call.grids is not None:
            rows, columns = (name_of_grid(self._layer_grids, grid) for grid in call.grids)
            return rows, columns
        if kind != "cross":
            return self._named(queries, kind), self._named(keys, kind)
        names = self._named(queries, "decoder"), self._named(keys, "encoder")
        return names if names[0] != names[1] else (names[0], f"source-{keys}")

    def _named(self, length: int, kind: str) -> str:
        """Return the sequence of a length, on the side of an encoder or of a decoder."""
        if self._grid is not None and self._grid.length == length:
            return "patches"
        names = [name for name, size in self._lengths.items() if size == length]
        if len(names) == 1 and length not in self._both:
            return "tokens" if self._one_text else names[0]
        if len(names) > 1:
            return "target" if kind == "decoder" else "source"
        return f"positions-{length}"

    def of(self, name: str, length: int, sample: int) -> InputSequence:
        span = slice(0, length)
        if name.startswith("patches"):
            grid = self._layer_grids.get(name) or self._grid
            if grid is not None and grid.length == length:
                return InputSequence(span, grid.names(), {**grid.places()})
        ids = next(iter(self._ids.values()), None) if name == "tokens" else self._ids.get(name)
        if ids is None or ids.shape[1] != length:
            return InputSequence(span, [f"position {i}" for i in range(length)])
        tokenizer = self._tokenizer
        if isinstance(tokenizer, Mapping):
            tokenizer = tokenizer.get(name)
        read = ids[min(sample, len(ids) - 1)].tolist()
        names = token_names(read, tokenizer)
        return InputSequence(span, names, {**special_known(read, tokenizer), **texts_known(names)})


def _grid(model: nn.Module, inputs: Inputs) -> Grid | None:
    """Return the grid of an image's patches; None: the model has no patch size."""
    embedding: Any = getattr(model, "patch_embed", None) or getattr(model, "pos_embed", None)
    size = getattr(embedding, "patch_size", None)
    images = next((t for t in _tensors(inputs).values() if t.ndim == 4), None)
    if size is None or images is None:
        return None
    high, wide = (size, size) if isinstance(size, int) else size
    rows, columns = images.shape[-2] // high, images.shape[-1] // wide
    if not rows or not columns:
        return None
    before = getattr(model, "num_prefix_tokens", 0)
    parameters = {name.rpartition(".")[2] for name, _ in model.named_parameters()}
    return Grid(
        rows,
        columns,
        before if isinstance(before, int) else 0,
        distilled="dist_token" in parameters,
        classed="cls_token" in parameters or "reg_token" not in parameters,
    )
