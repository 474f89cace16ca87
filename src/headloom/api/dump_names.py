"""Which array of a dump is what, by the words of its name: queries, keys, values or weights.

    layers.3.queries, layer_3_q, model.layers.3.self_attn.q_proj, block3/key, blocks.3.attn.hook_v

One word of a name says what the array is; arrays whose other words are the same are of one layer.
A pattern says it where names do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from headloom.errors import InputError

__all__ = ["ROLES", "Layers", "layers_of_names"]

#: What an array is, by the words that say it.
ROLES = {
    "queries": ("q", "query", "queries"),
    "keys": ("k", "key", "keys"),
    "values": ("v", "value", "values"),
    "weights": ("weights", "attention", "attentions", "attn", "probs", "pattern"),
}

#: The names of the arrays of each layer, by what they are, by the name of the layer.
Layers = dict[str, dict[str, str]]


def layers_of_names(names: Sequence[str], patterns: Mapping[str, str]) -> Layers:
    """Return the layers of a dump, in their order.

    Args:
        names: of all its arrays.
        patterns: of the names of queries, keys or weights: ``{layer}`` stands for the number of the
            layer, ``*`` for anything. Empty: by the words of names.

    Raises: InputError: names that do not say what is what; queries without keys.

    >>> layers_of_names(["layer_10_q", "layer_10_k", "layer_9_q", "layer_9_k", "mask"], {})
    {'layer_9': {'queries': 'layer_9_q', 'keys': 'layer_9_k'}, \
'layer_10': {'queries': 'layer_10_q', 'keys': 'layer_10_k'}}
    """
    layers: Layers = {}
    matches = _by_patterns(names, patterns) if patterns else _by_words(names)
    for layer, role, name in matches:
        other = layers.setdefault(layer, {}).setdefault(role, name)
        if other != name:
            raise InputError(
                f"{name} and {other} are both {role} of one layer, {layer or 'which has no name'}; "
                "expected one. Say which: --queries 'PATTERN' --keys 'PATTERN'."
            )
    if not patterns and any("queries" in own for own in layers.values()):
        # Weights beside queries and keys are computed again from these.
        layers = {layer: own for layer, own in layers.items() if set(own) != {"weights"}}
    roles = [set(own) for own in layers.values()]
    whole = roles and (roles[0] == {"weights"} or {"queries", "keys"} <= roles[0])
    if not whole or any(own != roles[0] for own in roles):
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


def _by_words(names: Sequence[str]) -> Iterable[tuple[str, str, str]]:
    """The layer, the role and the name of each array whose name says one thing."""
    for name in names:
        words = re.findall(r"[a-z]+|\d+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
        roles = [(role, word) for word in words for role in ROLES if word in ROLES[role]]
        strong = [entry for entry in roles if entry[0] != "weights"]
        # Beside a word as these, "attn" is a part of the path; another such word is another thing.
        others = {"mask", "out", "output", "o", "z", "scores", "logits", "qkv", "in"} & set(words)
        if len(strong) == 1:
            role, word = strong[0]
        elif roles and not strong and not others:
            role, word = roles[-1]
        else:
            continue
        if words[-1] in ("weight", "bias"):
            raise InputError(
                f"{name}: this is a matrix that a model has learned, not its queries or keys on a "
                "text. Trace the model: headloom trace MODEL --text ..."
            )
        ending = r"(_?(proj|states?|vectors?))?"
        apart = list(re.finditer(rf"(?i)(?<![a-z]){word}(?![a-z]){ending}", name))
        layer = name[: apart[-1].start()] + name[apart[-1].end() :] if apart else name
        yield re.sub(r"[._/ -]{2,}", ".", layer.replace("/", ".")).strip("._- "), role, name


def _by_patterns(
    names: Sequence[str], patterns: Mapping[str, str]
) -> Iterable[tuple[str, str, str]]:
    """The layer, the role and the name of each array that a pattern fits."""
    for role, pattern in patterns.items():
        regular = re.escape(pattern).replace(r"\*", ".*")
        regular = regular.replace(r"\{layer\}", r"(?P<layer>\d+)", 1)
        matches = [match for name in names if (match := re.fullmatch(regular, name))]
        if not matches:
            raise InputError(
                f"--{role} {pattern}: no array has such a name; there are {', '.join(names)[:200]}."
            )
        for match in matches:
            number = match.groupdict().get("layer")
            yield "" if number is None else f"layers.{int(number)}", role, match.string


def _place(layer: str) -> tuple[object, ...]:
    """Where a layer comes: an encoder's before a decoder's, by number, and cross layers last there.

    >>> names = ["decoder.0.self_attn", "decoder.0.encoder_attn", "encoder.10", "encoder.9"]
    >>> sorted(names, key=_place)
    ['encoder.9', 'encoder.10', 'decoder.0.self_attn', 'decoder.0.encoder_attn']
    """
    numbers = [int(number) for number in re.findall(r"\d+", layer)]
    decoder, cross = "decoder" in layer, re.search("cross|decoder.*encoder|encdec", layer.lower())
    return decoder, numbers, bool(cross), layer
