"""Decisions from attention rows while a model runs: when to wait, when to stop, what was used.

Each takes rows as `headloom.live` gives them, (batch, keys), of one head or of several in a list,
which are averaged.

    with headloom.live(model, heads=[("cross", 3, 1)]) as live:
        ...    # in a StoppingCriteria: headloom.rows.align_att(live.rows["cross", 3, 1], last=4)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from headloom.errors import InputError, ShapeError

if TYPE_CHECKING:
    import pandas

#: Multiple of the even share of attention, below which a frame is silence.
_SILENCE = 4
#: Rows of one head, (batch, keys), or of several.
Rows = Tensor | Sequence[Tensor]


def _mean(operation: str, rows: Rows) -> Tensor:
    """Return the mean of rows of heads, (batch, keys)."""
    heads = [rows] if isinstance(rows, Tensor) else list(rows)
    shapes = {tuple(row.shape) for row in heads}
    if len(shapes) != 1 or len(next(iter(shapes))) != 2:
        raise ShapeError(
            f"{operation}: rows of {', '.join(map(str, sorted(shapes))) or 'no head'}; expected "
            "(batch, keys), as live.rows[layer, head], or a list of such with equal shapes."
        )
    return torch.stack(heads).double().mean(0)


def align_att(rows: Rows, *, last: int) -> Tensor:
    """Decide whether a streaming translator should wait for more input: AlignAtt.

        wait = argmax_j w_j >= keys - last

    A token that looks mostly at the last frames may change with the frames to come.

    Args:
        rows: of the cross-attention of the newest token.
        last: number of frames at the end of the input that are not trusted.

    Returns: (batch,), bool: wait, and do not write this token.
    Source: Papi, Turchi, Negri 2023, AlignAtt.

    >>> align_att(torch.tensor([[0.1, 0.2, 0.1, 0.6], [0.7, 0.1, 0.1, 0.1]]), last=1)
    tensor([ True, False])
    """
    row = _mean("align_att", rows)
    return row.argmax(-1) >= row.shape[1] - last


def is_stuck(history: Sequence[Rows], *, steps: int, within: int = 0) -> Tensor:
    """Decide whether an alignment stands still, as of speech that repeats or does not end.

        stuck = max_t a_t - min_t a_t <= within,  a_t = argmax_j w_tj  over the last ``steps`` steps

    Args:
        history: rows of the steps, the newest last, as ``live.history[layer, head]``.
        steps: number of steps without progress that are too many.
        within: positions that the maximum may move in them.

    Returns: (batch,), bool. False before ``steps`` steps.
    Source: errors of alignment that Ren et al. 2019, FastSpeech, section 1, describe.

    >>> is_stuck([torch.eye(5)[[i]] for i in (0, 1, 2, 2, 2)], steps=3)
    tensor([True])
    """
    latest = [_mean("is_stuck", rows).argmax(-1) for rows in list(history)[-steps:]]
    if not latest:
        raise InputError("is_stuck: history is empty; expected rows, as live.history[layer, head].")
    places = torch.stack(latest)
    return ((places.amax(0) - places.amin(0)) <= within) & (len(latest) == steps)


def lookback_ratio(rows: Rows, context: int, *, start: int = 0) -> Tensor:
    """Compare attention to the context with attention to the model's own text.

        ratio = A / (A + B),  A: mean weight of the keys of the context, B: of the keys after it

    A low ratio is a sign of text that the context does not support.

    Args:
        rows: of the newest token.
        context: number of tokens of the context, which end at this position.
        start: first position of the context; padding and a system prompt come before it.

    Returns: (batch,); 1 where no own text is there yet.
    Source: Chuang et al. 2024, Lookback Lens, section 2.

    >>> lookback_ratio(torch.tensor([[0.3, 0.3, 0.4]]), context=2)
    tensor([0.4286])
    """
    row = _mean("lookback_ratio", rows)
    if not 0 <= start < context <= row.shape[1]:
        raise InputError(
            f"lookback_ratio: a context from {start} to {context} of {row.shape[1]} keys; expected "
            "0 <= start < context <= keys."
        )
    own = row[:, context:]
    looks_back = row[:, start:context].mean(-1)
    written = own.mean(-1) if own.shape[1] else torch.zeros_like(looks_back)
    return (looks_back / (looks_back + written)).nan_to_num(1.0).float()


def lookback_table(
    history: Mapping[Any, Sequence[Tensor]], context: int, *, start: int = 0, sample: int = 0
) -> pandas.DataFrame:
    """Make the features of a detector: the lookback ratio of every head at every step.

    Args: history: ``live.history``; sample: of the batch; the others: see `lookback_ratio`.
    Returns: a DataFrame, a row for each step, a column for each head, named as in ``heads=``.
    Source: Chuang et al. 2024, Lookback Lens: a linear classifier reads their mean over a span.
    """
    import pandas

    columns = {
        ".".join(map(str, head)): [
            float(lookback_ratio(row, context, start=start)[sample]) for row in rows
        ]
        for head, rows in history.items()
    }
    return pandas.DataFrame(columns)


def share(rows: Rows, span: slice | Sequence[int]) -> Tensor:
    """Measure the attention on some keys, such as those of the instruction.

        share = sum of w_j over j in the span

    In heads that follow instructions, it drops where an injected prompt distracts the model.

    Args: rows: of the last token of the prompt; span: a slice or positions of keys.
    Returns: (batch,).
    Source: Hung et al. 2024, Attention Tracker, section 3: the focus score, a mean over such heads.

    >>> share(torch.tensor([[0.5, 0.2, 0.3]]), slice(0, 2))
    tensor([0.7000])
    """
    places = span if isinstance(span, slice) else torch.as_tensor(list(span))
    return _mean("share", rows)[:, places].sum(-1).float()


def monotone_path(weights: Tensor) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Find the path of largest weight through a matrix by dynamic time warping.

        D_ij = min(D_(i-1)(j-1), D_(i-1)j, D_i(j-1)) - w_ij

    Returns: (2, length): row and column of each cell, from the first cell to the last.
    Source: Sakoe, Chiba 1978.

    >>> monotone_path(torch.tensor([[9., 8., 0.], [0., 0., 7.]])).tolist()
    [[0, 0, 1], [0, 1, 2]]
    """
    cost = (-weights.double()).tolist()
    count, length = weights.shape
    total = [[np.inf] * (length + 1) for _ in range(count + 1)]
    total[0][0] = 0.0
    for i in range(count):
        above, row, costs = total[i], total[i + 1], cost[i]
        for j in range(length):
            row[j + 1] = costs[j] + min(above[j], above[j + 1], row[j])
    i, j, path = count, length, []
    while i and j:
        path.append((i - 1, j - 1))
        before = total[i - 1][j - 1], total[i - 1][j], total[i][j - 1]
        least = min(before)
        i, j = (
            (i - 1, j - 1)
            if before[0] == least
            else (i - 1, j)
            if before[1] == least
            else (i, j - 1)
        )
    return np.array(path[::-1], np.int64).T


