"""Traces of layers that are given: their tokens, and the way to the session."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headloom.errors import InputError
from headloom.formats.tokens import Tokens
from headloom.formats.trace import TraceData
from headloom.mechanism.graph import Keep
from headloom.mechanism.grid import Grid
from headloom.tracing.names import texts_known, token_names
from headloom.tracing.options import TraceOptions, check_keep, check_save
from headloom.tracing.recording.sequences import InputSequence
from headloom.tracing.recording.session import Session

__all__ = ["GivenTokens", "TokensGiven", "ends_of_kind", "given_traces"]

#: The texts, or the ids, of the positions of one input.
TokensOfInput = Sequence[str] | Sequence[int] | NDArray[np.integer] | Tensor
#: Of one input or of each input of a batch, of one sequence or of each by its name.
TokensGiven = TokensOfInput | Sequence[TokensOfInput]

_ENDS = {
    "encoder": ("source", "source"),
    "decoder": ("target", "target"),
    "cross": ("target", "source"),
}


def ends_of_kind(kind: str, pair: bool) -> tuple[str, str]:
    """Return the sequences of the queries and the keys of a layer of a kind.

    pair: whether some layers look from one sequence at another.
    """
    return _ENDS[kind] if pair else ("tokens", "tokens")


class GivenTokens:
    """The sequences of layers that are given: see `NamesOfSequences`.

    Args:
        tokens: the texts, or ids, of the positions; {"source": ..., "target": ...} where one
            sequence looks at another; of a batch, one for each input. None: positions have numbers.
        tokenizer: names ids: see `token_names`.
        samples: inputs of the batch.
        pair: whether one sequence looks at another.
    """

    plain = False

    def __init__(
        self,
        tokens: TokensGiven | Mapping[str, TokensGiven] | None,
        tokenizer: object,
        samples: int,
        pair: bool,
    ) -> None:
        self._tokenizer, self.samples = tokenizer, samples
        named = tokens if isinstance(tokens, Mapping) else {"tokens": tokens}
        self.pair = pair or "source" in named
        expected = {"source", "target"} if self.pair else {"tokens"}
        if tokens is not None and set(named) - expected:
            raise InputError(
                f"tokens of {', '.join(map(repr, named))}; expected tokens of one sequence, or "
                'tokens={"source": ..., "target": ...} where one looks at another.'
            )
        self._given = {
            name: self._of_batch(name, given) for name, given in named.items() if given is not None
        }
        self._unread = set(self._given)
        #: The length of each sequence: of its tokens, or of its first layer.
        self._lengths = {name: len(given[0]) for name, given in self._given.items()}

    def _of_batch(self, name: str, given: TokensGiven) -> list[list[str]]:
        """The names of the tokens of a sequence, for each input."""
        if isinstance(given, str) or not isinstance(given, (Sequence, Tensor, np.ndarray)):
            raise InputError(
                f"the tokens of {name!r} are {type(given).__name__}; expected a list with a text, "
                "or an id, for each position."
            )
        entries = given.tolist() if isinstance(given, (Tensor, np.ndarray)) else given
        if len(entries) and not isinstance(entries[0], (str, int, np.integer)):
            inputs = [self._named(name, entry) for entry in entries]
            if len(inputs) != self.samples or len({len(names) for names in inputs}) > 1:
                raise InputError(
                    f"the tokens of {name!r} are {len(inputs)} lists of "
                    f"{sorted({len(names) for names in inputs})} tokens for {self.samples} inputs; "
                    "expected one for each, as long as the arrays, padding too."
                )
            return inputs
        return [self._named(name, entries)] * self.samples

    def _named(self, name: str, given: object) -> list[str]:
        if isinstance(given, Tokens):
            return given
        entries = given.tolist() if isinstance(given, (Tensor, np.ndarray)) else given
        if isinstance(entries, Sequence) and all(isinstance(one, str) for one in entries):
            return [str(entry) for entry in entries]
        if isinstance(entries, Sequence) and all(isinstance(x, (int, np.integer)) for x in entries):
            return token_names(entries, self._tokenizer)
        raise InputError(
            f"the tokens of {name!r} are neither all texts nor all ids; expected one or the other "
            "for each position."
        )

    def ends(
        self,
        path: str,
        kind: str,
        queries: int,
        keys: int,
        grids: tuple[Grid, Grid] | None = None,
    ) -> tuple[str, str]:
        """See NamesOfSequences."""
        names = ends_of_kind(kind, self.pair)
        self._unread.difference_update(names)
        if kind == "decoder" and queries < keys:
            of_keys = self._of_length(path, names[1], keys)
            return f"{of_keys}-{queries}-from-{keys - queries}", of_keys
        return self._of_length(path, names[0], queries), self._of_length(path, names[1], keys)

    def check_all_read(self) -> None:
        """Raise an InputError where tokens were given that belong to no layer."""
        if self._unread:
            raise InputError(
                f"no layer reads the tokens of {', '.join(map(repr, self._unread))}. Say which "
                'layer looks from one sequence at another: kind="cross", or a list with each kind.'
            )

    def _of_length(self, path: str, name: str, length: int) -> str:
        """The sequence of a length: where no tokens are given, every length is one of its own."""
        known = self._lengths.setdefault(name, length)
        if known != length and name in self._given:
            raise InputError(
                f"layer {path} has {length} positions, the sequence {name!r} {known} tokens; "
                "expected a token for each, special ones too. If the dimensions are (positions, "
                'heads, depth), layout="NHD".'
            )
        return name if known == length else f"{name}-{length}"

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


def given_traces(
    sequences: GivenTokens,
    record: Callable[[Session], None],
    what: str,
    model: str | None,
    keep: Keep,
    save: Path | str | None,
    *,
    overwrite: bool = False,
    queries_keys: bool = False,
    dtype: torch.dtype | None = None,
) -> list[TraceData]:
    """Return the trace of each input; where it is saved, opened from there.

    Args:
        sequences: names the positions.
        record: hands each layer to the session.
        what: what the traces say that they were made of.
        model: what they call the model.
        keep, save, overwrite, queries_keys, dtype: see `headloom.from_queries_keys`.
    """
    operation = f"a trace of {what}"
    check_keep(keep, operation)
    check_save(save, operation)
    description = {"name": model or what, "given": what}
    # There is no model to hold the layers against.
    options = TraceOptions(
        keep=keep, queries_keys=queries_keys, save=save, dtype=dtype, overwrite=overwrite,
        verify=False, sampled=False,
    )  # fmt: skip
    with Session(options) as session:
        session.begin(sequences, sequences.samples, description)
        record(session)
        sequences.check_all_read()
        return session.end([])
