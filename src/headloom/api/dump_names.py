"""Which array of a dump is what, by the end of its name: queries, keys, values or weights.

    layers.3.queries, layer_3_q, model.layers.3.self_attn.q_proj, block3/key, blocks.3.attn.hook_v

Arrays whose names are the same before that are of one layer. A pattern says it where names do not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from headloom.errors import InputError

__all__ = ["layers_of_names"]

_NAME = re.compile(
    r"(?i)(?P<layer>.*?)[._/ -]*(?<![a-z])((?P<queries>q|query|queries)|(?P<keys>k|keys?)|"
    r"(?P<values>v|values?)|(?P<weights>weights|attentions?|attn|probs|pattern))"
    r"(_?(proj|states?|vectors?))?"
)

#: The names of the arrays of each layer, by what they are, by the name of the layer.
Layers = dict[str, dict[str, str]]


def layers_of_names(names: Sequence[str], patterns: Mapping[str, str]) -> Layers:
    """Return the layers of a dump, in their order.

    Args:
        names: of all its arrays.
        patterns: of the names of queries, keys or weights: ``{layer}`` stands for the number of the
            layer, ``*`` for anything. Empty: by the ends of names.

    Raises: InputError: names that do not say what is what; queries without keys.

    >>> layers_of_names(["layer_9_q", "layer_9_k", "mask"], {})
    {'layer_9': {'queries': 'layer_9_q', 'keys': 'layer_9_k'}}
    """
    layers: Layers = {}
    for role, pattern in patterns.items():
        regular = re.escape(pattern).replace(r"\*", ".*")
        regular = regular.replace(r"\{layer\}", r"(?P<layer>\d+)", 1)
        for name in names:
            if match := re.fullmatch(regular, name):
                number = match.groupdict().get("layer")
                _put(layers, "" if number is None else f"layers.{int(number)}", role, name)
    for name in () if patterns else names:
        if match := _NAME.fullmatch(name):
            roles = match.groupdict()
            layer = roles.pop("layer").replace("/", ".")
            _put(layers, layer, next(role for role, word in roles.items() if word), name)
    if not patterns and any("queries" in own for own in layers.values()):
        # Weights beside queries and keys are computed again from these.
        layers = {layer: own for layer, own in layers.items() if set(own) != {"weights"}}
    roles_of = [set(own) for own in layers.values()]
    whole = roles_of and (roles_of[0] == {"weights"} or {"queries", "keys"} <= roles_of[0])
    if not whole or any(own != roles_of[0] for own in roles_of):
        has = "; ".join(
            f"{layer or 'one layer'}: {', '.join(own)}" for layer, own in layers.items()
        )
        raise InputError(
            f"import: found {has or 'no queries, keys or weights'} among {', '.join(names)[:200]}; "
            "expected queries and keys of every layer, as layer_0_q and layer_0_k, or weights. Say "
            "how they are named: --queries 'PATTERN' --keys 'PATTERN', or --weights 'PATTERN', "
            "with {layer} for the number."
        )
    return dict(sorted(layers.items(), key=lambda entry: _place(entry[0])))


def _put(layers: Layers, layer: str, role: str, name: str) -> None:
    other = layers.setdefault(layer, {}).setdefault(role, name)
    if other != name:
        raise InputError(
            f"{name} and {other} are both {role} of one layer, {layer or 'which has no name'}; "
            "expected one. Say which: --queries 'PATTERN' --keys 'PATTERN'."
        )


def _place(layer: str) -> tuple[bool, list[int], bool, str]:
    """Where a layer comes: an encoder's before a decoder's, by number, and cross layers last there.

    >>> names = ["decoder.0.self_attn", "decoder.0.encoder_attn", "encoder.10", "encoder.9"]
    >>> sorted(names, key=_place)
    ['encoder.9', 'encoder.10', 'decoder.0.self_attn', 'decoder.0.encoder_attn']
    """
    numbers = [int(number) for number in re.findall(r"\d+", layer)]
    cross = re.search("cross|decoder.*encoder|encdec", layer.lower())
    return "decoder" in layer, numbers, bool(cross), layer
