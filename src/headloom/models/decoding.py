"""Decoding of sequences from logits, step by step: greedy, beam search and sampling.

All work on any model with ``step(tokens, state) -> logits`` and a key/value cache; no position is
computed twice.
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
    """State of a model between decoding steps.

    caches: keys and values of each block.
    source: outputs of the encoder, (sources, source positions, width), if there is one. Consecutive
        sequences of the batch can share one: the hypotheses of a beam.
    source_real: bool, (sources, source positions), False at padding; None: no padding.
    position: number of tokens processed.
    """

    caches: list[BlockCache]
    source: Tensor | None = None
    source_real: Tensor | None = None
    position: int = 0

    def reorder(self, order: Tensor, sources: Tensor | None = None) -> None:
        """Make sequence ``order[b]`` sequence b; the batch can grow or shrink.

        sources: likewise for the sources; None: unchanged.
        """
        for cache in self.caches:
            cache.reorder(order, sources)
        if sources is not None and self.source is not None:
            self.source = self.source[sources]
        if sources is not None and self.source_real is not None:
            self.source_real = self.source_real[sources]


class Stepper(Protocol):
    """Protocol of a model for decoding."""

    def step(self, tokens: Tensor, state: DecodingState) -> Tensor:
        """Return logits (batch, new positions, vocabulary) for new tokens (batch, new positions).

        state: of the earlier calls; updated in place.
        """


class WithoutTokens(Stepper):
    """Model wrapper that excludes some tokens, such as padding, from generation."""

    def __init__(self, model: Stepper, *tokens: int) -> None:
        self._model, self._tokens = model, list(tokens)

    def step(self, tokens: Tensor, state: DecodingState) -> Tensor:
        logits = self._model.step(tokens, state)
        logits[..., self._tokens] = -torch.inf
        return logits


@dataclass(frozen=True)
class Hypothesis:
    """Sequence without start and end tokens, with its log-probability in nats.

    ended: whether the end token was generated and is part of the probability; else the sequence was
        cut at the maximal length.
    """

    tokens: list[int]
    log_probability: float
    ended: bool = True

    def score(self, length_penalty: float) -> float:
        """Return the ranking score: log-probability by length, the end token included.

            score = log p / length^length_penalty

        Source: Wu et al. 2016, "Google's Neural Machine Translation System", in this simpler form.

        >>> Hypothesis([5, 6, 7], -2.0).score(1.0)
        -0.5
        """
        return self.log_probability / float(max(1, len(self.tokens) + self.ended) ** length_penalty)


@torch.no_grad()
def beam_hypotheses(
    model: Stepper, state: DecodingState, batch: int, *, start: int, end: int,
    max_length: int | Sequence[int], beam: int = 5, length_penalty: float = 1.0,
    progress: Callable[[int], None] = lambda length: None,
) -> list[list[Hypothesis]]:  # fmt: skip
    """Return the likeliest sequences of a beam search, the best first.

    They are ranked by `Hypothesis.score`. A search stops when `beam` hypotheses have ended and no
    unfinished one scores above the worst of them, as in Transformers; if none has ended at the
    maximal length, they are cut there. A beam of 1 takes the likeliest token at every step.

    start, end, beam, length_penalty: see `headloom.Transformer.generate`; state: from the model's
    start(), consumed; batch: number of sequences; max_length: tokens after which sequences are cut,
    one number or one for each; progress: called with the current number of tokens.

    Returns: for each sequence the ended hypotheses, at most `beam`; fewer if the maximal length was
        reached first.
    """
    limits, length = _limits(max_length, batch), 0
    finished: list[list[Hypothesis]] = [[] for _ in range(batch)]
    device = next(iter(model.parameters())).device if isinstance(model, torch.nn.Module) else None
    # Each sequence starts with one hypothesis; the others have probability 0 until the first step.
    state.reorder(torch.arange(batch, device=device).repeat_interleave(beam))
    alive = list(range(batch))
    scores = torch.full((batch, beam), -torch.inf, device=device)
    scores[:, 0] = 0
    written = torch.full((batch, beam, 1), start, dtype=torch.long, device=device)

    while count := len(alive):
        length += 1
        progress(length)
        logits = model.step(written[:, :, -1].reshape(count * beam, 1), state)[:, -1]
        # Twice the beam, so that enough remain even if every hypothesis can end here.
        count_kept = min(2 * beam, beam * logits.shape[-1])
        best, parents, tokens = best_continuations(logits, scores, count_kept)

        ends = tokens == end
        # With a vocabulary smaller than the beam, some slots have no hypothesis.
        for row, rank in (ends & best.isfinite())[:, :beam].nonzero().tolist():
            words = written[row, parents[row, rank], 1:].tolist()
            finished[alive[row]].append(Hypothesis(words, float(best[row, rank])))
        scores, order = best.masked_fill(ends, -torch.inf).topk(beam)
        # Continuations keep their parent's slot where possible, so that caches copy only the rest.
        ranks = torch.tensor(
            [in_place(row) for row in parents.gather(1, order).tolist()], device=device
        )
        scores, order = scores.gather(1, ranks), order.gather(1, ranks)
        parents, tokens = parents.gather(1, order), tokens.gather(1, order)
        written = torch.cat(
            (written.gather(1, parents[..., None].expand(-1, -1, length)), tokens[..., None]), 2
        )
        open_rows = []
        for row, sequence in enumerate(alive):
            if length >= limits[sequence]:
                finished[sequence] = finished[sequence] or _cut(written[row], scores[row])
            elif not _is_finished(finished[sequence], scores[row], length, length_penalty):
                open_rows.append(row)
        open_rows = closed_up(open_rows)
        rows = torch.tensor(open_rows, dtype=torch.long, device=device)
        all_stay = len(open_rows) == count
        state.reorder((rows[:, None] * beam + parents[rows]).flatten(), None if all_stay else rows)
        alive = [alive[row] for row in open_rows]
        scores, written = scores[rows], written[rows]

    return [
        sorted(ended, key=lambda hypothesis: -hypothesis.score(length_penalty))[:beam]
        for ended in finished
    ]


def _limits(max_length: int | Sequence[int], batch: int) -> list[int]:
    """Return the maximal length of each sequence. Raises: InputError: one is below 1."""
    limits = list(max_length) if isinstance(max_length, Sequence) else [max_length] * batch
    if len(limits) != batch or any(limit < 1 for limit in limits):
        raise InputError(
            f"max_length is {max_length} for {batch} sequences; expected a number for each, or for "
            "all, 1 or more."
        )
    return limits


def _cut(written: Tensor, scores: Tensor) -> list[Hypothesis]:
    """Return the unfinished hypotheses of a sequence, cut at the current length."""
    real = scores.isfinite()
    real[scores.argmax()] = True
    return [
        Hypothesis(written[rank, 1:].tolist(), float(scores[rank]), ended=False)
        for rank in real.nonzero()[:, 0].tolist()
    ]


def _is_finished(
    finished: list[Hypothesis], scores: Tensor, length: int, length_penalty: float
) -> bool:
    """Whether a search can stop: `beam` hypotheses have ended, and no unfinished one is better.

    An unfinished hypothesis with a lower score can still improve, as later tokens can be likelier
    than the mean so far. The bound is therefore the worst of the `beam` best that have ended.

    scores: log-probabilities of unfinished hypotheses.
    """
    beam = len(scores)
    best = heapq.nlargest(beam, (hypothesis.score(length_penalty) for hypothesis in finished))
    return len(best) == beam and best[-1] >= float(scores.max()) / float(length**length_penalty)


@torch.no_grad()
def sample(
    model: Stepper, state: DecodingState, prompt: Tensor, *, length: int, temperature: float = 1.0,
    top: int | None = None, top_p: float | None = None, end: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:  # fmt: skip
    """Draw ids after a prompt, (batch, at most length): see `LanguageModel.generate`.

    state: from the model's start(), updated; top_p: applied after temperature and `top`.
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
