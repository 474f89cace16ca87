"""Multi-head attention: learned W_Q, W_K, W_V, W_O around the attention function.

    head_i = attention(X W_Q_i, Y W_K_i, Y W_V_i)
    output = Concat(head_1, ..., head_h) W_O

Source: Vaswani et al. 2017, section 3.2.2.
"""

from __future__ import annotations

import math
from typing import Literal, Never, get_args

import torch
from torch import Tensor, nn

from headloom.errors import InputError, ShapeError, no_keyword
from headloom.mechanism.attention_layer import (
    AttentionLayer,
    LayerKind,
    LinearMaps,
    PositionSizes,
    RelativeKind,
    WithConstants,
    linear_maps,
)
from headloom.mechanism.function import attend
from headloom.mechanism.key_value_cache import KeyValueCache
from headloom.mechanism.masks import MaskLike, ends_before, read_mask
from headloom.mechanism.positions import ALiBi, Buckets, Relative, Shaw, alibi_slopes, check_buckets
from headloom.mechanism.rotary import checked_scaling, rotary
from headloom.mechanism.shapes import chosen, describe, finite_number, in_words, whole_number

WeightsKind = Literal["learned", "uniform"]

#: Names of tensors in torch.nn.MultiheadAttention, and ours.
_NAMES = {f"{x}_proj_weight": f"w_{x}.weight" for x in "qkv"}
_NAMES |= {f"out_proj.{kind}": f"w_o.{kind}" for kind in ("weight", "bias")}
#: Keywords of a call, and their names in torch.nn.MultiheadAttention.
_KEYWORDS = ("mask", "is_causal", "need_weights", "average_attn_weights", "cache")
_ELSEWHERE = {
    "attn_mask": "mask=~attn_mask, where True = the query sees the key",
    "key_padding_mask": "mask=headloom.padding(~key_padding_mask)",
}


