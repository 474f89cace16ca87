"""Choice of the next token: the likeliest continuations of hypotheses, or a random draw.

Neither sorts a whole vocabulary nor copies more of the caches than necessary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headloom.errors import InputError
from headloom.mechanism.parts import in_float64
from headloom.models import dense

#: Columns of a piece, represented by its maximum in the search for the largest of a row.
_PIECE = 64


def largest(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the largest numbers of each row and their columns in descending order, as `topk`.

    The largest ``count`` numbers are in the ``count`` pieces of a row with the largest maxima: one
    pass finds these pieces, and few columns remain to be sorted.

    rows: (rows, columns), contiguous. Returns (rows, count) each; ties in any order.
    """
    height, width = rows.shape
    pieces = width // _PIECE
    if pieces <= 2 * count:
        numbers, columns = rows.topk(count)
        return numbers, columns
    cut = rows[:, : pieces * _PIECE].view(height, pieces, _PIECE)
    chosen = cut.amax(2).topk(count).indices
    within = cut.gather(1, chosen[..., None].expand(-1, -1, _PIECE)).flatten(1)
    numbers, places = within.topk(count)
    columns = chosen.gather(1, places // _PIECE) * _PIECE + places % _PIECE
    if pieces * _PIECE == width:
        return numbers, columns
    rest, their_columns = rows[:, pieces * _PIECE :].topk(min(count, width - pieces * _PIECE))
    both = numbers.new_empty(height, count + rest.shape[1])
    both[:, :count], both[:, count:] = numbers, rest
    names = columns.new_empty(both.shape)
    names[:, :count], names[:, count:] = columns, their_columns + pieces * _PIECE
    numbers, places = both.topk(count)
    return numbers, names.gather(1, places)


def best_continuations(logits: Tensor, scores: Tensor, count: int) -> tuple[Tensor, ...]:
    """Return the likeliest continuations of the hypotheses of each source.

        total = score + log softmax(logits)[token]

    logits: (sources * beam, vocabulary); scores: log-probabilities of hypotheses, (sources, beam).
    Returns: log-probabilities, the hypothesis that each continues, and its token, (sources, count)
        each, the likeliest first.
    """
    sources, beam = scores.shape
    few = min(count, logits.shape[-1])
    numbers, tokens = largest(logits, few)
    if dense.serves(logits) and logits.is_contiguous():
        # The loss of the likeliest token plus its logit is the log-sum-exp.
        nats = dense.losses(logits, tokens[:, 0], 0.0, gradient=False)
        logs = numbers - numbers[:, :1] - nats[:, None]
    else:
        logs = numbers - logits.logsumexp(-1, keepdim=True)
    totals = scores[:, :, None] + logs.view(sources, beam, few)
    best, places = totals.flatten(1).topk(count)
    return best, places // few, tokens.view(sources, -1).gather(1, places)


def in_place(parents: list[int]) -> list[int]:
    """Assign the children of a beam to slots; a parent's first child takes the parent's slot.

    Slots of parents without children take the remaining children.

    >>> in_place([2, 2, 0])
    [2, 1, 0]
    """
    places = [-1] * len(parents)
    others = []
    for child, parent in enumerate(parents):
        if places[parent] < 0:
            places[parent] = child
        else:
            others.append(child)
    return [others.pop(0) if child < 0 else child for child in places]


def closed_up(rows: list[int]) -> list[int]:
    """Order the remaining rows so that the last ones fill the gaps of the finished ones.

    >>> closed_up([0, 2, 3, 5])
    [0, 5, 2, 3]
    """
    count = len(rows)
    beyond = [row for row in rows if row >= count]
    staying = set(rows) - set(beyond)
    return [row if row in staying else beyond.pop() for row in range(count)]


def draw(
    logits: Tensor, *, temperature: float, top: int | None, top_p: float | None,
    generator: torch.Generator | None,
) -> Tensor:  # fmt: skip
    """Draw a token for each row from softmax(logits / temperature), cut to the likeliest.

    logits: (batch, vocabulary); temperature: 0 takes the likeliest; top: number of likeliest
    tokens; None: all; top_p: see `nucleus`, applied last; None: all. Returns (batch, 1).

    Source: Fan et al. 2018, "Hierarchical Neural Story Generation", for top.
    """
    if temperature < 1e-6:  # 0, or too small to divide by
        return logits.argmax(-1, keepdim=True)
    if top is not None and top < logits.shape[-1]:
        likeliest, places = logits.topk(top)
        logits = torch.full_like(logits, -torch.inf).scatter(-1, places, likeliest)
    # Finite in the logits' type: -infinity divided by infinity is NaN.
    logits = logits / min(temperature, torch.finfo(logits.dtype).max)
    if top_p is not None:
        logits = nucleus(logits, top_p)
    return torch.multinomial(logits.softmax(-1), 1, generator=generator)


def nucleus(logits: Tensor, share: float) -> Tensor:
    """Return the logits of each row's nucleus; those of all other tokens are -infinity.

    The nucleus V is the smallest set of likeliest tokens with a share p of the probability:

        sum of P(v) over v in V >= p;  P'(v) = P(v) / (sum over V) in V, 0 elsewhere

    where P = softmax(logits); P' is the softmax of the result. Among equally likely tokens the
    lower id comes first. The likeliest token is always in V.

    Source: Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration", equations 2, 3.

    >>> nucleus(torch.tensor([0.5, 0.3, 0.15, 0.05]).log(), 0.7).softmax(-1)
    tensor([0.6250, 0.3750, 0.0000, 0.0000])
    """
    if not 0 < share <= 1:
        raise InputError(f"nucleus: share is {share}; expected a number above 0 and at most 1.")
    if share == 1:  # rounding of the sum must not cut off the rarest tokens
        return logits
    ordered, places = in_float64(logits).softmax(-1).sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    kept = torch.zeros_like(before, dtype=torch.bool).scatter(-1, places, before < share)
    return logits.masked_fill(~kept.to(logits.device), -torch.inf)
