"""Which array of a dump is what: queries, keys, values or weights, and of which layer.

    layers.3.queries, layer_3_q, model.layers.3.self_attn.q_proj, block3/key, blocks.3.attn.hook_v

A name is read in words and numbers. One word says what the array is; arrays whose other words are
the same are of one layer. A pattern says it where names do not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from headloom.errors import InputError
from headloom.formats.stored_arrays import StoredArray

__all__ = ["ROLES", "Dump", "DumpLayer", "arrays_of"]

#: What an array is, by the words that say it.
ROLES = {
    "queries": ("q", "query", "queries"),
    "keys": ("k", "key", "keys"),
    "values": ("v", "value", "values"),
}
_WEIGHTS = ("weights", "attention", "attentions", "attn", "probs", "probabilities", "pattern")
#: Words that say that an array with one of `_WEIGHTS` is something else.
_NOT_WEIGHTS = ("mask", "out", "output", "outputs", "o", "scores", "logits", "z", "qkv", "in")
#: Last words of what a model has learned.
_LEARNED = ("weight", "bias")
_TOKENS = ("tokens", "input_ids", "token_ids")
#: Words before the number of a layer.
_LAYER = ("layer", "layers", "block", "blocks", "h", "l")


@dataclass
class DumpLayer:
    """The arrays of one layer, by what they are; its name."""

    name: str
    arrays: dict[str, StoredArray] = field(default_factory=dict)


@dataclass(frozen=True)
class Dump:
    """The layers of a dump in their order; its tokens; and arrays that are none of these.

    numbered: whether names number the layers: a single array is then one layer, not a stack.
    """

    layers: list[DumpLayer]
    tokens: StoredArray | None
    others: list[StoredArray]
    numbered: bool


def arrays_of(arrays: Sequence[StoredArray], patterns: dict[str, str]) -> Dump:
    """The layers of a dump.

    Args:
        arrays: all of its arrays.
        patterns: of the names of queries, keys, values or weights: ``{layer}`` stands for the
            number of the layer, ``*`` for anything. Empty: by the words of names.

    Raises: InputError: names that do not say what is what; queries without keys.
    """
    dump = _by_patterns(arrays, patterns) if patterns else _by_words(arrays)
    first = set(dump.layers[0].arrays)
    for layer in dump.layers:
        there = set(layer.arrays)
        if "weights" not in there and not {"queries", "keys"} <= there:
            has = next(iter(layer.arrays.values()))
            lacks = "keys" if "keys" not in there else "queries"
            raise InputError(
                f"{has.place}: layer {layer.name or '0'} has no {lacks}; expected an array of "
                "queries and one of keys for each layer, of the same name but for q and k. Say "
                "how they are named: --queries PATTERN --keys PATTERN."
            )
        if there != first:
            raise InputError(
                f"layer {layer.name} has {', '.join(sorted(there))}, layer {dump.layers[0].name} "
                f"{', '.join(sorted(first))}; expected the same of every layer."
            )
    return dump


def _words(name: str) -> list[str]:
    """A name in words and numbers, in small letters.

    >>> _words("model.layers.03.selfAttn.q_proj")
    ['model', 'layers', '3', 'self', 'attn', 'q', 'proj']
    """
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    found = re.findall(r"[a-z]+|\d+", apart.lower())
    return [str(int(word)) if word.isdigit() else word for word in found]


def _role(words: Sequence[str]) -> tuple[str, str] | None:
    """What an array of a name is, and the word that says it; None: it does not say one thing."""
    found = [(role, word) for word in words for role, own in ROLES.items() if word in own]
    if len(found) == 1:
        return found[0]
    weights = [word for word in words if word in _WEIGHTS]
    if not found and weights and not set(words) & set(_NOT_WEIGHTS):
        return "weights", weights[-1]
    return None


def _names_tokens(array: StoredArray) -> bool:
    return re.split(r"[./]", array.name)[-1].lower() in _TOKENS


def _by_words(arrays: Sequence[StoredArray]) -> Dump:
    layers: dict[tuple[str, ...], DumpLayer] = {}
    others: list[StoredArray] = []
    tokens = None
    for array in arrays:
        if _names_tokens(array) and len(array.shape) <= 2:
            tokens = array
            continue
        words = _words(array.name)
        role = _role(words)
        if role is None:
            others.append(array)
            continue
        if words[-1] in _LEARNED and len(words) > 1:
            raise InputError(
                f"{array.place}: this is a matrix that a model has learned, not its queries or "
                "keys on a text. Trace the model: headloom trace MODEL --text ..."
            )
        rest = tuple(word for word in words if word != role[1])
        layer = layers.setdefault(((role[0] == "weights" and "w") or "", *rest), DumpLayer(""))
        if role[0] in layer.arrays:
            raise InputError(
                f"{array.place} and {layer.arrays[role[0]].place} are both {role[0]} of one layer; "
                "expected one. Say which: --queries PATTERN --keys PATTERN."
            )
        layer.arrays[role[0]] = array
        layer.name = layer.name or _name_without(array.name, role[1])
    # Weights beside queries and keys are computed again from these.
    kept = {words: layer for words, layer in layers.items() if "weights" not in layer.arrays}
    if kept:
        others += [layer.arrays["weights"] for words, layer in layers.items() if words not in kept]
        layers = kept
    if not layers:
        raise _nothing(arrays)
    _check_numbers(layers)
    order = sorted(layers, key=_place)
    numbered = any(word.isdigit() for words in layers for word in words)
    return Dump([layers[words] for words in order], tokens, others, numbered)


def _place(words: Sequence[str]) -> tuple[Any, ...]:
    """Where a layer comes: an encoder's before a decoder's, by number, and cross layers last there.

    >>> dumped = "decoder 0 encoder attn", "decoder 0 self attn", "encoder 10", "encoder 9"
    >>> [" ".join(of) for of in sorted((name.split() for name in dumped), key=_place)]
    ['encoder 9', 'encoder 10', 'decoder 0 self attn', 'decoder 0 encoder attn']
    """
    of_decoder = "decoder" in words
    cross = "cross" in words or (of_decoder and "encoder" in words) or "encdecattention" in words
    last = max((place for place, word in enumerate(words) if word.isdigit()), default=-1) + 1
    parts = [[(of.isdigit(), int(of) if of.isdigit() else 0, of) for of in part]
             for part in (words[:last], words[last:])]  # fmt: skip
    return "encoder" not in words or of_decoder, parts[0], cross, parts[1]


def _nothing(arrays: Sequence[StoredArray]) -> InputError:
    names = ", ".join(array.name for array in arrays[:5]) + (", ..." if len(arrays) > 5 else "")
    return InputError(
        f"import: no array is named as queries and keys, or as weights: {names or 'none at all'}. "
        "Expected names such as layer_0_q and layer_0_k; or say how they are named: --queries "
        "'PATTERN' --keys 'PATTERN', or --weights 'PATTERN', with {layer} for the number."
    )


def _name_without(name: str, word: str) -> str:
    """The name of a layer: that of its array without the word that says what the array is.

    >>> _name_without("model.layers.3.self_attn.q_proj", "q"), _name_without("layer_3_q", "q")
    ('model.layers.3.self_attn', 'layer_3')
    """
    pattern = rf"(?i)(?<![a-z]){word}(?![a-z])(_?(proj|states?|vectors?))?"
    places = list(re.finditer(pattern, name))
    if places:
        name = name[: places[-1].start()] + name[places[-1].end() :]
    return re.sub(r"[._/ -]{2,}", ".", name.replace("/", ".")).strip("._- ")


def _number(words: Sequence[str]) -> str | None:
    """The number of a layer: the one after a word that says so, or the only one."""
    for before, word in pairwise(words):
        if before in _LAYER and word.isdigit():
            return word
    numbers = [word for word in words if word.isdigit()]
    return numbers[0] if len(numbers) == 1 else None


def _check_numbers(layers: dict[tuple[str, ...], DumpLayer]) -> None:
    """Raise an InputError where names hold two numbers, and one of them is no layer's."""
    seen: dict[tuple[object, ...], DumpLayer] = {}
    for words, layer in layers.items():
        numbers = [word for word in words if word.isdigit()]
        apart = tuple(word for word in words if not word.isdigit())
        number = _number(words)
        before = seen.setdefault((number, *apart), layer)
        if before is not layer or (numbers and number is None):
            one, other = (next(iter(x.arrays.values())).place for x in (before, layer))
            both = f"{one} and {other} are" if before is not layer else f"{one} is"
            raise InputError(
                f"{both} of a layer whose number the name does not say. Say where it stands: "
                "--queries 'PATTERN' --keys 'PATTERN', with {layer} for the number."
            )


