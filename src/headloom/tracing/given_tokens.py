"""The tokens of arrays that somebody has: which sequence a layer is of, and its names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from headloom.errors import InputError
from headloom.formats.tokens import Tokens
from headloom.mechanism.grid import Grid
from headloom.tracing.names import texts_known, token_names
from headloom.tracing.recording.sequences import InputSequence

__all__ = ["GivenTokens", "names_of_kind"]

_NAMES = ("tokens", "source", "target")
#: The sequences of the queries and of the keys of a layer, by its kind.
_ENDS = {
    "encoder": ("source", "source"),
    "decoder": ("target", "target"),
    "cross": ("target", "source"),
}


def names_of_kind(kind: str, pair: bool) -> tuple[str, str]:
    """The sequences of the queries and the keys of a layer of a kind.

    pair: whether some layers look from one sequence at another.
    """
    return _ENDS[kind] if pair else ("tokens", "tokens")


class GivenTokens:
    """The sequences of layers that are given: see `NamesOfSequences`.

    Args:
        operation: what errors begin with.
        tokens: the tokens: texts, or ids; {"source": ..., "target": ...} for an encoder-decoder;
            of a batch, one for each input. None: positions have numbers.
        tokenizer: names ids: see `token_names`.
        samples: inputs of the batch.
        pair: whether one sequence looks at another.
    """

    plain = False

    def __init__(
        self, operation: str, tokens: Any, tokenizer: Any, samples: int, pair: bool
    ) -> None:
        self._operation, self._tokenizer, self.samples = operation, tokenizer, samples
        self._pair = pair or (isinstance(tokens, Mapping) and "tokens" not in tokens)
        self._given: dict[str, list[list[str]]] = {}
        self._read: set[str] = set()
        if isinstance(tokens, Mapping) and not tokens:
            raise InputError(
                f'{operation}: no tokens in an empty dict; expected "tokens", or "source" and '
                '"target".'
            )
        if tokens is not None and not isinstance(tokens, Mapping):
            if self._pair:
                raise InputError(
                    f"{operation}: tokens of one sequence for layers that look from one at "
                    'another; expected tokens={"source": ..., "target": ...}.'
                )
            tokens = {"tokens": tokens}
        for name, given in (tokens or {}).items():
            if name not in _NAMES:
                raise InputError(
                    f'{operation}: tokens of {name!r}; expected "tokens", or "source" and "target".'
                )
            self._given[name] = self._of_batch(name, given)
        #: The length of each sequence: of its tokens, or of its first layer.
        self._lengths = {name: len(given[0]) for name, given in self._given.items()}

    def _of_batch(self, name: str, given: Any) -> list[list[str]]:
        """The names of the tokens of a sequence, for each input."""
        if isinstance(given, (Tensor, np.ndarray)) and given.ndim > 1:
            given = list(given)
        if isinstance(given, str) or not isinstance(given, (Sequence, Tensor, np.ndarray)):
            raise InputError(
                f"{self._operation}: the tokens of {name!r} are {type(given).__name__}; expected a "
                "list with a text, or an id, for each position."
            )
        nested = len(given) > 0 and isinstance(given[0], (list, tuple, np.ndarray, Tensor))
        if nested and not (isinstance(given[0], (np.ndarray, Tensor)) and given[0].ndim == 0):
            if len(given) != self.samples:
                raise InputError(
                    f"{self._operation}: {len(given)} lists of tokens for {self.samples} inputs; "
                    "expected one for each."
                )
            of_inputs = [self._named(name, entry) for entry in given]
            if len({len(names) for names in of_inputs}) > 1:
                raise InputError(
                    f"{self._operation}: the inputs have different numbers of tokens; expected "
                    "one for each position of the arrays, padding too."
                )
            return of_inputs
        return [self._named(name, given)] * self.samples

    def _named(self, name: str, given: Any) -> list[str]:
        if isinstance(given, Tokens):
            return given
        entries = given.tolist() if isinstance(given, (Tensor, np.ndarray)) else list(given)
        if all(isinstance(entry, str) for entry in entries):
            return [str(entry) for entry in entries]
        if all(isinstance(entry, (int, np.integer)) for entry in entries):
            return token_names(entries, self._tokenizer)
        raise InputError(
            f"{self._operation}: the tokens of {name!r} are neither all texts nor all ids; "
            "expected one or the other for each position."
        )

    def names_of(self, kind: str) -> tuple[str, str]:
        """The sequences of the queries and the keys of a layer of a kind."""
        return names_of_kind(kind, self._pair)

    def length(self, name: str) -> int | None:
        """How many tokens were given of a sequence; None: none were."""
        return len(self._given[name][0]) if name in self._given else None

    def ends(
        self,
        path: str,
        kind: str,
        queries: int,
        keys: int,
        grids: tuple[Grid, Grid] | None = None,
    ) -> tuple[str, str]:
        """See NamesOfSequences."""
        named = self.names_of(kind)
        self._read.update(named)
        if kind == "decoder" and queries < keys:
            of_keys = self._of_length(path, "keys", named[1], keys)
            return f"{of_keys}-{queries}-from-{keys - queries}", of_keys
        return (
            self._of_length(path, "queries", named[0], queries),
            self._of_length(path, "keys", named[1], keys),
        )

    def check_all_read(self) -> None:
        """Raise an InputError where tokens were given that belong to no layer."""
        for name in self._given:
            if name not in self._read:
                raise InputError(
                    f"{self._operation}: no layer reads the tokens of {name!r}. Say which layer "
                    'looks from one sequence at another: kind="cross", or a list with each kind.'
                )

    def _of_length(self, path: str, what: str, name: str, length: int) -> str:
        """The sequence of a length: where no tokens are given, every length is one of its own."""
        own = self._lengths.setdefault(name, length)
        if own == length:
            return name
        if name in self._given:
            raise InputError(
                f"{self._operation}: layer {path} has {length} {what}, the sequence {name!r} "
                f"{own} tokens; expected a token for each. Give all tokens that the model read, "
                'special ones too; if the dimensions are (positions, heads, depth), layout="NHD".'
            )
        return f"{name}-{length}"

    def of(self, name: str, length: int, sample: int) -> InputSequence:
        """See NamesOfSequences."""
        # The last queries of as many keys, of a later step of a generation.
        whole, _, first = name.partition(f"-{length}-from-")
        start = int(first or 0)
        if whole in self._given:
            names = self._given[whole][sample]
            names = list(names)[start:] if first else names
            return InputSequence(slice(0, length), names, {**texts_known(names)})
        return InputSequence(slice(0, length), [f"position {start + i}" for i in range(length)])