def word_timestamps(
    history: Sequence[Sequence[Tensor]] | Sequence[Tensor],
    tokens: Sequence[str],
    *,
    seconds: float = 0.02,
    frames: int | None = None,
    median: int = 7,
    sample: int = 0,
) -> pandas.DataFrame:
    """Find the times of words by the best path through cross-attention rows.

    The weights of each head are standardized over the tokens of a frame, smoothed by a median over
    frames, averaged over heads; `monotone_path` gives each token its frames. A frame in which no
    token has four times the even share, 1 / frames, is silence, and belongs to the token before it.

    Args:
        history: rows of the steps of a head, as ``live.history["cross", 3, 1]``, or a list of such
            for several heads: step i is the row of the query that writes token i.
        tokens: the written tokens as texts; one that begins with a space, and the first, begins a
            word. Steps after them, as of the end token, bound the last word.
        seconds: length of a frame; 0.02: Whisper's.
        frames: number of frames that are not padding; None: all.
        median: width of the filter, odd; 1: none.
        sample: of the batch.

    Returns: a DataFrame: word, start, end in seconds.
    Raises: InputError: fewer steps than tokens.
    Source: Radford et al. 2022, Whisper, and its reference code; silence is our addition.
    """
    import pandas

    heads: Any = [history] if isinstance(history[0], Tensor) else history
    matrix = torch.stack([torch.stack([row[sample, :frames] for row in head]) for head in heads])
    if matrix.shape[1] < len(tokens) or not tokens:
        raise InputError(
            f"word_timestamps: {matrix.shape[1]} steps for {len(tokens)} tokens; expected a row of "
            "each written token: live.history of the whole generation."
        )
    silent = matrix.mean(0).amax(0) < _SILENCE / matrix.shape[2]
    deviation, mean = torch.std_mean(matrix.double(), 1, keepdim=True, correction=0)
    matrix = (matrix - mean) / deviation.clamp(min=1e-12)
    if median > 1:
        padded = torch.nn.functional.pad(matrix, (median // 2, median // 2), "reflect")
        matrix = padded.unfold(-1, median, 1).median(-1).values
    rows, columns = monotone_path(matrix.mean(0).masked_fill(silent, 0))
    first = [int(columns[rows == row].min()) for row in range(matrix.shape[1])]
    first.append(matrix.shape[2])
    begins = [n for n, token in enumerate(tokens) if not n or token[:1].isspace()]
    ends = [*begins[1:], len(tokens)]
    return pandas.DataFrame(
        [
            ("".join(tokens[start:end]).strip(), first[start] * seconds, first[end] * seconds)
            for start, end in zip(begins, ends, strict=True)
        ],
        columns=["word", "start", "end"],
    )
