"""Decoding: from logits, step by step, to sequences. Greedy, beam search and sampling.

All work on any model with ``step(tokens, state) -> logits`` and a key/value cache, and never
compute a position twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from weft.errors import InputError
from weft.models.blocks import BlockCache

__all__ = ["DecodingState", "Hypothesis", "Stepper", "beam_search", "greedy", "sample"]


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
        """Logits (batch, new positions, vocabulary) after new tokens (batch, new positions)."""


@dataclass(frozen=True)
class Hypothesis:
    """A finished sequence without its start and end tokens, and its log-probability."""

    tokens: list[int]
    log_probability: float


@torch.no_grad()
def greedy(
    model: Stepper,
    state: DecodingState,
    batch: int,
    *,
    start: int,
    end: int,
    max_length: int,
    progress: Callable[[int], None] = lambda length: None,
) -> list[Hypothesis]:
    """The likeliest token at every step.

    Args:
        model: what gives logits.
        state: fresh from the model's start(); used up.
        batch: number of sequences.
        start: the id that every sequence begins with.
        end: the id that ends one.
        max_length: tokens after which a sequence is cut.
        progress: told how many tokens the sequences have that go on.

    Returns: one hypothesis a sequence.
    """
    tokens: list[list[int]] = [[] for _ in range(batch)]
    scores = [0.0] * batch
    alive = list(range(batch))
    device = next(iter(model.parameters())).device if isinstance(model, torch.nn.Module) else None
    last = torch.full((batch, 1), start, dtype=torch.long, device=device)
    for length in range(1, max_length + 1):
        if not alive:
            break
        progress(length)
        log_probabilities = model.step(last, state)[:, -1].log_softmax(-1)
        best, chosen = log_probabilities.max(-1)
        for sequence, token, score in zip(alive, chosen.tolist(), best.tolist(), strict=True):
            scores[sequence] += score
            if token != end:
                tokens[sequence].append(token)
        # Finished sequences leave the batch, so that no step computes for them.
        going_on = (chosen != end).nonzero()[:, 0]
        if len(going_on) < len(alive):
            alive = [alive[place] for place in going_on.tolist()]
            state.reorder(going_on, going_on)
        last = chosen[going_on][:, None]
    return [Hypothesis(*pair) for pair in zip(tokens, scores, strict=True)]


@torch.no_grad()
def beam_search(
    model: Stepper,
    state: DecodingState,
    batch: int,
    *,
    start: int,
    end: int,
    max_length: int,
    beam: int = 5,
    length_penalty: float = 1.0,
    progress: Callable[[int], None] = lambda length: None,
) -> list[Hypothesis]:
    """The likeliest sequence that a beam finds.

    Hypotheses are ranked by ``log_probability / length^length_penalty``, the end token counted.

    Args:
        model: what gives logits.
        state: fresh from the model's start(); used up.
        batch: number of sequences.
        start: the id that every sequence begins with.
        end: the id that ends one.
        max_length: tokens after which a sequence is cut.
        beam: hypotheses kept at every step.
        length_penalty: 0 ranks by probability alone and so prefers short ones.
        progress: told how many tokens the hypotheses have that go on.

    Returns: the best hypothesis of each sequence.
    """
    if beam < 1:
        raise InputError(f"beam_search: beam {beam}; expected 1 or more.")
    finished: list[list[tuple[float, Hypothesis]]] = [[] for _ in range(batch)]
    device = next(iter(model.parameters())).device if isinstance(model, torch.nn.Module) else None
    # Every sequence starts as one hypothesis; the others are impossible until the first step.
    state.reorder(torch.arange(batch, device=device).repeat_interleave(beam))
    alive = list(range(batch))
    scores = torch.full((batch, beam), -torch.inf, device=device)
    scores[:, 0] = 0
    written = torch.full((batch, beam, 1), start, dtype=torch.long, device=device)

    for length in range(1, max_length + 1):
        count = len(alive)
        if count == 0:
            break
        progress(length)
        logits = model.step(written[:, :, -1].reshape(count * beam, 1), state)[:, -1]
        vocabulary = logits.shape[-1]
        totals = scores[:, :, None] + logits.log_softmax(-1).view(count, beam, vocabulary)
        # Twice the beam, so that enough go on even if every hypothesis could end here.
        best, places = totals.flatten(1).topk(min(2 * beam, beam * vocabulary))
        parents, tokens = places // vocabulary, places % vocabulary

        ends = tokens == end
        # A vocabulary smaller than the beam leaves places that no hypothesis can fill.
        for row, rank in (ends & best.isfinite())[:, :beam].nonzero().tolist():
            total = float(best[row, rank])
            words = written[row, parents[row, rank], 1:].tolist()
            finished[alive[row]].append((total / length**length_penalty, Hypothesis(words, total)))
        scores, order = best.masked_fill(ends, -torch.inf).topk(beam)
        parents, tokens = parents.gather(1, order), tokens.gather(1, order)
        written = torch.cat(
            (written.gather(1, parents[..., None].expand(-1, -1, length)), tokens[..., None]), 2
        )

        going_on = [
            row
            for row, sequence in enumerate(alive)
            if not _settled(finished[sequence], float(scores[row, 0]), length, beam, length_penalty)
        ]
        keep = torch.tensor(going_on, dtype=torch.long, device=device)
        all_stay = len(going_on) == count
        state.reorder((keep[:, None] * beam + parents[keep]).flatten(), None if all_stay else keep)
        alive = [alive[row] for row in going_on]
        scores, written = scores[keep], written[keep]

    _cut(finished, alive, written, scores)
    return [max(candidates, key=lambda pair: pair[0])[1] for candidates in finished]


def _cut(
    finished: list[list[tuple[float, Hypothesis]]],
    alive: list[int],
    written: Tensor,
    scores: Tensor,
) -> None:
    """Let the best hypothesis of each sequence that has none end where it is."""
    for row, sequence in enumerate(alive):
        if not finished[sequence]:
            hypothesis = Hypothesis(written[row, 0, 1:].tolist(), float(scores[row, 0]))
            finished[sequence].append((0.0, hypothesis))


def _settled(
    finished: list[tuple[float, Hypothesis]],
    best_alive: float,
    length: int,
    beam: int,
    length_penalty: float,
) -> bool:
    """Whether a search can stop: as many have ended as the beam holds, and none alive leads."""
    if len(finished) < beam:
        return False
    return bool(max(rank for rank, _ in finished) >= best_alive / length**length_penalty)


@torch.no_grad()
def sample(
    model: Stepper,
    state: DecodingState,
    prompt: Tensor,
    *,
    length: int,
    temperature: float = 1.0,
    top: int | None = None,
    end: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw tokens from the model's distribution.

    Args:
        model: what gives logits.
        state: fresh from the model's start(); advanced.
        prompt: ids, (batch, positions), at least one.
        length: number of tokens to draw.
        temperature: divides the logits; 0 takes the likeliest.
        top: draw among the so many likeliest only.
        end: stop when every sequence has drawn this id.
        generator: of the random numbers.

    Returns: the drawn ids, (batch, at most length).
    """
    if temperature < 0:
        raise InputError(f"temperature is {temperature}; expected 0 or more.")
    if top is not None and top < 1:
        raise InputError(f"top is {top}; expected 1 or more tokens.")
    if prompt.shape[1] < 1:
        raise InputError("the prompt is empty; give at least one token.")
    drawn: list[Tensor] = []
    last = prompt
    ended = torch.zeros(len(prompt), dtype=torch.bool, device=prompt.device)
    for _ in range(length):
        logits = model.step(last, state)[:, -1]
        if top is not None and top < logits.shape[-1]:
            lowest = logits.topk(top).values[:, -1:]
            logits = logits.masked_fill(logits < lowest, -torch.inf)
        if temperature < 1e-6:  # 0, or too small to divide by
            last = logits.argmax(-1, keepdim=True)
        else:
            probabilities = (logits / temperature).softmax(-1)
            last = torch.multinomial(probabilities, 1, generator=generator)
        drawn.append(last)
        if end is not None:
            ended |= last[:, 0] == end
            if bool(ended.all()):
                break
    return torch.cat(drawn, 1) if drawn else prompt[:, :0]
