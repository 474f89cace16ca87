"""Retrieval heads: heads that attend to the needle in the haystack while it is copied.

A fact, the needle, is somewhere in a long text, and the model repeats it later. A retrieval head's
strongest edge, when a token of the needle is written, leads to that token in the needle.

Source: Wu et al. 2024, "Retrieval Head Mechanistically Explains Long-Context Factuality".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headloom.analysis.heads.layer_weights import LayerWeights
from headloom.analysis.heads.patterns import Classes
from headloom.analysis.heads.scores import HeadScores, holm, on_patterns
from headloom.errors import InputError
from headloom.formats.tokens import each_once, shown
from headloom.formats.trace import TraceData, TraceLayer


@dataclass(frozen=True)
class Needle:
    """Places of the needle and of its copy, the answer: first tokens, and their length.

    The answer has the needle's tokens; each is predicted by the query before it.
    """

    start: int
    answer: int
    length: int


def bare(token: str) -> str:
    """Return a token without the markers of word starts.

    >>> [bare(token) for token in ("\u0120code", "\u2581code", "##ing", " is")]
    ['code', 'code', 'ing', 'is']
    """
    return token.removeprefix("##").strip(" \u0120\u2581\u010a\n")


def find_needle(tokens: Sequence[str], text: str) -> Needle:
    """Return the first and the last place of a needle.

    Args:
        tokens: of the whole text, with the answer.
        text: the needle, in whole tokens.

    Raises: InputError: it does not occur twice, or is split into tokens in two ways.

    >>> find_needle("the code is 7 4 2 . what is it ? 7 4 2 .".split(), "7 4 2")
    Needle(start=3, answer=11, length=3)
    """
    # A character shared by several tokens belongs to the first.
    bare_tokens = [bare(token) for token in each_once(shown(tokens))]
    sought = "".join(bare(word) for word in text.split())
    places = []
    for start, token in enumerate(bare_tokens):
        joined, end = token, start + 1
        while token and len(joined) < len(sought) and end < len(tokens):
            joined, end = joined + bare_tokens[end], end + 1
        if sought and joined == sought:
            places.append((start, end - start))
    if len(places) < 2 or places[-1][0] < sum(places[0]):
        raise InputError(
            f"needle: {text!r} occurs {len(places)} times among the tokens; expected it twice, "
            "once as the needle and once as the answer."
        )
    (start, length), (answer, again) = places[0], places[-1]
    if length != again:
        raise InputError(
            f"needle: {text!r} is {length} tokens at its first place and {again} in the answer. "
            "Choose a part that is split in the same way."
        )
    return Needle(start, answer, length)


def retrieval_score(layer: TraceLayer, needle: Needle) -> Tensor:
    """Return the share of the needle's tokens that each head copies, (heads,); exact.

        |g and k| / |k|

    k: the tokens of the needle. g: the tokens for which the head's strongest edge, from the query
    before the written token, leads to the same token within the needle.

    Source: Wu et al. 2024, section 2.

    >>> import headloom
    >>> tokens = ["x", "a", "b", "?", "a", "b"]               # "?" predicts a, a predicts b
    >>> weights = torch.eye(6)
    >>> weights[3], weights[4] = torch.eye(6)[1], torch.eye(6)[0]
    >>> trace = headloom.from_weights(weights[None], tokens=tokens, mask=headloom.causal())
    >>> retrieval_score(trace.layers[0], find_needle(tokens, "a b"))    # a is copied, b is not
    tensor([0.5000])
    """
    _check(layer, needle)
    graph = layer.graph
    if not graph.k:
        raise InputError("retrieval: the trace keeps no edge. Trace with --keep 1 or more.")
    tokens = [bare(token) for token in layer.key_tokens]
    of_needle = tokens[needle.start : needle.start + needle.length]
    copied: list[set[str]] = [set() for _ in range(layer.heads)]
    for place, token in enumerate(of_needle):
        strongest = graph.keys[:, needle.answer + place - 1, 0].tolist()
        for head, key in enumerate(strongest):
            inside = needle.start <= key < needle.start + needle.length
            if inside and tokens[key] == token:
                copied[head].add(token)
    return torch.tensor([len(of_head) / len(set(of_needle)) for of_head in copied])


def needle_mass(layer: TraceLayer, needle: Needle) -> HeadScores:
    """Return the mass on the needle's token while it is written, compared with chance.

    mean over the answer's tokens t of sum_(j in needle: t_j = t) w_(t - 1, j)
    """
    _check(layer, needle)
    _, queries, keys = layer.shape
    numbers: dict[str, int] = {}
    of_queries = torch.full((queries,), -1)
    of_keys = torch.full((keys,), -1)
    for place in range(needle.length):
        token = layer.key_tokens[needle.start + place]
        number = numbers.setdefault(bare(token), len(numbers))
        of_queries[needle.answer + place - 1] = number
        of_keys[needle.start + place] = number
    weights = LayerWeights(layer, patterns={"needle": Classes(of_queries, of_keys)})
    return on_patterns(weights, weights.patterns, weights.sums.masses)["needle"]


def _check(layer: TraceLayer, needle: Needle) -> None:
    """Raise an error for a layer without the needle and its copy."""
    if not layer.one_sequence:
        raise InputError(
            f"retrieval: layer {layer.name} is cross-attention; the needle and its copy must be in "
            "one sequence."
        )
    first, length = needle.start + needle.length, layer.shape[1]
    if not 0 <= needle.start < first <= needle.answer <= length - needle.length:
        raise InputError(
            f"retrieval: {needle} in a text of {length} tokens; expected the needle, and after it "
            "the answer, within the text."
        )


def retrieval(trace: TraceData, needle: Needle) -> list[dict[str, float]]:
    """Return the retrieval scores of each self-attention head.

    Returns: rows of layer, head, retrieval (`retrieval_score`), and of `needle_mass` the score, its
    chance and the bound of its p-value, corrected for all these heads (Holm 1979): needle,
    needle_chance, needle_p.
    """
    rows: list[dict[str, float]] = []
    ps = torch.zeros(0, dtype=torch.float64)
    for number, layer in enumerate(trace.layers):
        if layer.queries_from != layer.keys_from or layer.shape[1] != len(trace.tokens):
            continue
        copied, mass = retrieval_score(layer, needle), needle_mass(layer, needle)
        ps = torch.cat((ps, mass.p))
        rows += [
            {
                "layer": number, "head": head, "retrieval": float(copied[head]),
                "needle": float(mass.score[head]), "needle_chance": float(mass.chance[head]),
            }
            for head in range(layer.heads)
        ]  # fmt: skip
    return [row | {"needle_p": p} for row, p in zip(rows, holm(ps).tolist(), strict=True)]