class MultiHeadAttention(AttentionLayer, WithConstants):
    """Multi-head attention for self-, cross- and grouped-query attention.

    Args:
        width: width of the input and of the output.
        heads: number of query heads.
        embed_dim, num_heads: torch's names of width and heads; batch_first: must be True.
        kv_heads: number of key/value heads; divides heads. None: as many as heads.
        depth: depth of a head's queries and keys. None: width / heads.
        bias: whether the four projections have a bias.
        dropout: probability that a weight is set to 0 in training.
        relative: relative positions: "none", "shaw" (for keys and values), "shaw-keys" (for keys
            only), "alibi", "buckets" (T5's) or "rotary".
        positions: sizes of the relative positions.
        source_width: width of the input of keys and values. None: width.
        kind: role of the layer in its model: "encoder", "decoder" or "cross".
        softcap: bounds the scores, softcap tanh(s / softcap), before the mask; None: no bound.
        sinks: whether each head has a learned sink: a logit that takes a part of every row's mass
            and has no value (`headloom.attention`).
        query_key_norm: whether the queries and keys of each head go through RMSNorm, with learned
            factors for the depth, before rotary positions.
        weights: "learned"; or "uniform", a baseline: scores are multiplied by 0, so that each query
            gives equal weights to its visible keys, and W_Q and W_K have no effect.

    ``load_state_dict`` takes the state dict of a `torch.nn.MultiheadAttention` too.

    W_Q of head i is rows ``i * depth`` to ``(i + 1) * depth`` of ``w_q.weight`` (torch's linear
    layers store the transpose: projected = x W^T).

    With all relative positions, products are divided by sqrt(depth) before a bias is added. T5 does
    not divide: with its matrices, multiply W_Q by sqrt(depth) and keep the table. T5's layers share
    one table; here each layer has its own `bucket_table`, (buckets, heads).

    Source: Vaswani et al. 2017, section 3.2.2; Ainslie et al. 2023 (grouped queries); Gemma Team
    2024 (soft caps); OpenAI 2025, gpt-oss (learned sinks); Dehghani et al. 2023 (norms of queries
    and keys).
    """

    w_q: nn.Linear
    w_k: nn.Linear
    w_v: nn.Linear
    w_o: nn.Linear
    #: Function of the four projections; models may set their own kernels.
    linear_maps: LinearMaps
    #: Slopes of ALiBi, if the layer has it.
    slopes: Tensor

    def __init__(
        self,
        width: int | None = None,
        heads: int | None = None,
        *,
        embed_dim: int | None = None,
        num_heads: int | None = None,
        batch_first: bool = True,
        kv_heads: int | None = None,
        depth: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        relative: RelativeKind = "none",
        positions: PositionSizes = PositionSizes(),  # noqa: B008 - frozen
        source_width: int | None = None,
        kind: LayerKind = "encoder",
        softcap: float | None = None,
        sinks: bool = False,
        query_key_norm: bool = False,
        weights: WeightsKind = "learned",
    ) -> None:
        name = "MultiHeadAttention"
        width, heads = embed_dim if width is None else width, num_heads if heads is None else heads
        if not batch_first:
            raise InputError(
                f"{name}: batch_first={batch_first}; expected True: inputs and outputs are (batch, "
                "positions, width). Transpose others, as in x.transpose(0, 1)."
            )
        width, heads = whole_number(name, "width", width, 1), whole_number(name, "heads", heads, 1)
        kv_heads = heads if kv_heads is None else whole_number(name, "kv_heads", kv_heads, 1)
        if heads % kv_heads:
            raise InputError(
                f"{name}: {heads} query heads, {kv_heads} key/value heads; the second number must "
                "divide the first."
            )
        if depth is None and width % heads:
            raise InputError(
                f"{name}: width {width} does not split into {heads} heads. Choose a multiple, or "
                "give depth=."
            )
        depth = width // heads if depth is None else whole_number(name, "depth", depth, 1)
        source_width = width if source_width is None else source_width
        chosen(name, "kind", kind, get_args(LayerKind))
        chosen(name, "relative", relative, get_args(RelativeKind))
        has_rules = relative != "none" or softcap is not None or sinks or query_key_norm
        if weights not in ("learned", "uniform") or (weights == "uniform" and has_rules):
            raise InputError(
                f"{name}: weights={in_words(weights)}, relative={in_words(relative)}; expected "
                '"learned", or "uniform" without relative positions, a softcap, sinks or norms, '
                "which act on the weights."
            )
        super().__init__(heads, kv_heads, kind, relative)
        self.width, self.source_width, self.depth = width, source_width, depth
        self.dropout = finite_number(name, "dropout", dropout, 0, 1)
        checked_scaling(name, positions.rotary_scaling, positions.rotary_base)
        self.rotary_base, self.rotary_scaling = positions.rotary_base, positions.rotary_scaling
        self.max_distance = positions.max_distance
        self.scale = 0.0 if weights == "uniform" else None
        self.w_q = nn.Linear(width, heads * self.depth, bias)
        self.w_k = nn.Linear(source_width, kv_heads * self.depth, bias)
        self.w_v = nn.Linear(source_width, kv_heads * self.depth, bias)
        self.w_o = nn.Linear(heads * self.depth, width, bias)
        self.value_table: nn.Parameter | None = None
        if relative in ("shaw", "shaw-keys"):
            self.key_table = nn.Parameter(torch.empty(2 * positions.clip + 1, self.depth))
        if relative == "shaw":
            self.value_table = nn.Parameter(torch.empty(2 * positions.clip + 1, self.depth))
        if relative == "buckets":
            buckets, both = positions.buckets, kind != "decoder"
            check_buckets(name, buckets, self.max_distance, bidirectional=both)
            self.bucket_table = nn.Parameter(torch.empty(buckets, heads))
        self.softcap = softcap
        self.linear_maps = linear_maps
        self.sinks = nn.Parameter(torch.empty(heads)) if sinks else None
        self.query_norm = nn.RMSNorm(depth, eps=1e-6) if query_key_norm else None
        self.key_norm = nn.RMSNorm(depth, eps=1e-6) if query_key_norm else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise W_Q, W_K, W_V, W_O (Glorot and Bengio 2010), the biases to 0."""
        for linear in (self.w_q, self.w_k, self.w_v, self.w_o):
            nn.init.xavier_uniform_(linear.weight)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)
        for norm in (self.query_norm, self.key_norm):
            if norm is not None:
                norm.reset_parameters()
        if self.sinks is not None:
            nn.init.zeros_(self.sinks)
        self.hold_constants()  # not random, but the memory may be new
        for table in (getattr(self, "key_table", None), self.value_table):
            if table is not None:
                nn.init.normal_(table, std=1 / math.sqrt(self.depth))
        if self.relative == "buckets":
            nn.init.normal_(self.bucket_table, std=1 / math.sqrt(self.width))

    def constants(self) -> dict[str, Tensor]:
        return {"slopes": alibi_slopes(self.heads)} if self.relative == "alibi" else {}

    def extra_repr(self) -> str:
        """Return the arguments that print(model) shows."""
        return f"kind={self.kind}, heads={self.heads}, depth={self.depth}, relative={self.relative}"

    def forward(
        self,
        queries_from: Tensor,
        keys_from: Tensor | None = None,
        values_from: Tensor | None = None,
        *,
        mask: MaskLike = None,
        is_causal: bool = False,
        need_weights: bool = False,
        average_attn_weights: bool = True,
        cache: KeyValueCache | None = None,
        **_unknown: Never,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Project, attend, project back.

        Args:
            queries_from: (batch, queries, width).
            keys_from: (batch, keys, source_width); None: self-attention.
            values_from: (batch, keys, source_width); None: the same as keys_from.
            mask: as in `headloom.attention`. With a cache the first query is at ``cache.length``:
                use ``causal(offset=cache.length)``; "causal" and is_causal do so themselves.
            is_causal: as in `headloom.attention`.
            need_weights: whether to return the weights before dropout too.
            average_attn_weights: whether these are averaged over heads.
            cache: keys and values of earlier calls. Self-attention appends the new ones; otherwise
                keys_from is not read if the cache is filled.

        Returns: (batch, queries, width); with need_weights also (batch, queries, keys), or (batch,
            heads, queries, keys).
        Raises: InputError, ShapeError: inputs that do not fit, or a window that ends before the
            positions of the queries.
        """
        if _unknown:
            raise no_keyword("MultiHeadAttention", next(iter(_unknown)), _KEYWORDS, _ELSEWHERE)
        self_attention = keys_from is None
        self._check("queries_from", queries_from, self.width)
        keys_from = queries_from if keys_from is None else keys_from
        values_from = keys_from if values_from is None else values_from
        # The position of the first query: new positions follow those in the cache.
        offset = cache.length if cache is not None and self_attention else 0
        mask = read_mask(mask, is_causal, offset)
        # (A window that ends just before each query may be intended.)
        known = type(offset) is int  # not in a program that is exported
        if known and offset > 1 and mask is not None and ends_before(mask, offset - 1):
            raise InputError(
                f"MultiHeadAttention: the cache holds {offset} positions, and the mask hides the "
                "new ones from themselves. Give the position of the first query, as in "
                "causal(offset=cache.length)."
            )
        filled = None if cache is None or self_attention else cache
        if filled is not None and filled.keys is not None and filled.values is not None:
            (projected,) = self.linear_maps(queries_from, [self.w_q])
            queries = self._split(projected, self.heads, self.query_norm)
            keys, values = filled.keys, filled.values
        else:
            queries, keys, values = self._project(queries_from, keys_from, values_from)
            keys = self.turned(keys, offset)
            if cache is not None:
                # An observer may keep the tensors.
                keys, values = cache.append(keys, values, kept=self.observer is not None)
        queries, relative = self.turned(queries, offset), self.relative_positions(offset)
        output = self.attend(
            queries, keys, values, mask=mask, scale=self.scale, relative=relative,
            softcap=self.softcap, sinks=self.sinks, dropout=self.dropout if self.training else 0.0,
        )  # fmt: skip
        (joined,) = self.linear_maps(output.transpose(1, 2).flatten(-2), [self.w_o])
        if not need_weights:
            return joined
        _, weights = attend(
            queries, keys, values, mask=mask, scale=self.scale, relative=relative,
            softcap=self.softcap, sinks=self.sinks, keep="all",
        )  # fmt: skip
        return joined, weights.mean(1) if average_attn_weights else weights

    def turned(self, vectors: Tensor, offset: int = 0) -> Tensor:
        """Rotate queries or keys by `headloom.rotary`; without rotary positions return them as is.

        vectors: (..., positions, depth), the first at position ``offset``.
        """
        if self.relative != "rotary":
            return vectors
        return rotary(vectors, offset, self.rotary_base, scaling=self.rotary_scaling)

    def _check(self, name: str, tensor: Tensor, width: int) -> None:
        """Raise a ShapeError unless an input is (batch, positions, width)."""
        if tensor.ndim != 3 or tensor.shape[2] != width:
            raise ShapeError(
                f"MultiHeadAttention: {name} is {describe(tensor)}; expected (batch, positions, "
                f"{width})."
            )

    def _project(
        self, queries_from: Tensor, keys_from: Tensor, values_from: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values by head; a shared input is projected in one step."""
        maps = [self.w_q, self.w_k, self.w_v]
        if queries_from is keys_from is values_from:
            queries, keys, values = self.linear_maps(queries_from, maps)
        else:
            self._check("keys_from", keys_from, self.source_width)
            (queries,) = self.linear_maps(queries_from, maps[:1])
            if keys_from is values_from:
                keys, values = self.linear_maps(keys_from, maps[1:])
            else:
                self._check("values_from", values_from, self.source_width)
                (keys,) = self.linear_maps(keys_from, maps[1:2])
                (values,) = self.linear_maps(values_from, maps[2:])
        return (
            self._split(queries, self.heads, self.query_norm),
            self._split(keys, self.kv_heads, self.key_norm),
            self._split(values, self.kv_heads),
        )

    def relative_positions(self, offset: int = 0) -> Relative | None:
        """Return the `relative` argument of `headloom.attention`; None: no such positions.

        offset: the position of the first query.
        """
        if self.relative in ("shaw", "shaw-keys"):
            return Shaw(self.key_table, self.value_table, offset)
        if self.relative == "alibi":
            return ALiBi(self.slopes, offset)
        if self.relative == "buckets":
            bidirectional = self.kind != "decoder"
            return Buckets(self.bucket_table, bidirectional, self.max_distance, offset)
        return None

    def _split(self, projected: Tensor, heads: int, norm: nn.RMSNorm | None = None) -> Tensor:
        """Split (batch, positions, heads * depth) into (batch, heads, positions, depth)."""
        batch, positions, _ = projected.shape
        by_head = projected.view(batch, positions, heads, self.depth).transpose(1, 2)
        return by_head if norm is None else norm(by_head)

    def matrices(self, gradients: bool = False) -> dict[str, Tensor]:

        def matrix_of(linear: nn.Linear) -> Tensor:
            matrix = linear.weight.grad if gradients else linear.weight
            return torch.zeros_like(linear.weight) if matrix is None else matrix

        def by_head(linear: nn.Linear, heads: int) -> Tensor:
            matrices = matrix_of(linear).view(heads, self.depth, -1).transpose(1, 2)
            return matrices.repeat_interleave(self.heads // heads, 0)

        return {
            "W_Q": by_head(self.w_q, self.heads),
            "W_K": by_head(self.w_k, self.kv_heads),
            "W_V": by_head(self.w_v, self.kv_heads),
            "W_O": matrix_of(self.w_o).view(-1, self.heads, self.depth).permute(1, 2, 0),
        }

    def _load_from_state_dict(
        self, state_dict: dict[str, Tensor], prefix: str, *others: object
    ) -> None:
        """Load by our names or by those of torch.nn.MultiheadAttention."""
        for kind in ("weight", "bias"):
            if prefix + f"in_proj_{kind}" in state_dict:
                parts = state_dict.pop(prefix + f"in_proj_{kind}").chunk(3)
                state_dict |= {
                    f"{prefix}w_{x}.{kind}": p for x, p in zip("qkv", parts, strict=True)
                }
        for theirs, ours in _NAMES.items():
            if prefix + theirs in state_dict:
                state_dict[prefix + ours] = state_dict.pop(prefix + theirs)
        super()._load_from_state_dict(state_dict, prefix, *others)

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> MultiHeadAttention:
        """Make a layer with the weights of a torch.nn.MultiheadAttention.

        The outputs are equal, and always batch first: (batch, positions, width). For a module with
        batch_first=False, torch's default, transpose inputs and outputs, as below.

        >>> theirs = nn.MultiheadAttention(8, 2)
        >>> ours = MultiHeadAttention.from_torch(theirs)
        >>> x = torch.randn(5, 3, 8)
        >>> output = ours(x.transpose(0, 1)).transpose(0, 1)
        >>> torch.allclose(output, theirs(x, x, x)[0], atol=1e-5)
        True

        Raises: InputError: a module that adds keys, or with different widths of keys and values.
        """
        if module.bias_k is not None or module.add_zero_attn or module.kdim != module.vdim:
            raise InputError(
                "from_torch: headloom's layer has no learned or zero key (add_bias_kv, "
                "add_zero_attn), and keys and values have the same input width (kdim, vdim)."
            )
        layer = cls(
            module.embed_dim, module.num_heads, bias=module.in_proj_bias is not None,
            dropout=module.dropout, source_width=module.kdim,
        ).to(module.out_proj.weight)  # fmt: skip
        layer.load_state_dict(module.state_dict())
        return layer.train(module.training)
