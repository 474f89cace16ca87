"""Constructor arguments of the modules, by headloom's names or those of other libraries."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from difflib import get_close_matches
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

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
_CHOICES = {f"Unpack[{kind.__name__}]": kind for kind in (BlockChoices, TextChoices)}


def by_headloom_names(known: Collection[str], arguments: Mapping[str, object]) -> dict[str, object]:
    """Rename arguments that are called as in other libraries.

    known: the names that there are.
    Raises: TypeError: no such argument, or two names of one.

    >>> by_headloom_names(["width", "layers"], {"d_model": 64, "num_layers": 2})
    {'width': 64, 'layers': 2}
    """
    result: dict[str, object] = {}
    for name, value in arguments.items():
        ours = name if name in known else _OURS.get(name, name)
        # The layers of an encoder-decoder are those of both.
        both = ours == "layers" and ours not in known and "encoder_layers" in known
        for each in ("encoder_layers", "decoder_layers") if both else (ours,):
            if each not in known:
                near = get_close_matches(each, known, 1, 0.5)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}."
                raise TypeError(f"no argument {name!r}; {hint}")
            if each in result:
                raise TypeError(f"{name!r} is {each}, which is there already.")
            result[each] = value
    return result


def by_name(
    init: Callable[Concatenate[_Module, _P], None],
) -> Callable[Concatenate[_Module, _P], None]:
    """Let a constructor take habitual names, and keep its arguments for config.json.

    Its signature lists the arguments that it takes by a `TextChoices` or `BlockChoices`.
    """
    defaults = {field.name: field.default for field in fields(Architecture)}
    parameters = list(inspect.signature(init).parameters.values())
    if (choices := parameters[-1]).kind is inspect.Parameter.VAR_KEYWORD:
        parameters[-1:] = [
            choices.replace(
                name=name, kind=inspect.Parameter.KEYWORD_ONLY, default=defaults[name],
                annotation=annotation.__forward_arg__,
            )
            for name, annotation in inspect.get_annotations(_CHOICES[choices.annotation]).items()
            if name not in inspect.signature(init).parameters
        ]  # fmt: skip
    signature = inspect.Signature(parameters)
    known = list(signature.parameters)[1:]

    @wraps(init)
    def wrapped(self: _Module, *args: _P.args, **kwargs: _P.kwargs) -> None:
        name = f"headloom.{type(self).__name__}"
        try:
            bound = signature.bind(self, *args, **by_headloom_names(known, kwargs))
        except TypeError as error:
            raise TypeError(f"{name}: {error}") from None
        bound.apply_defaults()
        arguments = dict(list(bound.arguments.items())[1:])
        init(self, **arguments)  # type: ignore[call-arg]
        if type(self).__init__ is wrapped:
            self._hub_mixin_config = {"headloom": type(self).__name__, **arguments}  # type: ignore[attr-defined]

    wrapped.__signature__ = signature  # type: ignore[attr-defined]
    return wrapped  # type: ignore[return-value]
