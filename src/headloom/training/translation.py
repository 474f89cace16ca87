"""Translation by beam search, of a list of texts or an endless stream of lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from headloom.errors import HeadloomError, InputError
from headloom.models.decoding import Hypothesis, Stepper, WithoutTokens, beam_hypotheses
from headloom.models.dense import Products, products
from headloom.models.predictor import Predictor, other_kind
from headloom.models.transformer import Transformer
from headloom.training.batches import bucketed, padded
from headloom.training.text import PretrainedVocabulary, Vocabulary


@dataclass(frozen=True)
class Search:
    """Settings of the beam search.

    beam: hypotheses kept at every step; 1 = greedy.
    length_penalty: see `beam_hypotheses`.
    batch_tokens: source tokens decoded at once, beams counted.
    products: of the linear maps, see `headloom.models.dense.products`.
    """

    beam: int = 5
    length_penalty: float = 1.0
    batch_tokens: int = 8_192
    products: Products = "float32"


@dataclass(frozen=True, eq=False)
class TranslatedLine:
    """Line and its translations.

    number: of the line, from 1.
    source: the line, stripped of spaces as the training texts are.
    ids: its tokens, without the end token.
    hypotheses: the best first; none of a line without tokens.
    """

    number: int
    source: str
    ids: list[int]
    hypotheses: list[Hypothesis]


def translate(
    model: Predictor, vocabulary: Vocabulary, texts: Sequence[str], search: Search | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[str]:  # fmt: skip
    """Translate texts, by free-running decoding.

    Args:
        model: a Transformer, in evaluation mode.
        vocabulary: its tokens.
        texts: sources, stripped of spaces; an empty one gives an empty translation.
        search: settings.
        progress: called at every token with the texts done and their total; unfinished texts count
            by the share of their maximum length.

    Returns: one translation a text, in their order.
    """
    encoded = vocabulary.encode_all([text.strip() for text in texts])
    ranked = _hypotheses(_translator(model), vocabulary, encoded, search or Search(), progress)
    return [vocabulary.decode(best[0].tokens) if best else "" for best in ranked]


def _hypotheses(
    model: Transformer, vocabulary: Vocabulary, sources: Sequence[Sequence[int]], search: Search,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[list[Hypothesis]]:  # fmt: skip
    """Search hypotheses for each source (ids without the end token); none for an empty one."""
    ranked: list[list[Hypothesis]] = [[] for _ in sources]
    full = [index for index, source in enumerate(sources) if source]
    done = len(sources) - len(full)
    lengths = [(len(sources[index]) + 1,) for index in full]
    for batch in bucketed(lengths, max(1, search.batch_tokens // search.beam)):

        def report(share: float, before: int = done, size: int = len(batch)) -> None:
            progress(before + int(share * size), len(sources))

        plan = [full[place] for place in batch]
        ids = padded([[*sources[index], vocabulary.end] for index in plan], vocabulary.pad)
        with products(search.products):
            decoded = _decode(model, vocabulary, ids, search, report)
        for index, hypotheses in zip(plan, decoded, strict=True):
            ranked[index] = hypotheses
        done += len(batch)
        progress(done, len(sources))
    return ranked


def translated_windows(
    model: Predictor, vocabulary: Vocabulary, lines: Iterable[str], search: Search, window: int
) -> Iterator[list[TranslatedLine]]:
    """Translate a stream of lines in constant memory.

    Each window of lines is read, translated in order of length, and yielded in its original order.

    Args:
        model: a Transformer, in evaluation mode.
        vocabulary: its tokens.
        lines: sources, stripped of spaces.
        search: settings.
        window: lines at once.

    Raises: InputError: a line is longer than the model's positions; any error of `lines`; both
        after the lines before.
    """
    translator = _translator(model)
    room, number, rest = translator.architecture.room, 1, iter(lines)
    error: HeadloomError | None = None
    while error is None:
        texts: list[str] = []
        try:
            texts.extend(line.strip() for line in islice(rest, window))
        except HeadloomError as problem:
            error = problem
        if not texts:
            break
        sources = vocabulary.encode_all(texts)
        for place, source in enumerate(sources):
            if room is not None and len(source) >= room:
                error = InputError(
                    f"line {number + place} has {len(source) + 1:,} tokens with its end, the "
                    f"model's positions end at {room:,}. Split it, or train with a larger "
                    "model.max_length; the lines before it are translated."
                )
                texts, sources = texts[:place], sources[:place]
                break
        ranked = _hypotheses(translator, vocabulary, sources, search)
        yield [
            TranslatedLine(number + place, *line)
            for place, line in enumerate(zip(texts, sources, ranked, strict=True))
        ]
        number += len(texts)
    if error is not None:
        raise error


def _translator(model: Predictor) -> Transformer:
    if not isinstance(model, Transformer):
        raise other_kind(model, "translate", "a translator")
    return model


@torch.no_grad()
def _decode(
    model: Transformer, vocabulary: Vocabulary, source: Tensor, search: Search,
    progress: Callable[[float], None],
) -> list[list[Hypothesis]]:  # fmt: skip
    # The limit depends on each text's own source, so that an endless translation is cut at the same
    # place in any batch.
    limits = (2 * (source != vocabulary.pad).sum(1) + 32).tolist()
    room = model.architecture.room
    if room is not None:
        limits = [min(limit, room) for limit in limits]

    def report(length: int) -> None:
        progress(length / max(limits))

    stepper: Stepper = model
    if isinstance(vocabulary, PretrainedVocabulary):
        stepper = WithoutTokens(model, vocabulary.pad)  # training did not exclude padding
    return beam_hypotheses(
        stepper, model.start(source), len(source), start=vocabulary.start, end=vocabulary.end,
        max_length=limits, beam=search.beam, length_penalty=search.length_penalty, progress=report,
    )  # fmt: skip
