"""Learned matrices of a model's attention layers: W_Q, W_K, W_V, W_O of every head.

    queries = x W_Q,  keys = y W_K,  values = y W_V,  output = sum_h (P_h values_h) W_O_h

One format for headloom's models, a run's history and the common models of Hugging Face, whatever
the names of their projections, separate or in one tensor. Biases, norms and rotary positions are
left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from headloom.errors import InputError
from headloom.mechanism.attention_layer import AttentionLayer
from headloom.mechanism.watching import named_modules
from headloom.tracing.recording.sequences import layer_kind

#: Names of the projections of queries, keys and values in libraries.
_SEPARATE = (
    ("query", "key", "value"),
    ("q_proj", "k_proj", "v_proj"),
    ("q_lin", "k_lin", "v_lin"),
    ("query_proj", "key_proj", "value_proj"),
    ("to_q", "to_k", "to_v"),
    ("q", "k", "v"),
)
#: Fused projections, and whether their queries, keys and values are interleaved by head.
_FUSED = {"c_attn": False, "Wqkv": False, "qkv_proj": False, "query_key_value": True, "qkv": False}
#: Modules with another order in a fused projection: queries, values and keys, in four blocks.
_OTHER_ORDER = ("CodeGenAttention",)
_OUTPUT = ("out_proj", "o_proj", "out_lin", "Wo", "o", "c_proj", "dense", "to_out", "proj")


@dataclass(frozen=True, eq=False)
class LayerMatrices:
    """Matrices of one attention layer.

    name, kind: as in a trace: the layer's path; "encoder", "decoder" or "cross".
    W_Q: (heads, width, depth); W_K, W_V: (kv_heads, source_width, depth), kv_heads divides heads;
    W_O: (heads, value_depth, width), or None if it is unknown.
    """

    name: str
    kind: str
    W_Q: Tensor
    W_K: Tensor
    W_V: Tensor
    W_O: Tensor | None

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return self.W_Q.shape[0]

    def known(self) -> list[tuple[str, Tensor]]:
        """Return the names of the known matrices, and these."""
        named = {"W_Q": self.W_Q, "W_K": self.W_K, "W_V": self.W_V, "W_O": self.W_O}
        return [(name, matrix) for name, matrix in named.items() if matrix is not None]

    def repeated(self) -> LayerMatrices:
        """Return a copy with W_K and W_V repeated for each head."""
        times = self.heads // self.W_K.shape[0]
        keys, values = (matrix.repeat_interleave(times, 0) for matrix in (self.W_K, self.W_V))
        return replace(self, W_K=keys, W_V=values)


def matrices_of(model: nn.Module) -> list[LayerMatrices]:
    """Return the matrices of every attention layer of a model, in its order.

    Args: model: made of headloom's attention layers, or one of Hugging Face: BERT, RoBERTa,
    ModernBERT, DistilBERT, ViT, CLIP, GPT-2, GPT-NeoX, Llama, Qwen, Mistral, Gemma, gpt-oss, BART,
    Marian, T5, Whisper; `torch.nn.MultiheadAttention`; timm, diffusers, x-transformers; and others
    that name their projections as one of these does. Adapters of PEFT are added to what they adapt.

    Raises: InputError: no such layer.

    >>> from headloom.mechanism.multihead import MultiHeadAttention
    >>> (layer,) = matrices_of(MultiHeadAttention(8, 2, kv_heads=1))
    >>> layer.W_Q.shape, layer.W_K.shape, layer.W_O.shape
    (torch.Size([2, 8, 4]), torch.Size([1, 8, 4]), torch.Size([2, 4, 8]))
    """
    layers = list(_layers(model))
    if not layers:
        raise InputError(
            f"projections: {type(model).__name__} has no attention layer whose projections are "
            f"known; looked for {', '.join(names[0] for names in _SEPARATE)}, {', '.join(_FUSED)}."
        )
    return layers


def _layers(model: nn.Module) -> Iterator[LayerMatrices]:
    modules = dict(named_modules(model))
    for path, module in modules.items():
        if isinstance(module, AttentionLayer):
            named = {name: matrix.detach().float() for name, matrix in module.matrices().items()}
            # The heads of a group share W_K and W_V: take the first.
            first = slice(None, None, module.heads // module.kv_heads)
            shared = named["W_K"][first], named["W_V"][first]
            yield LayerMatrices(path, module.kind, named["W_Q"], *shared, named["W_O"])
            continue
        weights = _projections(module)
        if weights is None:
            continue
        queries, keys, values = weights
        depth = _depth(module) or 0
        if not depth or queries.shape[1] % depth:
            depth = queries.shape[1] // (_heads(module) or 1)
        heads = queries.shape[1] // depth
        causal = getattr(module, "is_causal", None) is True
        yield LayerMatrices(
            path, layer_kind(path, module, causal), _split(queries, heads),
            _split(keys, keys.shape[1] // depth), _split(values, keys.shape[1] // depth),
            output_projection(path, modules, heads)[1],
        )  # fmt: skip


def _matrix(module: object) -> Tensor | None:
    """Return the matrix of a projection, (in, out); None: not a projection."""
    if isinstance(module, nn.Sequential | nn.ModuleList) and len(module):
        # A projection and its dropout.
        module = module[0]
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2 or isinstance(module, nn.Embedding):
        return None
    if not weight.is_floating_point():
        # Packed or scaled integers of a quantised model.
        return None
    matrix = weight.detach().float()
    for delta in _adapters(module):
        matrix = matrix + delta
    # GPT-2's Conv1D keeps (in, out), a Linear (out, in).
    kind = type(getattr(module, "base_layer", module)).__name__
    return matrix if kind == "Conv1D" else matrix.T


def _adapters(module: Any) -> list[Tensor]:
    """Return the changes of a weight by active, unmerged PEFT adapters."""
    change = getattr(module, "get_delta_weight", None)
    if change is None or module.merged or module.disable_adapters:
        return []
    known = getattr(module, "lora_A", {})
    return [change(name).detach().float() for name in module.active_adapters if name in known]


def _projections(module: nn.Module) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return W_Q, W_K, W_V of an attention module, each (width, heads * depth)."""
    if isinstance(module, nn.MultiheadAttention):
        whole: Tensor | None = getattr(module, "in_proj_weight", None)
        three: Sequence[Tensor] = (
            (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
            if whole is None
            else whole.chunk(3)
        )
        of_queries, of_keys, of_values = (part.detach().float().T for part in three)
        return of_queries, of_keys, of_values
    for names in _SEPARATE:
        queries, keys, values = (_matrix(getattr(module, name, None)) for name in names)
        if queries is not None and keys is not None and values is not None:
            return queries, keys, values
    for name, by_head in _FUSED.items():
        whole = _matrix(getattr(module, name, None))
        if whole is None or type(module).__name__ in _OTHER_ORDER:
            continue
        if name == "c_attn" and getattr(module, "is_cross_attention", False):
            queries = _matrix(getattr(module, "q_attn", None))
            keys, values = whole.chunk(2, 1)
            return None if queries is None else (queries, keys, values)
        # GPT-BigCode interleaves its c_attn by head, unless its heads share keys and values.
        if by_head or getattr(module, "multi_query", None) is False:
            parts = _by_head(module, whole)
        else:
            parts = _side_by_side(module, whole)
        if parts is not None:
            return parts
    return None


def _side_by_side(module: nn.Module, whole: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Split a tensor with all queries first, then keys, then values; Phi-3 has fewer keys."""
    heads, depth = _heads(module), _depth(module)
    if heads is None or depth is None:
        if whole.shape[1] % 3:
            return None
        queries, keys, values = whole.chunk(3, 1)
        return queries, keys, values
    rest = whole.shape[1] - heads * depth
    if rest <= 0 or rest % (2 * depth) or heads % (rest // (2 * depth)):
        return None
    queries, others = whole[:, : heads * depth], whole[:, heads * depth :]
    return queries, others[:, : rest // 2], others[:, rest // 2 :]


def _by_head(module: nn.Module, whole: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Split a tensor that has, for each key head, the queries of its group, key and value."""
    heads = _heads(module)
    if heads is None:
        return None
    depth = _depth(module) or whole.shape[1] // (3 * heads)
    kv_heads, left = divmod(whole.shape[1] - heads * depth, 2 * depth) if depth else (0, 0)
    if left or kv_heads < 1 or heads % kv_heads:
        return None
    groups = whole.reshape(whole.shape[0], kv_heads, heads // kv_heads + 2, depth)
    queries, keys, values = groups[:, :, :-2], groups[:, :, -2], groups[:, :, -1]
    return queries.flatten(1), keys.flatten(1), values.flatten(1)


_HEADS = ("num_attention_heads", "num_heads", "n_heads", "n_head", "heads")
_DEPTH = ("head_dim", "attention_head_size", "key_value_proj_dim", "head_size")


def _heads(module: nn.Module) -> int | None:
    """Return the number of query heads from the module or its configuration; None: unknown."""
    return _number(module, _HEADS) or _number(getattr(module, "config", None), _HEADS)


def _depth(module: nn.Module) -> int | None:
    """Return the depth of a head from the module; None: unknown."""
    return _number(module, _DEPTH)


def _number(holder: object, names: Sequence[str]) -> int | None:
    """Return the first of some attributes that is an integer above 0."""
    numbers = (getattr(holder, name, None) for name in names)
    return next((number for number in numbers if isinstance(number, int) and number > 0), None)


def _split(matrix: Tensor, heads: int) -> Tensor:
    """Reshape (width, heads * depth) to (heads, width, depth)."""
    return matrix.reshape(matrix.shape[0], heads, -1).permute(1, 0, 2)


def output_projection(
    path: str, modules: Mapping[str, nn.Module], heads: int
) -> tuple[nn.Module | None, Tensor | None]:
    """Return the module with W_O of an attention layer, and W_O; None: unknown.

    It is in the layer; or, as in BERT, in the module `output` beside it.
    """
    candidates = [getattr(modules[path], name, None) for name in _OUTPUT]
    parent = modules.get(path.rpartition(".")[0])
    candidates.append(getattr(getattr(parent, "output", None), "dense", None))
    for candidate in candidates:
        matrix = _matrix(candidate)
        if matrix is not None and not len(matrix) % heads:
            return candidate, matrix.reshape(heads, -1, matrix.shape[1])
    return None, None
