"""Name, formula and sentence of each of the six steps of attention.

    before  X = E + P                  each word becomes a vector
    1       Q = X W_Q, K = Y W_K, ...  project
    2       S = Q K^T                  score
    3       s = S / sqrt(d)            scale
    4       s_ij = -inf                mask
    5       A = softmax(S)             softmax
    6       Z = A V                    weigh
    after   output = [Z_0 ... Z_h-1] W_O   join

`headloom steps` and the studio show these texts.

Source: Vaswani et al. 2017, equation 1 and section 3.2; Shaw et al. 2018; Press et al. 2022; Su et
al. 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: Keys that a mask hides: none, all keys after the query, or others; or unknown.
Hidden = Literal["nothing", "later", "some", "unknown"]


@dataclass(frozen=True)
class Wording:
    """Texts of one step. number: of the six; None: before, between or after them."""

    number: int | None
    name: str
    formula: str
    sentence: str


def inputs(kind: str, *, embedded: bool, placed: bool) -> Wording:
    """Describe the input. embedded: whether it is E (+ P); placed: whether positions are added."""
    if not embedded:
        formula = "X"
        sentence = (
            "These vectors enter the layer: what the layers before made of the tokens and their "
            "positions."
        )
    elif placed:
        formula = "X = E + P"
        sentence = (
            "Every word has a vector of its own, E. Its place in the sentence adds another, P: "
            "without it, order would mean nothing."
        )
    else:
        formula, sentence = "X = E", "Every word has a vector of its own."
    if kind == "cross":
        sentence += " X is the decoder's text, Y the encoder's."
    return Wording(None, "Before: words become vectors", formula, sentence)


def project(kind: str, *, biases: bool | None) -> Wording:
    """Describe queries, keys and values. biases: whether some are added; None: unknown."""
    source = "Y" if kind == "cross" else "X"
    q, k, v = (
        f" (+ b_{name})" if biases is None else f" + b_{name}" if biases else "" for name in "QKV"
    )
    formula = f"Q = X W_Q{q},  K = {source} W_K{k},  V = {source} W_V{v}"
    sentence = (
        "Three learned matrices make a query, a key and a value of each vector: what a word asks, "
        "what it answers to, and what it gives."
    )
    if kind == "cross":
        sentence += " Queries come from X, keys and values from Y."
    if biases is None:
        sentence += " Whether the layer adds biases, b, is not known here."
    return Wording(1, "Project", formula, sentence)


def turn() -> Wording:
    """Describe rotary positions."""
    sentence = (
        "Rotary positions: each pair of numbers of a query and of a key is turned by an angle that "
        "grows with its position, so that scores know the distance (Su et al. 2021)."
    )
    return Wording(None, "Turn by position", "Q := R Q,  K := R K", sentence)


def score(*, shaw: bool) -> Wording:
    """Describe raw scores. shaw: whether relative positions enter them."""
    formula, sentence = "S = Q Kᵀ", "The dot product of a query and a key says how well they match."
    if shaw:
        formula = "S = Q Kᵀ + Q Aᵀ"
        sentence += (
            " Relative positions (Shaw et al. 2018) add the product of the query with a learned "
            "vector for the distance."
        )
    return Wording(2, "Score", formula, sentence)


def scale(depth: int | None, digits: int, *, alibi: bool) -> Wording:
    """Describe scaled scores. depth: None: unknown. alibi: whether a bias by distance is added."""
    bias = " + B" if alibi else ""
    formula, root = f"s = S / √d{bias}", "√d"
    if depth is not None:
        formula += f" = S / √{depth}{bias}"
        root = f"√{depth} = {depth**0.5:.{digits}f}"
    sentence = (
        f"Long vectors give large products. Over {root} they keep their size, whatever the depth."
    )
    if alibi:
        sentence += (
            " ALiBi (Press et al. 2022) then adds B: the further away a key, the less its score."
        )
    return Wording(3, "Scale", formula, sentence)


def mask(hidden: Hidden) -> Wording:
    """Describe the mask."""
    if hidden == "unknown":
        return Wording(4, "Mask", "not known", "The trace does not say what the mask is.")
    if hidden == "nothing":
        sentence = "Nothing is hidden here: every query may look at every key."
        return Wording(4, "Mask", "none", sentence)
    sentence = (
        "A decoder writes from left to right: no word may look at words after it. Their scores "
        "become −∞."
        if hidden == "later"
        else "Some keys may not be looked at. Their scores become −∞."
    )
    return Wording(4, "Mask", "s_ij = −∞ where i may not look at j", sentence)


def softmax() -> Wording:
    """Describe the weights."""
    sentence = (
        "Row by row, e to the power of each score is divided by the sum of the row: the weights "
        "of a row are 0 or more, and add up to 1."
    )
    return Wording(5, "Softmax", "A_ij = e^s_ij / Σ_k e^s_ik", sentence)


def weigh(*, shaw: bool) -> Wording:
    """Describe weighted sums of the values. shaw: whether vectors by distance are added."""
    formula = "Z = A V"
    sentence = "Each word takes a weighted sum of the values: much of those that it looks at."
    if shaw:
        formula = "Z = A V + Σ_j A_ij a_ij"
        sentence += " Shaw's positions add a learned vector for each distance, weighted alike."
    return Wording(6, "Weigh", formula, sentence)


def join(heads: int, *, bias: bool) -> Wording:
    """Describe the output of all heads."""
    parts = "Z" if heads == 1 else "[Z_0 Z_1]" if heads == 2 else f"[Z_0 … Z_{heads - 1}]"
    sentence = (
        f"The {heads} heads stand side by side, and a last learned matrix mixes them."
        if heads > 1
        else "A last learned matrix makes the output."
    )
    formula = f"output = {parts} W_O{' + b_O' if bias else ''}"
    return Wording(None, "After: the heads are joined", formula, sentence)
