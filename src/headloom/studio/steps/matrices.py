"""Embeddings and projections for a walk through attention: as they are given, or drawn from a seed.

What is drawn are multiples of 1/2 from -1 to 1, which are easy to multiply by hand. The same word
has the same embedding in every sentence.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from headloom.errors import DataError, InputError, ShapeError
from headloom.formats.files import JsonObject, read_json
from headloom.formats.stored_arrays import read_npz
from headloom.formats.tokens import visible
from headloom.mechanism.positions import sinusoidal
from headloom.studio.steps.worked import Projections

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = [
    "MATRICES",
    "Matrices",
    "Words",
    "as_tensor",
    "check_length",
    "read_matrices",
    "words_of",
]

#: What may be given, by these names.
MATRICES = (
    "embeddings", "target_embeddings", "positions",
    "W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O",
)  # fmt: skip
#: Words of a sentence at most: more cannot be read as tables.
_MOST_WORDS = 40
#: Characters of a token in a table.
_LONGEST_WORD = 10
_LARGEST_WIDTH = 4_096


@dataclass(frozen=True, eq=False)
class Words:
    """The tokens of a sentence, and their vectors, in float64.

    E: embeddings, P: positions, both (tokens, width), or None where they are not known one by one.
    X: what enters the layer: E + P.
    """

    tokens: tuple[str, ...]
    X: Tensor
    E: Tensor | None = None
    P: Tensor | None = None

    @property
    def shown(self) -> tuple[str, ...]:
        """The tokens as tables name them."""
        return tuple(visible(token, _LONGEST_WORD) for token in self.tokens)


def words_of(sentence: str | Sequence[str], name: str = "sentence") -> tuple[str, ...]:
    """The words of a sentence, or the tokens that are given one by one.

    Raises: InputError: there is none, or there are too many to be shown.

    >>> words_of("the cat sat")
    ('the', 'cat', 'sat')
    """
    listed = isinstance(sentence, list | tuple) and all(isinstance(w, str) for w in sentence)
    if not isinstance(sentence, str) and not listed:
        raise InputError(f"the {name} is {sentence!r:.60}; expected a text, or a list of words.")
    words = tuple(sentence.split() if isinstance(sentence, str) else sentence)
    if not words:
        raise InputError(
            f'the {name} is empty; give one word or more, as in: headloom steps "the cat sat".'
        )
    check_length(len(words), name)
    return words


def check_length(count: int, name: str) -> None:
    """Raise an InputError where a sentence is too long to be worked through."""
    if count > _MOST_WORDS:
        raise InputError(
            f"the {name} has {count} tokens; a walk shows {_MOST_WORDS} at most. Give a shorter "
            "one; headloom trace and headloom view show long ones."
        )


@dataclass(frozen=True, eq=False)
class Matrices:
    """What is known of embeddings and matrices; the rest is drawn from a seed.

    known: arrays, tensors or lists by their names, of MATRICES; None: not known. W_Q, W_K and W_V
        are (width, depth), (width, heads * depth), or (heads, width, depth); W_O (heads * depth,
        width) or (heads, depth, width).
    width, heads: of what is drawn; None: 4, and 2 heads. Of known matrices: as they are.
    seed: of what is drawn.

    Raises: InputError: what is no array of numbers, or no size.
    """

    arrays: InitVar[Mapping[str, ArrayLike | Tensor | None]]
    width: int | None = None
    heads: int | None = None
    seed: int = 1
    known: dict[str, Tensor] = field(init=False)

    def __post_init__(self, arrays: Mapping[str, ArrayLike | Tensor | None]) -> None:
        known = {
            name: as_tensor(name, array) for name, array in arrays.items() if array is not None
        }
        object.__setattr__(self, "known", known)
        for name, size in (("width", self.width), ("heads", self.heads)):
            if size is not None and not 1 <= size <= _LARGEST_WIDTH:
                raise InputError(f"{name} is {size}; expected 1 to {_LARGEST_WIDTH:,}.")

    @property
    def origin(self) -> str:
        """Where the matrices come from, in words."""
        learned = [name for name in MATRICES if name in self.known]
        drawn = f"random matrices, seed {self.seed}"
        if not learned:
            return drawn
        missing = [name for name in ("W_Q", "W_K", "W_V", "W_O") if name not in self.known]
        rest = f"; {', '.join(missing)} random, seed {self.seed}" if missing else ""
        return f"given: {', '.join(learned)}{rest}"

    def projections(self) -> Projections:
        """W_Q, W_K, W_V, W_O of every head."""
        known = self.known
        heads, width, depth = self._sizes()
        split = {
            name: _by_head(name, known[name], heads)
            if name in known
            else self._drawn(name, (heads, width, depth))
            for name in ("W_Q", "W_K", "W_V")
        }
        output = known.get("W_O")
        if output is None:
            output = self._drawn("W_O", (heads * split["W_V"].shape[2], width))
        biases = {name: known[name] for name in ("b_Q", "b_K", "b_V") if name in known}
        return Projections(
            **split,
            W_O=output.flatten(0, 1) if output.ndim == 3 else output,
            **{name: _by_head(name, bias[None], heads)[:, 0] if bias.ndim == 1 else bias
               for name, bias in biases.items()},
            b_O=known.get("b_O"),
        )  # fmt: skip

    def words(
        self, tokens: Sequence[str] | None, placed: bool = True, name: str = "embeddings"
    ) -> Words:
        """Tokens with their vectors.

        Args:
            tokens: None: as many as there are known embeddings, named by their places.
            placed: whether positions are added: those that are known, else sinusoidal ones.
            name: of the known embeddings: "embeddings" or "target_embeddings".

        Raises: ShapeError: not an embedding and a position for each token.
        """
        known, table = self.known.get(name), self.known.get("positions")
        width = self._sizes()[1]
        if tokens is None:
            if known is None:
                raise InputError(f"give a sentence, or {name}.")
            check_length(len(known), "sentence")
            tokens = [f"x{place}" for place in range(len(known))]
        expected = (len(tokens), width)
        if known is None:
            known = torch.stack([self._drawn(f"word {token}", (width,)) for token in tokens])
        if not placed:
            table = None
        elif table is None:
            table = sinusoidal(*expected).double()
        else:
            table = table[: len(tokens)]
        for what, numbers in ((name, known), ("positions", table)):
            if numbers is not None and numbers.shape != expected:
                raise ShapeError(
                    f"{what} are {tuple(numbers.shape)}; expected {expected}: a row for each of "
                    f"the {len(tokens)} words, of the width of the matrices."
                )
        return Words(tuple(tokens), known if table is None else known + table, known, table)

    def _sizes(self) -> tuple[int, int, int]:
        """Heads, width and depth: of the first matrix that is known, else as they are asked for."""
        names = (name for name in ("W_Q", "W_K", "W_V") if name in self.known)
        name = next(names, None)
        if name is not None:
            matrix = _by_head(name, self.known[name], self.heads or 1)
            heads, width, depth = matrix.shape
            if self.heads not in (None, heads):
                raise ShapeError(f"{name} has {heads} heads; expected {self.heads}.")
            return heads, width, depth
        embeddings, heads, width = self.known.get("embeddings"), self.heads or 2, self.width or 4
        if self.width is None and embeddings is not None and embeddings.ndim == 2:
            width = embeddings.shape[1]
        if width % heads:
            raise InputError(
                f"width {width} does not split into {heads} heads. Choose a multiple of {heads}, "
                "or give W_Q."
            )
        return heads, width, width // heads

    def _drawn(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Multiples of 1/2 from -1 to 1, by the seed and the name alone.

        Matrices are drawn until the heads beside each other have full rank: else words that differ
        might look alike to all heads.
        """
        text = f"{self.seed} {name}".encode("utf-8", "surrogatepass")
        generator = np.random.default_rng(int.from_bytes(hashlib.sha256(text).digest()[:8], "big"))
        while True:
            drawn = generator.integers(-2, 3, shape) / 2
            beside = drawn if drawn.ndim < 3 else np.concatenate(list(drawn), 1)
            if not name.startswith("W_") or np.linalg.matrix_rank(beside) == min(beside.shape):
                return torch.from_numpy(drawn)


