"""Embeddings and projections for a walk through attention: given, or drawn from a seed.

Drawn numbers are multiples of 1/2 from -1 to 1, which are easy to multiply by hand. The same word
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

#: Names of the arrays that can be given.
MATRICES = (
    "embeddings", "target_embeddings", "positions",
    "W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O",
)  # fmt: skip
#: Words of a sentence at most, for readable tables; and characters of a word in a table.
_MOST_WORDS, _LONGEST_WORD = 40, 10


@dataclass(frozen=True, eq=False)
class Words:
    """Tokens of a sentence, and their vectors, in float64.

    E: embeddings, P: positions, both (tokens, width), or None where only their sum is known.
    X: the input of the layer: E + P.
    """

    tokens: tuple[str, ...]
    X: Tensor
    E: Tensor | None = None
    P: Tensor | None = None

    @property
    def shown(self) -> tuple[str, ...]:
        """Tokens as they stand in tables."""
        return tuple(visible(token, _LONGEST_WORD) for token in self.tokens)


def words_of(sentence: str | Sequence[str], name: str = "sentence") -> tuple[str, ...]:
    """Split a sentence into words; return given tokens as they are.

    Raises: InputError: no words, or too many to show.

    >>> words_of("the cat sat")
    ('the', 'cat', 'sat')
    """
    words = tuple(sentence.split() if isinstance(sentence, str) else sentence)
    if not words:
        raise InputError(
            f'the {name} is empty; give one word or more, as in: headloom steps "the cat sat".'
        )
    check_length(len(words), name)
    return words


def check_length(count: int, name: str) -> None:
    """Raise an InputError where a sentence is too long to show."""
    if count > _MOST_WORDS:
        raise InputError(
            f"the {name} has {count} tokens; headloom steps shows {_MOST_WORDS} at most. Give a "
            "shorter one; headloom trace and headloom view show long ones."
        )


@dataclass(frozen=True, eq=False)
class Matrices:
    """Given embeddings and matrices; the others are drawn from a seed.

    arrays: arrays, tensors or lists by their names, of MATRICES; None: not given. W_Q, W_K and W_V
        are (width, depth), (width, heads * depth), or (heads, width, depth); W_O (heads * depth,
        width).
    width, heads: of drawn matrices; None: 4, and 2 heads. Given matrices keep theirs.
    seed: of the drawn numbers.

    Raises: InputError: not an array of finite numbers.
    """

    arrays: InitVar[Mapping[str, ArrayLike | Tensor | None]]
    width: int | None = None
    heads: int | None = None
    seed: int = 1
    known: dict[str, Tensor] = field(init=False)

    def __post_init__(self, arrays: Mapping[str, ArrayLike | Tensor | None]) -> None:
        known = {name: _numbers(name, array) for name, array in arrays.items() if array is not None}
        object.__setattr__(self, "known", known)

    @property
    def origin(self) -> str:
        """Origin of the matrices, in words."""
        names = [name for name in MATRICES if name in self.known]
        missing = [name for name in ("W_Q", "W_K", "W_V", "W_O") if name not in self.known]
        if not names:
            return f"random matrices, seed {self.seed}"
        rest = f"; {', '.join(missing)} random, seed {self.seed}" if missing else ""
        return f"given: {', '.join(names)}{rest}"

    def projections(self) -> Projections:
        """Return W_Q, W_K, W_V, W_O and biases of every head. Raises: ShapeError: no fit."""
        known, (heads, width, depth) = self.known, self._sizes()
        p = {
            name: _by_head(name, known[name], heads)
            if name in known
            else self._drawn(name, (heads, width, depth))
            for name in ("W_Q", "W_K", "W_V")
        }
        value_depth = p["W_V"].shape[2]
        output = heads * value_depth, width
        p["W_O"] = known["W_O"] if "W_O" in known else self._drawn("W_O", output)
        for name in ("b_Q", "b_K", "b_V", "b_O"):
            if name in known:
                split = name != "b_O" and known[name].ndim == 1
                p[name] = known[name].reshape(heads, -1) if split else known[name]
        last = p["W_O"].shape[-1:]
        expected = {
            "W_Q": (heads, width, depth), "W_K": (heads, width, depth),
            "W_V": (heads, width, value_depth), "W_O": (heads * value_depth, *last),
            "b_Q": (heads, depth), "b_K": (heads, depth), "b_V": (heads, value_depth),
            "b_O": (*last,),
        }  # fmt: skip
        for name, shape in expected.items():
            if name in p and p[name].shape != shape:
                raise ShapeError(
                    f"steps: {name} is {tuple(p[name].shape)}; expected {shape}, to fit the others."
                )
        return p

    def words(
        self, tokens: Sequence[str] | None, placed: bool = True, name: str = "embeddings"
    ) -> Words:
        """Return tokens with their vectors.

        Args:
            tokens: None: one for each given embedding, named by its position.
            placed: whether positions are added: the given ones, else sinusoidal ones.
            name: of the given embeddings: "embeddings" or "target_embeddings".

        Raises: ShapeError: not one embedding and position for each token.
        """
        known, table, width = self.known.get(name), self.known.get("positions"), self._sizes()[1]
        if tokens is None:
            if known is None:
                raise InputError(f"give a sentence, or {name}.")
            check_length(len(known), "sentence")
            tokens = [f"x{place}" for place in range(len(known))]
        expected = (len(tokens), width)
        if known is None:
            known = torch.stack([self._drawn(f"word {token}", (width,)) for token in tokens])
        if placed:
            table = sinusoidal(*expected).double() if table is None else table[: len(tokens)]
        else:
            table = torch.zeros(expected).double()
        for what, numbers in ((name, known), ("positions", table)):
            if numbers.shape != expected:
                raise ShapeError(
                    f"{what} are {tuple(numbers.shape)}; expected {expected}: a row for each of "
                    f"the {len(tokens)} words, with the width of the matrices."
                )
        return Words(tuple(tokens), known + table, known, table if placed else None)

    def _sizes(self) -> tuple[int, int, int]:
        """Return heads, width and depth, of the first given matrix, else as requested."""
        for name in ("W_Q", "W_K", "W_V"):
            if name in self.known:
                heads, width, depth = _by_head(name, self.known[name], self.heads or 1).shape
                return heads, width, depth
        embeddings, heads = self.known.get("embeddings"), self.heads or 2
        width = self.width or (4 if embeddings is None else embeddings.shape[-1])
        if min(width, heads) < 1 or width % heads:
            raise InputError(
                f"width {width} does not split into {heads} heads. Choose a multiple of {heads}, "
                "or give W_Q."
            )
        return heads, width, width // heads

    def _drawn(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Draw multiples of 1/2 from -1 to 1, by the seed and the name only."""
        text = f"{self.seed} {name}".encode("utf-8", "surrogatepass")
        generator = np.random.default_rng(int.from_bytes(hashlib.sha256(text).digest()[:8], "big"))
        while True:
            drawn = generator.integers(-2, 3, shape) / 2
            beside = drawn if drawn.ndim < 3 else np.concatenate(list(drawn), 1)
            if not name.startswith("W_") or np.linalg.matrix_rank(beside) == min(beside.shape):
                return torch.from_numpy(drawn)


