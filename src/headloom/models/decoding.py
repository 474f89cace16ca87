"""Decoding: from logits, step by step, to sequences. Greedy, beam search and sampling.

All work on any model with ``step(tokens, state) -> logits`` and a key/value cache, and never
compute a position twice.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from headloom.errors import InputError
from headloom.models.blocks import BlockCache
from headloom.models.next_tokens import best_continuations, closed_up, draw, in_place


@dataclass(eq=False)
class DecodingState:
    """What a model remembers between steps.

    caches: keys and values of each block.
    source: what the encoder gave, (sources, source positions, width), if there is one. Each may
        have several sequences of the batch, which follow each other: the hypotheses of a beam.
    source_real: bool, (sources, source positions), False at padding; None: no padding.
    position: how many tokens have been seen.
    """

    caches: list[BlockCache]
    source: Tensor | None = None
    source_real: Tensor | None = None
    position: int = 0

    def reorder(self, order: Tensor, sources: Tensor | None = None) -> None:
        """Take sequence ``order[b]`` as sequence b; the batch may grow or shrink.

        sources: likewise of the sources; None: all stay.
        """
        for cache in self.caches:
            cache.reorder(order, sources)
        if sources is not None and self.source is not None:
            self.source = self.source[sources]
        if sources is not None and self.source_real is not None:
            self.source_real = self.source_real[sources]


class Stepper(Protocol):
    """A model that can be decoded."""

    def step(self, tokens: Tensor, state: DecodingState) -> Tensor:
        """Logits (batch, new positions, vocabulary) after new tokens (batch, new positions).

        state: what earlier calls left; advanced in place.
        """


class WithoutTokens(Stepper):
    """A model that never writes some tokens, as padding that it was not trained on."""

    def __init__(self, model: Stepper, *tokens: int) -> None:
        self._model, self._tokens = model, list(tokens)

    def step(self, tokens: Tensor, state: DecodingState) -> Tensor:
        logits = self._model.step(tokens, state)
        logits[..., self._tokens] = -torch.inf
        return logits


@dataclass(frozen=True)
class Hypothesis:
    """A sequence without its start and end tokens, and its log-probability, in nats.

    ended: whether the end token was written, and is part of the probability; else the sequence was
        cut at the length that was asked for.
    """

    tokens: list[int]
    log_probability: float
    ended: bool = True

    def score(self, length_penalty: float) -> float:
        """What beams are ranked by: the log-probability over the length, the end token counted.

            score = log p / length^length_penalty

        Source: Wu et al. 2016, "Google's Neural Machine Translation System", in this simpler form.

        >>> Hypothesis([5, 6, 7], -2.0).score(1.0)
        -0.5
        """
        return self.log_probability / float(max(1, len(self.tokens) + self.ended) ** length_penalty)


@torch.no_grad()
def beam_hypotheses(
    model: Stepper,
    state: DecodingState,
    batch: int,
    *,
    start: int,
    end: int,
    max_length: int | Sequence[int],
    beam: int = 5,
    length_penalty: float = 1.0,
    progress: Callable[[int], None] = lambda length: None,
) -> list[list[Hypothesis]]:
    """The likeliest sequences that a beam finds, the best first.

    They are ranked by `Hypothesis.score`. A search goes on until as many have ended as the
    beam holds, and none that goes on scores above the worst of them, as in Transformers; where none
    has ended at the greatest length, they are cut there. A beam of 1 takes the likeliest token at
    every step (greedy): what goes on beside an end is less likely than it, and as long.

    start, end, beam, length_penalty: see `headloom.Transformer.generate`; state: fresh from the
    model's start(), used up; batch: number of sequences; max_length: tokens after which a sequence
    is cut, of all or of each; progress: told how many tokens the sequences have that go on.

    Returns: of each sequence, those that ended, as many as the beam holds at most; fewer where the
        greatest length came first.
    """
    limits, length = _limits(max_length, batch), 0
    finished: list[list[Hypothesis]] = [[] for _ in range(batch)]
    device = next(iter(model.parameters())).device if isinstance(model, torch.nn.Module) else None
    # Every sequence starts as one hypothesis; the others are impossible until the first step.
    state.reorder(torch.arange(batch, device=device).repeat_interleave(beam))
    alive = list(range(batch))
    scores = torch.full((batch, beam), -torch.inf, device=device)
    scores[:, 0] = 0
    written = torch.full((batch, beam, 1), start, dtype=torch.long, device=device)

    while count := len(alive):
        length += 1
        progress(length)
        logits = model.step(written[:, :, -1].reshape(count * beam, 1), state)[:, -1]
        # Twice the beam, so that enough go on even if every hypothesis could end here.
        count_kept = min(2 * beam, beam * logits.shape[-1])
        best, parents, tokens = best_continuations(logits, scores, count_kept)

        ends = tokens == end
        # A vocabulary smaller than the beam leaves places that no hypothesis can fill.
        for row, rank in (ends & best.isfinite())[:, :beam].nonzero().tolist():
            words = written[row, parents[row, rank], 1:].tolist()
            finished[alive[row]].append(Hypothesis(words, float(best[row, rank])))
        scores, order = best.masked_fill(ends, -torch.inf).topk(beam)
        # Whoever goes on stays in the place of its parent, so that caches copy the others alone.
        ranks = torch.tensor(
            [in_place(row) for row in parents.gather(1, order).tolist()], device=device
        )
        scores, order = scores.gather(1, ranks), order.gather(1, ranks)
        parents, tokens = parents.gather(1, order), tokens.gather(1, order)
        written = torch.cat(
            (written.gather(1, parents[..., None].expand(-1, -1, length)), tokens[..., None]), 2
        )
        going_on = []
        for row, sequence in enumerate(alive):
            if length >= limits[sequence]:
                finished[sequence] = finished[sequence] or _cut(written[row], scores[row])
            elif not _settled(finished[sequence], scores[row], length, length_penalty):
                going_on.append(row)
        going_on = closed_up(going_on)
        keep = torch.tensor(going_on, dtype=torch.long, device=device)
        all_stay = len(going_on) == count
        state.reorder((keep[:, None] * beam + parents[keep]).flatten(), None if all_stay else keep)
        alive = [alive[row] for row in going_on]
        scores, written = scores[keep], written[keep]

    return [
        sorted(ended, key=lambda hypothesis: -hypothesis.score(length_penalty))[:beam]
        for ended in finished
    ]


def _limits(max_length: int | Sequence[int], batch: int) -> list[int]:
    """The greatest length of each sequence. Raises: InputError: none may have a token."""
    limits = list(max_length) if isinstance(max_length, Sequence) else [max_length] * batch
    if len(limits) != batch or any(limit < 1 for limit in limits):
        raise InputError(
            f"max_length is {max_length} for {batch} sequences; expected a number for each, or for "
            "all, 1 or more."
        )
    return limits


def _cut(written: Tensor, scores: Tensor) -> list[Hypothesis]:
    """The hypotheses of a sequence, none of which has ended, where they are."""
    real = scores.isfinite()
    real[scores.argmax()] = True
    return [
        Hypothesis(written[rank, 1:].tolist(), float(scores[rank]), ended=False)
        for rank in real.nonzero()[:, 0].tolist()
    ]


def _settled(
    finished: list[Hypothesis], scores: Tensor, length: int, length_penalty: float
) -> bool:
    """Whether a search can stop: as many have ended as the beam holds, and none alive is better.

    One that now scores below the best that has ended may still pass it: the tokens to come can be
    likelier than the mean of those written. The beam's worst is the bound, therefore.

    scores: log-probabilities of those alive.
    """
    beam = len(scores)
    best = heapq.nlargest(beam, (hypothesis.score(length_penalty) for hypothesis in finished))
    return len(best) == beam and best[-1] >= float(scores.max()) / float(length**length_penalty)


@torch.no_grad()
def sample(
    model: Stepper,
    state: DecodingState,
    prompt: Tensor,
    *,
    length: int,
    temperature: float = 1.0,
    top: int | None = None,
    top_p: float | None = None,
    end: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The ids drawn after a prompt, (batch, at most length): see `LanguageModel.generate`.

    state: fresh from the model's start(), advanced; top_p: of what temperature and `top` leave.
    """
    if not prompt.shape[1]:
        raise InputError("the prompt is empty; give at least one token.")
    drawn: list[Tensor] = []
    last = prompt
    ended = torch.zeros(len(prompt), dtype=torch.bool, device=prompt.device)
    for _ in range(length):
        logits = model.step(last, state)[:, -1]
        last = draw(logits, temperature=temperature, top=top, top_p=top_p, generator=generator)
        drawn.append(last)
        if end is not None:
            ended |= last[:, 0] == end
            if bool(ended.all()):
                break
    return torch.cat(drawn, 1) if drawn else prompt[:, :0]
