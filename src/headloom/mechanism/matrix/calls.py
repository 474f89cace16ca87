"""The attention calls behind an AttentionMatrix: the call, its transpose, and S + S^T.

A call here has no values of its own and no batch: it is what makes the scores. Sinks are no part
of it, since they change no score; a matrix knows them as a log-sum-exp.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headloom.errors import ShapeError
from headloom.mechanism.backends.torch_blocks import block_scores
from headloom.mechanism.call import AttentionCall, check_tensors, checked_call
from headloom.mechanism.dispatch import Backend
from headloom.mechanism.function import attend
from headloom.mechanism.graph import AttentionGraph, Top
from headloom.mechanism.mask import Mask
from headloom.mechanism.masks import Window
from headloom.mechanism.modes import in_own_types
from headloom.mechanism.parts import with_float_tensors, with_tensors
from headloom.mechanism.relative import ByDistance, Relative
from headloom.mechanism.scores import Dot, ScaledDot, Score
from headloom.mechanism.shapes import describe, repeat_kv_heads

__all__ = ["COLUMNS", "MatrixCall", "matrix_call"]

#: Columns of values that one call takes; more are several.
COLUMNS = 512


@dataclass(frozen=True, eq=False)
class MatrixCall:
    """Queries (heads, queries, depth), keys (kv_heads, keys, depth), and the rules of their scores.

    bias: broadcastable to (heads, queries, keys), with three dimensions.
    score: `Dot()` where it is a product.
    """

    queries: Tensor
    keys: Tensor
    mask: Mask | None
    bias: Tensor | None
    relative: Relative | None
    scale: float
    softcap: float | None
    backend: Backend | None
    score: Score = Dot()  # noqa: RUF009 - it has no state

    @property
    def shape(self) -> tuple[int, int, int]:
        """(heads, queries, keys)."""
        return self.queries.shape[0], self.queries.shape[1], self.keys.shape[1]

    @property
    def by_cells(self) -> bool:
        """Whether scores are no products, or depend on positions by more than the distance."""
        positions = self.relative is not None and not self.relative.only_bias
        return positions or not self.of_products

    @property
    def of_products(self) -> bool:
        """Whether a score is a product of query and key, which may be exchanged and added."""
        return type(self.score) is Dot

    def repeated_keys(self) -> Tensor:
        """The keys with a head for each of the queries'."""
        return repeat_kv_heads(self.keys[None], self.shape[0])[0]

    def no_values(self, length: int) -> Tensor:
        """Values without columns, for calls that are asked for their rows alone."""
        return self.queries.new_empty(length, 0)

    def attend(self, values: Tensor, keep: Top) -> tuple[Tensor, AttentionGraph]:
        """Output and graph for values (keys, columns), or (heads, keys, columns)."""
        if values.shape[-1] > COLUMNS:
            parts = [self.attend(some, keep) for some in torch.split(values, COLUMNS, -1)]
            return torch.cat([output for output, _ in parts], -1), parts[0][1]
        # Where values come by head, so must the keys.
        keys = self.repeated_keys() if values.ndim == 3 else self.keys
        return attend(
            self.queries,
            keys,
            values.expand(keys.shape[0], -1, -1),
            mask=self.mask,
            score=None if self.of_products else self.score,
            bias=self.bias,
            relative=self.relative,
            scale=self.scale,
            softcap=self.softcap,
            keep=keep,
            backend=self.backend,
        )

    def rows(self, keep: Top) -> AttentionGraph:
        """The graph alone."""
        return self.attend(self.no_values(self.shape[2]), keep)[1]

    def doubled(self) -> MatrixCall | None:
        """The call whose scores are twice as high; None: positions add what cannot be doubled."""
        by_distance = self._by_distance()
        if self.relative is not None and by_distance is None and self.relative.tables() is None:
            return None
        return replace(
            self,
            scale=2 * self.scale,
            softcap=None if self.softcap is None else 2 * self.softcap,
            bias=None if self.bias is None else 2 * self.bias,
            relative=self.relative
            if by_distance is None
            else replace(by_distance, values=2 * by_distance.values),
        )

    def transposed(self, row_bias: Tensor) -> MatrixCall:
        """Queries and keys exchanged, a number for each query added: (heads, 1, queries).

        For positions that are a bias by distance, or none.
        """
        _, queries, keys = self.shape
        by_distance = self._by_distance()
        return replace(
            self,
            queries=self.repeated_keys(),
            keys=self.queries,
            mask=None if self.mask is None else self.mask.transposed(queries, keys),
            bias=row_bias if self.bias is None else row_bias + self.bias.transpose(1, 2),
            relative=None if by_distance is None else by_distance.transposed(),
        )

    def plus_transpose(self, row_bias: Tensor) -> MatrixCall:
        """The call whose scores are s_ij + s_ji, a number for each j added.

        Of a sequence that looks at itself, without a cap; positions as for `transposed`.
        """
        _, queries, keys = self.shape
        repeated = self.repeated_keys()
        mask, bias, relative = self.mask, row_bias, self._by_distance()
        if mask is not None:
            mask = mask & mask.transposed(queries, keys)
        if relative is not None:
            relative = replace(relative, values=relative.values + relative.transposed().values)
        if self.bias is not None:
            bias = bias + self.bias + self.bias.transpose(1, 2)
        return replace(
            self,
            queries=torch.cat((self.queries, repeated), -1),
            keys=torch.cat((repeated, self.queries), -1),
            mask=mask,
            bias=bias,
            relative=relative,
        )

    def head(self, h: int) -> MatrixCall:
        """The call of one head alone."""
        heads = self.shape[0]
        group = heads // self.keys.shape[0]
        bias, relative = self.bias, self.relative
        if bias is not None and bias.shape[0] > 1:
            bias = bias[h : h + 1]
        return replace(
            self,
            queries=self.queries[h : h + 1],
            keys=self.keys[h // group : h // group + 1],
            mask=None if self.mask is None else self.mask.of_head(h),
            bias=bias,
            relative=None if relative is None else relative.of_head(h, heads),
            score=self.score.of_head(h),
        )

    def some_rows(self, start: int, stop: int) -> MatrixCall | None:
        """The call of some queries alone.

        None where they cannot be cut out: a bias, relative positions, a score that is no product,
        or a mask that is not a window.
        """
        mask = self.mask
        if self.bias is not None or self.relative is not None or not self.of_products:
            return None
        if mask is not None:
            if not isinstance(mask, Window):
                return None
            mask = replace(mask, offset=mask.offset + start)
        return replace(self, queries=self.queries[:, start:stop], mask=mask)

    def largest_score(self) -> float:
        """The largest magnitude of a score: of products ``scale |q| |k|`` at most."""
        heads, queries, keys = self.shape
        if self.of_products:
            norms = self.queries.norm(dim=-1).max() * self.keys.norm(dim=-1).max()
            return abs(self.scale) * float(norms)
        size = max(1, 2**24 // max(1, heads * keys))
        largest = 0.0
        for start in range(0, queries, size):
            scores = self.scores(range(start, min(start + size, queries)), range(keys))
            finite = scores[scores.isfinite()]
            largest = max(largest, float(finite.abs().max()) if len(finite) else 0.0)
        return largest

    @in_own_types
    def scores(self, rows: range, columns: range) -> Tensor:
        """The scores of some rows and columns, (heads, rows, columns), -inf where hidden."""
        inside = slice(columns.start, columns.stop)
        # Key 0 of the tile is key columns.start of the matrix.
        relative = None if self.relative is None else self.relative.moved(-columns.start)
        bias = self.bias
        if bias is not None:
            bias = bias[None] if bias.shape[2] == 1 else bias[None, :, :, inside]
        queries, keys = self.queries[None], self.repeated_keys()[None, :, inside]
        scores = block_scores(
            AttentionCall(
                queries, keys, keys, self.score, self.scale, None, relative, bias, self.softcap
            ),
            queries[:, :, rows.start : rows.stop],
            keys,
            rows,
        )[0]
        if self.mask is None:
            return scores
        allowed = self.mask.cells(rows, self.shape[2], scores.device)[0]
        allowed = allowed if allowed.shape[2] == 1 else allowed[..., inside]
        return scores.masked_fill(~allowed, -torch.inf)

    def _by_distance(self) -> ByDistance | None:
        """The relative bias by distance; None: there is none, or the positions are another kind."""
        _, queries, keys = self.shape
        return None if self.relative is None else self.relative.by_distance(queries, keys)


def matrix_call(
    queries: Tensor,
    keys: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    score: Score | None = None,
    bias: Tensor | None = None,
    relative: Relative | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    backend: Backend | None = None,
) -> MatrixCall:
    """The arguments of an AttentionMatrix, checked; half precision in float32."""
    name = "AttentionMatrix"
    check_tensors(name, queries, keys, keys)
    for which, tensor in (("queries", queries), ("keys", keys)):
        if tensor.ndim != 3 and not (tensor.ndim == 4 and len(tensor) == 1):
            raise ShapeError(
                f"{name}: {which} are {describe(tensor)}; expected (heads, positions, depth). "
                f"Take one sequence of a batch at a time: {which}[0]."
            )
    queries, keys = (tensor[0] if tensor.ndim == 4 else tensor for tensor in (queries, keys))
    if isinstance(relative, Relative):
        relative = relative.in_scores()
    checked = checked_call(
        name, queries, keys, keys[..., :0], mask=mask, score=score, relative=relative, bias=bias,
        scale=scale, softcap=softcap, sinks=sinks,
    )  # fmt: skip
    products = type(checked.score) in (Dot, ScaledDot)
    half = queries.dtype in (torch.float16, torch.bfloat16)
    dtype = torch.float32 if half else queries.dtype
    held = Dot() if products else with_tensors(checked.score, Tensor.detach)
    return MatrixCall(
        queries.detach().to(dtype),
        keys.detach().to(dtype),
        checked.mask,
        None if checked.bias is None else checked.bias.detach()[0].to(dtype),
        with_float_tensors(relative) if half else relative,
        checked.scale,
        checked.softcap,
        backend,
        with_float_tensors(held) if half else held,
    )