def read_matrices(path: Path) -> JsonObject:
    """Read matrices by their names from a .npz or .json file.

    Raises: DataError: no such file, damaged, or another format. Nothing is unpickled.
    """
    if path.suffix not in (".json", ".npz"):
        raise DataError(f"{path}: expected matrices as .json or .npz.")
    read = read_json if path.suffix == ".json" else read_npz
    content: JsonObject = read(path, "file of matrices")
    if not isinstance(content, dict):
        raise DataError(f'{path}: expected an object, as {{"W_Q": [[1, 0], [0, 1]], ...}}.')
    return content


def _numbers(name: str, array: ArrayLike | Tensor) -> Tensor:
    """Convert an array, a tensor or lists to a tensor in float64."""
    if name not in MATRICES:
        raise InputError(f"steps: no matrix {name!r}; expected one of {', '.join(MATRICES)}.")
    try:
        numbers = torch.as_tensor(
            array.detach().cpu()
            if isinstance(array, Tensor)
            else np.array(array, dtype=np.float64, ndmin=1)
        ).double()
    except (TypeError, ValueError, OverflowError):
        raise InputError(
            f"{name} is not a matrix of numbers. Give rows of equal length, as "
            f"{json.dumps([[1, 0], [0, 1]])}."
        ) from None
    if not bool(numbers.isfinite().all()):
        raise InputError(f"steps: {name} has a number that is not finite. Give finite numbers.")
    return numbers


def _by_head(name: str, matrix: Tensor, heads: int) -> Tensor:
    """Reshape (width, heads * depth) to (heads, width, depth)."""
    if matrix.ndim not in (2, 3) or (matrix.ndim == 2 and matrix.shape[1] % heads):
        raise ShapeError(
            f"{name} is {tuple(matrix.shape)}; expected (width, heads * depth) or (heads, width, "
            f"depth) for {heads} head{'s' * (heads > 1)}."
        )
    return matrix if matrix.ndim == 3 else matrix.reshape(len(matrix), heads, -1).transpose(0, 1)
