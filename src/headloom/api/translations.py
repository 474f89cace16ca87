"""Lines without end, translated; with the n best, their scores, and which words belong together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from headloom.analysis.alignment.align import AlignmentOptions, check_heads
from headloom.analysis.alignment.heads import best_few, better_steps
from headloom.analysis.alignment.links import links_by, pairs_of
from headloom.analysis.alignment.words import (
    STEPS,
    AligningHead,
    WordWeights,
    parts_by_offsets,
)
from headloom.api.model import Pairs
from headloom.api.word_alignment import PairReader
from headloom.errors import InputError
from headloom.formats.files import JsonObject
from headloom.formats.pharaoh import pharaoh_line
from headloom.models.decoding import Hypothesis
from headloom.models.transformer import Transformer
from headloom.training.batches import bucketed, padded
from headloom.training.inference import TrainedRun
from headloom.training.text import Vocabulary
from headloom.training.translation import Search, translated_windows

__all__ = ["Aligner", "Request", "described_windows", "plain_windows"]

#: Pairs on which heads are chosen by agreement, at most: the first ones, as of `headloom align`.
_ENOUGH = 1_000
#: Tokens of sources and targets that are read at once.
_BATCH_TOKENS = 4_096
#: Digits of weights and of log-probabilities.
_DIGITS = 6


@dataclass(frozen=True)
class Request:
    """What `headloom translate` was asked.

    search: how translations are looked for; window: lines read at once; n_best: hypotheses a line;
    heads: "none" or "all", "agreement" or names, see `Aligner`; method: from weights to links.
    """

    search: Search = field(default_factory=Search)
    window: int = 2_000
    n_best: int = 1
    heads: str = "all"
    method: str = "mutual"

    def __post_init__(self) -> None:
        """Raise an InputError for what cannot be asked."""
        if self.n_best > self.search.beam:
            raise InputError(
                f"--n-best {self.n_best}: a beam of {self.search.beam} holds no more than "
                f"{self.search.beam}. Give --beam {self.n_best}, or a smaller --n-best."
            )
        if self.heads == "best":
            raise InputError(
                "--heads best: the best heads are chosen against gold links, by headloom align. "
                "Take "
                "those that it names, as 3.1,5.2:write, or agreement."
            )
        if self.heads not in ("all", "none"):
            _ = AlignmentOptions(self.heads, self.method)


def plain_windows(run: TrainedRun, lines: Iterable[str], request: Request) -> Iterator[list[str]]:
    """The best translation of each line, a window at a time, each of one line.

    Raises: see `translated_windows`.
    """
    words = run.vocabulary
    for window in translated_windows(run.model, words, lines, request.search, request.window):
        texts = (words.decode(line.hypotheses[0].tokens) for line in window if line.hypotheses)
        yield [" ".join(next(texts).splitlines()) if line.hypotheses else "" for line in window]


def described_windows(
    run: TrainedRun, lines: Iterable[str], request: Request
) -> Iterator[list[JsonObject]]:
    """What `headloom translate --json` prints of each line, a window at a time: docs/formats.md.

    Raises: see `translated_windows`; InputError: no such head.
    """
    aligner = None if request.heads == "none" else Aligner(run, request.heads, request.method)
    words, penalty = run.vocabulary, request.search.length_penalty
    for window in translated_windows(run.model, words, lines, request.search, request.window):
        chosen = [line.hypotheses[: request.n_best] for line in window]
        pairs = [
            (line.source, hypothesis)
            for line, best in zip(window, chosen, strict=True)
            for hypothesis in best
        ]
        aligned = iter([{}] * len(pairs)) if aligner is None else aligner.described(pairs)
        heads = [] if aligner is None else [str(head) for head in aligner.heads]
        yield [
            {
                "line": line.number,
                "source": line.source,
                "source_tokens": words.token_strings(line.ids),
                "source_words": line.source.split(),
                "heads": heads if best else [],
                "hypotheses": [
                    {**_described(words, hypothesis, penalty), **next(aligned)}
                    for hypothesis in best
                ],
            }
            for line, best in zip(window, chosen, strict=True)
        ]


def _described(words: Vocabulary, hypothesis: Hypothesis, penalty: float) -> JsonObject:
    text = words.decode(hypothesis.tokens)
    return {
        "text": text,
        "log_probability": round(hypothesis.log_probability, _DIGITS),
        "score": round(hypothesis.score(penalty), _DIGITS),
        "ended": hypothesis.ended,
        "tokens": words.token_strings(hypothesis.tokens),
        "words": text.split(),
    }


class Aligner:
    """Which words of a source each word of its translation looks at, by a run's own heads.

    Args:
        run: of a translator.
        heads: "all", the mean of every head of cross-attention by the step that writes a word;
            "agreement", those whose two directions agree best on the first window, each by its
            better step, as `headloom align` chooses; or names, as 3.1,5.2:write.
        method: from weights to links, see `headloom.analysis.alignment.links`.
    """

    def __init__(self, run: TrainedRun, heads: str = "all", method: str = "mutual") -> None:
        self.run, self.method = run, links_by(method)
        self._named = None if heads == "all" else AlignmentOptions(heads, method).named
        self._agreement = heads == "agreement"
        # The mean over all layers is blurred by those that already look for the next word, unless
        # it is that of the rows which look for this one: docs/alignment.md has figures.
        self._reader = PairReader(run.model, ("write",) if heads == "all" else STEPS)
        #: The places of the heads that are taken; none before the first pairs are read.
        self._places: list[int] = []

    @property
    def heads(self) -> list[AligningHead]:
        """The heads whose mean is taken; none before the first pairs are read."""
        return [self._reader.heads[place] for place in self._places]

    def read(self, pairs: Sequence[tuple[str, Hypothesis]]) -> Iterator[WordWeights]:
        """The weights between the words of sources and what was written for them, in order.

        Each is the mean of the heads, (1, target words, source words): those of every head would
        be many times the size of the text.
        """
        if pairs and not self._places:
            self._places = self._choice(pairs)
        read: dict[int, WordWeights] = {}
        for place, weights in self._weights(pairs):
            mean = weights.weights[self._places].mean(0, keepdim=True)
            read[place] = WordWeights(mean, (), weights.source, weights.target)
        return (read.pop(place) for place in range(len(pairs)))

    def described(self, pairs: Sequence[tuple[str, Hypothesis]]) -> Iterator[JsonObject]:
        """What `read` gives, and the links it becomes, of each pair."""
        return map(self._linked, self.read(pairs))

    def _linked(self, weights: WordWeights) -> JsonObject:
        return {
            "alignment": pharaoh_line(pairs_of(self.method(weights.weights)[0])),
            "weights": [[round(w, _DIGITS) for w in row] for row in weights.weights[0].tolist()],
        }

    def _choice(self, pairs: Sequence[tuple[str, Hypothesis]]) -> list[int]:
        """The places of the heads whose mean is taken."""
        first = [
            weights for _, weights in self._weights(pairs[: _ENOUGH if self._agreement else 1])
        ]
        every = self._reader.heads
        if self._named is not None:
            check_heads(self._named, every)
            return [every.index(head) for head in self._named]
        if not self._agreement:
            return [*range(len(every))]
        places, _ = better_steps(first)
        chosen = best_few([each.of(places) for each in first], None, self.method).chosen
        return [places[place] for place in chosen]

    def _weights(
        self, pairs: Sequence[tuple[str, Hypothesis]]
    ) -> Iterator[tuple[int, WordWeights]]:
        """The place of each pair and its weights, of every head, those of like length together."""
        words = self.run.vocabulary
        sources = [words.encode_with_offsets(text) for text, _ in pairs]
        lengths = [
            (len(ids) + 1, len(hypothesis.tokens) + 1)
            for (ids, _), (_, hypothesis) in zip(sources, pairs, strict=True)
        ]
        # A translation that was cut where the positions end has one token more, which no row reads.
        assert isinstance(self.run.model, Transformer)  # it has written them
        room = self.run.model.architecture.room
        for plan in bucketed(lengths, _BATCH_TOKENS):
            chosen = [(pairs[i][0], *sources[i], pairs[i][1].tokens) for i in plan]
            written = [words.decode_with_offsets(tokens) for *_, tokens in chosen]
            read = [[words.start, *tokens][:room] for *_, tokens in chosen]
            inputs = {
                "source": padded([[*ids, words.end] for _, ids, _, _ in chosen], words.pad),
                "target": padded(read, words.pad),
            }
            targets = [parts_by_offsets(text, [(0, 0), *places]) for text, places in written]
            joined = Pairs(
                inputs,
                [parts_by_offsets(text, [*places, (0, 0)]) for text, _, places, _ in chosen],
                [
                    replace(parts, unread=parts.share.shape[1] - len(row))
                    for parts, row in zip(targets, read, strict=True)
                ],
            )
            yield from zip(plan, self._reader.read(joined), strict=True)
