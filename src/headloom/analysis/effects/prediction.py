"""Losses of a model of Transformers on a text: measures for experiments on its heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from headloom.errors import InputError
from headloom.tracing.arguments import Tokenizer
from headloom.tracing.model_state import evaluation_mode

#: One token in so many is masked.
MASK_EVERY = 7


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the mean cross-entropy of each token given the tokens before it, in nats.

    Args: logits: (batch, length, vocabulary), of the model on `tokens`, (batch, length).

    >>> next_token_loss(torch.zeros(1, 3, 8), torch.tensor([[1, 2, 3]]))               # log 8
    tensor(2.0794)
    """
    return cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


def masked_loss(
    model: nn.Module, inputs: Mapping[str, Tensor], tokenizer: Tokenizer
) -> Callable[[], Tensor]:
    """Return the loss of a masked language model: mean cross-entropy of masked tokens, in nats.

    Args:
        model: a masked language model.
        inputs: from its tokenizer, for one text.
        tokenizer: for the ids of the mask and the special tokens.

    Returns: a function that runs the model once, with every seventh token masked, and returns the
    loss.
    Raises: InputError: the text has too few tokens.
    """
    ids = inputs["input_ids"]
    special = torch.isin(ids, torch.tensor(tokenizer.all_special_ids))
    ordinary = (~special[0]).nonzero()[:, 0]
    places = ordinary[MASK_EVERY // 2 :: MASK_EVERY]
    if not len(places):
        raise InputError(
            f"masked_loss: the text has {len(ordinary)} tokens; expected {MASK_EVERY // 2 + 1} or "
            "more, so that one can be masked."
        )
    masked = ids.clone()
    masked[:, places] = tokenizer.mask_token_id
    return lambda: cross_entropy(
        model(**{**inputs, "input_ids": masked}).logits[0, places].float(), ids[0, places]
    )


def output_change(model: nn.Module, inputs: Mapping[str, Tensor]) -> Callable[[], Tensor]:
    """Return a measure of the relative change of the last hidden states: |y' - y| / |y|.

    For encoders that do not predict tokens. 0: unchanged; about 1.4: unrelated, of the same size.

    Returns: a function that runs the model once and returns the change.
    """
    with evaluation_mode(model), torch.no_grad():
        before: Tensor = model(**inputs).last_hidden_state
    return lambda: (model(**inputs).last_hidden_state - before).norm() / before.norm()