def _by_patterns(arrays: Sequence[StoredArray], patterns: dict[str, str]) -> Dump:
    layers: dict[int, DumpLayer] = {}
    taken: set[str] = set()
    for role, pattern in patterns.items():
        parts = re.split(r"(\*|\{layer\})", pattern)
        if parts.count("{layer}") > 1:
            raise InputError(f"--{role} {pattern}: {{layer}} stands in it twice; expected once.")
        regular = "".join(
            {"*": ".*", "{layer}": r"(?P<layer>\d+)"}.get(part, re.escape(part)) for part in parts
        )
        matches = [
            (array, match) for array in arrays if (match := re.fullmatch(regular, array.name))
        ]
        if not matches:
            names = ", ".join(array.name for array in arrays[:5])
            raise InputError(f"--{role} {pattern}: no array has such a name; there are {names}.")
        for array, match in matches:
            number = int(match["layer"]) if "{layer}" in parts else 0
            layer = layers.setdefault(number, DumpLayer(f"layers.{number}"))
            if role in layer.arrays:
                raise InputError(
                    f"--{role} {pattern}: {array.place} and {layer.arrays[role].place} are both "
                    f"{role} of layer {number}; expected one. Use {{layer}} for the number."
                )
            layer.arrays[role] = array
            taken.add(array.place)
    others = [array for array in arrays if array.place not in taken]
    tokens = next(filter(_names_tokens, others), None)
    others = [array for array in others if array is not tokens]
    numbered = any("{layer}" in pattern for pattern in patterns.values())
    return Dump([layers[number] for number in sorted(layers)], tokens, others, numbered)
