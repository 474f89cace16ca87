"""Attention calls behind an AttentionMatrix, and cells recomputed from them.

    P_ij = e^(s_ij - lse_i)

A call here has no values and no batch: it defines the scores. It has no sinks, since they change
no score; a matrix includes them in its log-sum-exp.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headloom.errors import InputError, ShapeError
from headloom.mechanism.backends.compiled import keep_dtypes
from headloom.mechanism.backends.torch_blocks import block_scores, in_float
from headloom.mechanism.call import AttentionCall, as_tensors, checked_call
from headloom.mechanism.function import Backend, run
from headloom.mechanism.graph import AttentionGraph, Top
from headloom.mechanism.mask import KeyRanges
from headloom.mechanism.masks import Ranges, Window, as_mask
from headloom.mechanism.parts import with_tensors
from headloom.mechanism.positions import ByDistance, Relative
from headloom.mechanism.scores import Dot, ScaledDot
from headloom.mechanism.shapes import describe, in_words, repeat_kv_heads

#: Columns of values in one call; more are split.
COLUMNS = 512


@dataclass(eq=False, slots=True)
class MatrixCall(AttentionCall):
    """Call of one sequence, as a batch of one; its score is `Dot` where scores are dot products.

    Its values have no columns: `attend` takes them.
    """

    backend: Backend | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """(heads, queries, keys)."""
        return self.queries.shape[1], self.queries.shape[2], self.keys.shape[2]

    @property
    def by_cells(self) -> bool:
        """Whether scores are no dot products, or depend on positions by more than the distance."""
        positions = self.relative is not None and not self.relative.only_bias
        return positions or not self.of_products

    @property
    def of_products(self) -> bool:
        """Whether scores are dot products, so that queries and keys may be exchanged and added."""
        return type(self.score) is Dot

    def repeated_keys(self) -> Tensor:
        """Return the keys, repeated so that each query head has its key head."""
        return repeat_kv_heads(self.keys, self.heads)

    def attend(self, values: Tensor, keep: Top) -> tuple[Tensor, AttentionGraph]:
        """Return output and graph for values (keys, columns), or (heads, keys, columns)."""
        if values.shape[-1] > COLUMNS:
            parts = [self.attend(part, keep) for part in torch.split(values, COLUMNS, -1)]
            return torch.cat([output for output, _ in parts], -1), parts[0][1]
        # Values by head need keys by head.
        keys = self.repeated_keys() if values.ndim == 3 else self.keys
        values = values.expand(1, keys.shape[1], -1, -1)
        call = replace(self, keys=keys, values=values, keep=keep)
        output, graph = run("AttentionMatrix", call, self.backend)
        assert isinstance(graph, AttentionGraph)  # by keep
        return output[0], graph[0]

    def rows(self, keep: Top) -> AttentionGraph:
        """Return the graph without an output."""
        return self.attend(self.queries.new_empty(self.shape[2], 0), keep)[1]

    def doubled(self) -> MatrixCall | None:
        """Return the call with doubled scores; None: its relative positions cannot be doubled."""
        by_distance, relative = self._by_distance(), self.relative
        if by_distance is not None:
            relative = replace(by_distance, values=2 * by_distance.values)
        elif relative is not None and relative.tables() is None:
            return None
        return replace(
            self, scale=2 * self.scale, softcap=None if self.softcap is None else 2 * self.softcap,
            bias=None if self.bias is None else 2 * self.bias, relative=relative,
        )  # fmt: skip

    def transposed(self, row_bias: Tensor) -> MatrixCall:
        """Exchange queries and keys, and add a number for each query, (1, heads, 1, queries)."""
        _, queries, keys = self.shape
        by_distance = self._by_distance()
        return replace(
            self,
            queries=self.repeated_keys(),
            keys=self.queries,
            mask=None if self.mask is None else self.mask.transposed(queries, keys),
            bias=row_bias if self.bias is None else row_bias + self.bias.transpose(2, 3),
            relative=None if by_distance is None else by_distance.transposed(),
        )

    def plus_transpose(self, row_bias: Tensor) -> MatrixCall:
        """Return the call with scores s_ij + s_ji + row_bias_j; without a softcap."""
        _, queries, keys = self.shape
        repeated = self.repeated_keys()
        mask, bias, relative = self.mask, row_bias, self._by_distance()
        if mask is not None:
            mask = mask & mask.transposed(queries, keys)
        if relative is not None:
            relative = replace(relative, values=relative.values + relative.transposed().values)
        if self.bias is not None:
            bias = bias + self.bias + self.bias.transpose(2, 3)
        return replace(
            self, queries=torch.cat((self.queries, repeated), -1),
            keys=torch.cat((repeated, self.queries), -1), mask=mask, bias=bias, relative=relative,
        )  # fmt: skip

    def of_input(self, b: int) -> MatrixCall:
        """Return the call of one input of a batch."""
        mask, bias = self.mask, self.bias
        if mask is not None:
            bounds = mask.bounds(*self.shape[1:])
            if bounds.by_sequence is not None or bounds.rest is not None:  # inputs may differ
                ranges = mask.ranges(*self.shape[1:], b)
                cells = mask.dense(*self.shape[1:]) if ranges is None else torch.zeros(0)
                mask = as_mask(cells[min(b, len(cells) - 1)]) if ranges is None else Ranges(*ranges)
        return replace(
            self, queries=self.queries[b : b + 1], keys=self.keys[b : b + 1], mask=mask,
            bias=bias if bias is None or len(bias) == 1 else bias[b : b + 1],
        )  # fmt: skip

    def head(self, h: int) -> MatrixCall:
        """Return the call of one head."""
        heads, bias, relative = self.heads, self.bias, self.relative
        group = h // (heads // self.keys.shape[1])
        return replace(
            self,
            queries=self.queries[:, h : h + 1],
            keys=self.keys[:, group : group + 1],
            mask=None if self.mask is None else self.mask.of_head(h),
            bias=bias if bias is None or bias.shape[1] == 1 else bias[:, h : h + 1],
            relative=None if relative is None else relative.of_head(h, heads),
            score=self.score.of_head(h),
        )

    def some_rows(self, start: int, stop: int) -> MatrixCall | None:
        """Return the call of a range of queries; None: it has more than products and a window."""
        mask = self.mask
        if self.bias is not None or self.relative is not None or not self.of_products:
            return None
        if mask is not None:
            if not isinstance(mask, Window):
                return None
            mask = replace(mask, offset=mask.offset + start)
        return replace(self, queries=self.queries[:, :, start:stop], mask=mask)

    @keep_dtypes
    def scores(self, rows: range, columns: range) -> Tensor:
        """Return the scores of some rows and columns, (heads, rows, columns), -inf where masked."""
        inside = slice(columns.start, columns.stop)
        # Key 0 of the tile is key columns.start of the matrix.
        relative = None if self.relative is None else self.relative.moved(-columns.start)
        bias, keys = self.bias, self.repeated_keys()[:, :, inside]
        if bias is not None and bias.shape[3] != 1:
            bias = bias[..., inside]
        call = replace(self, keys=keys, mask=None, relative=relative, bias=bias)
        scores = block_scores(call, self.queries[:, :, rows.start : rows.stop], keys, rows)[0]
        if self.mask is None:
            return scores
        allowed = self.mask.cells(rows, self.shape[2], scores.device)[0]
        allowed = allowed if allowed.shape[2] == 1 else allowed[..., inside]
        return scores.masked_fill(~allowed, -torch.inf)

    def _by_distance(self) -> ByDistance | None:
        """Return the relative positions as a bias by distance; None: none, or of another kind."""
        _, queries, keys = self.shape
        return None if self.relative is None else self.relative.by_distance(queries, keys)


def matrix_call(
    queries: Tensor, keys: Tensor, backend: Backend | None = None, **rules: Any
) -> MatrixCall:
    """Check the arguments of an AttentionMatrix; convert half precision to float32."""
    name = "AttentionMatrix"
    queries, keys, _ = as_tensors(name, queries, keys, keys)
    for part, tensor in (("queries", queries), ("keys", keys)):
        if tensor.ndim not in (3, 4):
            raise ShapeError(
                f"{name}: {part} are {describe(tensor)}; expected (heads, positions, depth), or "
                "(batch, heads, positions, depth)."
            )
    if isinstance(rules.get("relative"), Relative):
        rules["relative"] = rules["relative"].in_scores()
    call = in_float(checked_call(name, queries, keys, keys[..., :0], **rules))
    products = type(call.score) in (Dot, ScaledDot)
    return MatrixCall(
        call.queries.detach(), call.keys.detach(), call.values.detach(),
        Dot() if products else with_tensors(call.score, Tensor.detach), call.scale, call.mask,
        call.relative, None if call.bias is None else call.bias.detach(), call.softcap,
        backend=backend,
    )  # fmt: skip


#: Cells of a block of rows: 64 MiB of float32.
BLOCK_CELLS = 2**24
#: Rows and columns summarised at a time, so that their cells, 1 MiB, stay in the cache.
_ROWS, _COLUMNS = 128, 2048


def cells(call: MatrixCall, lse: Tensor, rows: range, columns: range) -> Tensor:
    """Return the weights of some rows and columns, (heads, rows, columns)."""
    scores = call.scores(rows, columns)
    lse = lse[:, rows.start : rows.stop, None].to(scores.dtype)
    return (scores - lse.masked_fill(lse == -math.inf, 0)).exp()


def blocks(call: MatrixCall, lse: Tensor) -> Iterator[tuple[range, Tensor]]:
    """Yield the matrix in blocks of rows, each with its range of rows."""
    heads, queries, keys = call.shape
    size = max(1, BLOCK_CELLS // max(1, heads * keys))
    for start in range(0, queries, size):
        rows = range(start, min(start + size, queries))
        yield rows, cells(call, lse, rows, range(keys))


@keep_dtypes
def diagonal(call: MatrixCall, lse: Tensor, offset: int) -> Tensor:
    """Return ``P_{i, i + offset}``, 0 if there is no such key, (heads, queries)."""
    _, queries, keys = call.shape
    weights = call.queries.new_zeros(call.shape[:2])
    size = 256
    for start in range(0, queries, size):
        first = max(start, -offset)
        end = min(start + size, queries, keys - offset)
        if first < end:
            tile = cells(call, lse, range(first, end), range(first + offset, end + offset))
            weights[:, first:end] = tile.diagonal(dim1=1, dim2=2)
    return weights


def tile(call: MatrixCall, lse: Tensor, rows: Sequence[int], columns: Sequence[int]) -> Tensor:
    """Return the weights of any rows and columns, (heads, rows, columns)."""
    span = range(min(columns), max(columns) + 1) if columns else range(0)
    parts = [call.queries.new_zeros(call.shape[0], 0, len(span))]
    start = 0
    for end in range(1, len(rows) + 1):  # consecutive rows together
        if end == len(rows) or rows[end] != rows[end - 1] + 1:
            parts.append(cells(call, lse, range(rows[start], rows[end - 1] + 1), span))
            start = end
    whole = torch.cat(parts[1:] or parts, 1)
    if list(columns) == list(span):
        return whole
    return whole[:, :, [column - span.start for column in columns]]


def places_of(
    index: object, shape: tuple[int, int, int]
) -> tuple[Sequence[int], Sequence[int], Sequence[int], list[int]]:
    """Return ``matrix[index]`` as heads, queries, keys, and which of the three were numbers."""
    parts = index if isinstance(index, tuple) else (index,)
    shown = ", ".join(str(part) if isinstance(part, slice) else in_words(part) for part in parts)
    whole = (*parts, *[slice(None)] * (3 - len(parts)))
    try:
        indices = [_numbers(part, size) for part, size in zip(whole, shape, strict=True)]
        if any(numbers.ndim > 1 for numbers in indices):
            raise ValueError
    except (IndexError, TypeError, ValueError):
        raise InputError(
            f"matrix[{shown}]: no such cells; the shape is {shape}. Write matrix[head, queries, "
            "keys], each a number, a slice or a list of numbers."
        ) from None
    heads, rows, columns = (numbers.reshape(-1).tolist() for numbers in indices)
    return heads, rows, columns, [n for n, numbers in enumerate(indices) if not numbers.ndim]


def _numbers(part: object, size: int) -> np.ndarray:
    """Return the indices that NumPy selects by a number, a list, flags or a slice."""
    numbers = np.arange(size)
    if isinstance(part, slice):
        return numbers[part]
    index = np.asarray(part)
    return np.asarray(numbers[index if index.size else index.astype(int)])


@keep_dtypes
def summaries_of_blocks(
    call: MatrixCall, lse: Tensor, size: int, rows: range, columns: range
) -> tuple[Tensor, Tensor]:
    """Return the largest weight and the sum of each block of some rows and columns of one head.

    Masked blocks are skipped. lse: (1, queries). size: rows and columns of a block.
    Returns: two tensors (blocks of queries, blocks of keys).
    """
    shape = (-(-len(rows) // size), -(-len(columns) // size))
    largest, sums = call.queries.new_zeros(shape), call.queries.new_zeros(shape)
    tall, wide = (max(number // size, 1) * size for number in (_ROWS, _COLUMNS))
    _, queries, keys = call.shape
    bounds = KeyRanges() if call.mask is None else call.mask.bounds(queries, keys)
    ranges = bounds.of_sample(queries, keys, 0) if bounds.rest is None else None
    rules = (call.relative, call.bias, call.softcap)
    for top in range(rows.start, rows.stop, tall):
        part_rows = range(top, min(top + tall, rows.stop))
        first, stop = columns.start, columns.stop
        if ranges is not None:
            visible = ranges[:, top : part_rows.stop]
            visible = visible[:, visible[1] > visible[0]]
            if not visible.numel():
                continue
            first += max(int(visible[0].min()) - first, 0) // size * size  # the start of a block
            stop = min(stop, int(visible[1].max()))
        for left in range(first, stop, wide):
            part_columns = range(left, min(left + wide, stop))
            if ranges is None or not call.of_products or any(rule is not None for rule in rules):
                part = cells(call, lse, part_rows, part_columns)[0]
            else:
                part = _products(call, lse, part_rows, part_columns, ranges)
            index = _blocks_of(part_rows, rows, size), _blocks_of(part_columns, columns, size)
            largest[index], sums[index] = _reduced(part, size)
    return largest, sums


def _blocks_of(part: range, whole: range, size: int) -> slice:
    return slice((part.start - whole.start) // size, -(-(part.stop - whole.start) // size))


def _products(call: MatrixCall, lse: Tensor, rows: range, columns: range, ranges: Tensor) -> Tensor:
    """Return `cells` of one head whose scores are plain dot products, masked by ranges of keys."""
    scaled = call.queries[0, 0, rows.start : rows.stop] * call.scale
    # A row without keys has lse = -inf and weights 0.
    row_lse = lse[0, rows.start : rows.stop]
    minus = (-row_lse).masked_fill(row_lse == -math.inf, -math.inf).to(scaled.dtype)[:, None]
    part = torch.addmm(minus, scaled, call.keys[0, 0, columns.start : columns.stop].T)
    first, end = ranges[:, rows.start : rows.stop, None].to(part.device)
    if int(first.max()) > columns.start or int(end.min()) < columns.stop:
        key = torch.arange(columns.start, columns.stop, device=part.device)
        part.masked_fill_((key < first) | (key >= end), -math.inf)
    return part.exp_()


def _reduced(part: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the largest number and the sum of each size x size block of a matrix of weights."""
    rows, columns = part.shape
    if rows % size or columns % size:
        part = torch.nn.functional.pad(part, (0, -columns % size, 0, -rows % size))
    # Rows first: vectorised over whole rows.
    lines = part.reshape(-(-rows // size), size, -1)
    largest = lines.amax(1).reshape(len(lines), -1, size).amax(2)
    return largest, lines.sum(1).reshape(len(lines), -1, size).sum(2)
