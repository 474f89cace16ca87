"""Constructor arguments of the modules, by headloom's names or other libraries' names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, fields
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from headloom.errors import no_keyword
from headloom.mechanism.rotary import RotaryScaling
from headloom.models.configuration import Architecture, BlockChoices, TextChoices

_P = ParamSpec("_P")
_Module = TypeVar("_Module")

#: headloom's arguments, and their names in PyTorch, Transformers, timm and PyTorch Geometric.
_HABITS = {
    "vocabulary": "vocab_size vocabulary_size n_vocab num_embeddings num_tokens ntoken",
    "classes": "num_classes n_classes num_labels n_labels out_channels",
    "features": "num_features in_features in_channels input_dim",
    "width": "d_model hidden_size hidden_dim hidden_channels embed_dim n_embd dim",
    "heads": "num_heads n_heads nhead n_head num_attention_heads",
    "kv_heads": "num_kv_heads n_kv_heads num_key_value_heads",
    "layers": "num_layers n_layers n_layer num_hidden_layers decoder_layers",
    "encoder_layers": "num_encoder_layers",
    "decoder_layers": "num_decoder_layers",
    "feed_forward": "dim_feedforward d_ff intermediate_size ffn_dim n_inner",
    "max_length": "max_len max_seq_len max_position_embeddings n_positions block_size",
    "padding": "pad_token_id padding_idx",
    "tied": "tie_word_embeddings tie_weights",
    "biases": "bias",
    "patch": "patch_size",
}  # fmt: skip
_OURS = {theirs: ours for ours, names in _HABITS.items() for theirs in names.split()}
_CHOICES = {
    f"Unpack[{kind.__name__}]": list(kind.__annotations__) for kind in (BlockChoices, TextChoices)
}


def by_headloom_names(
    operation: str, known: Collection[str], arguments: Mapping[str, object]
) -> dict[str, object]:
    """Rename arguments from other libraries' names; known: argument names of the operation.

    >>> by_headloom_names("Encoder", ["width", "layers"], {"d_model": 64, "num_layers": 2})
    {'width': 64, 'layers': 2}
    """
    result: dict[str, object] = {}
    for name, value in arguments.items():
        ours = name if name in known else _OURS.get(name, name)
        # "layers" of an encoder-decoder sets both stacks.
        sets_both = ours == "layers" and ours not in known and "encoder_layers" in known
        for target in ("encoder_layers", "decoder_layers") if sets_both else (ours,):
            if target not in known:
                raise no_keyword(operation, target, known, {})
            if target in result:
                raise TypeError(f"{operation}() got {target} twice, once under another name")
            result[target] = value
    return result


def by_name(
    **defaults: object,
) -> Callable[[Callable[Concatenate[_Module, _P], None]], Callable[Concatenate[_Module, _P], None]]:
    """Let a constructor accept other libraries' names, and keep its arguments for config.json.

    Its signature lists its `TextChoices` or `BlockChoices`, with these defaults, and otherwise
    those of `Architecture`.
    """
    usual = {field.name: field.default for field in fields(Architecture)} | defaults

    def decorated(init: Callable[Concatenate[_Module, _P], None]) -> Callable[..., None]:
        parameters = list(inspect.signature(init).parameters.values())
        listed = {parameter.name for parameter in parameters}
        for name in _CHOICES.get(parameters[-1].annotation, ()):
            if name not in listed:
                kind = inspect.Parameter.KEYWORD_ONLY
                parameters.append(inspect.Parameter(name, kind, default=usual[name]))
        signature = inspect.Signature([item for item in parameters if item.name != "choices"])
        known = list(signature.parameters)[1:]

        @wraps(init)
        def wrapped(self: _Module, *args: _P.args, **kwargs: _P.kwargs) -> None:
            name = f"headloom.{type(self).__name__}"
            bound = signature.bind(self, *args, **by_headloom_names(name, known, kwargs))
            bound.apply_defaults()
            arguments = dict(list(bound.arguments.items())[1:])
            init(self, **arguments)  # type: ignore[call-arg]
            if type(self).__init__ is wrapped:
                saved: dict[str, object] = {"headloom": type(self).__name__, **arguments}
                if isinstance(scaling := arguments.get("rotary_scaling"), RotaryScaling):
                    saved["rotary_scaling"] = asdict(scaling)
                self._hub_mixin_config = saved  # type: ignore[attr-defined]

        wrapped.__signature__ = signature  # type: ignore[attr-defined]
        return wrapped

    return decorated