def read_matrices(path: Path) -> JsonObject:
    """Matrices by their names, of a .npz or a .json file; a JSON file may have the sentence too.

    Raises: DataError: no such file, damaged, or another format. Nothing is unpickled.
    """
    if path.suffix not in (".json", ".npz"):
        raise DataError(f"{path}: expected matrices as .json or .npz.")
    read = read_json if path.suffix == ".json" else read_npz
    content: JsonObject = read(path, "file of matrices")
    if not isinstance(content, dict):
        raise DataError(f'{path}: expected an object, as {{"W_Q": [[1, 0], [0, 1]], ...}}.')
    for name in content:
        if name not in (*MATRICES, "sentence", "target"):
            raise InputError(f"{path}: {name}: no such matrix; there are {', '.join(MATRICES)}.")
    return content


def as_tensor(name: str, array: ArrayLike | Tensor) -> Tensor:
    """An array, a tensor or lists as a tensor in float64; an InputError where it is no numbers."""
    if isinstance(array, Tensor):
        return array.detach().cpu().double()
    try:
        return torch.from_numpy(np.array(array, dtype=np.float64))
    except (TypeError, ValueError, OverflowError):
        raise InputError(
            f"{name} is no matrix of numbers. Give rows of one length, as "
            f"{json.dumps([[1, 0], [0, 1]])}."
        ) from None


def _by_head(name: str, matrix: Tensor, heads: int) -> Tensor:
    """(width, heads * depth) -> (heads, width, depth)."""
    if matrix.ndim not in (2, 3) or (matrix.ndim == 2 and matrix.shape[1] % heads):
        raise ShapeError(
            f"{name} is {tuple(matrix.shape)}; expected (width, heads * depth) or (heads, width, "
            f"depth), of {heads} head{'s' * (heads > 1)}."
        )
    return matrix if matrix.ndim == 3 else matrix.reshape(len(matrix), heads, -1).transpose(0, 1)
