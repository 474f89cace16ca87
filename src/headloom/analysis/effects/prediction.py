"""How well a model of Transformers predicts a text: measures for experiments on its heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from headloom.errors import InputError

__all__ = ["MASK_EVERY", "masked_loss", "output_change", "target_loss"]

#: Of the tokens of a text, one in so many is masked.
MASK_EVERY = 7


def masked_loss(
    model: nn.Module, inputs: Mapping[str, Tensor], tokenizer: Any
) -> Callable[[], Tensor]:
    """The mean cross-entropy of tokens that are masked, every seventh one, in nats.

    Args:
        model: a masked language model.
        inputs: what its tokenizer gives for one text.
        tokenizer: which says what the mask is, and which tokens are special.

    Returns: a function that runs the model once and gives the loss.
    Raises: InputError: the text has too few tokens, or the tokenizer no mask.
    """
    ids = inputs["input_ids"]
    if tokenizer.mask_token_id is None:
        raise InputError("masked_loss: the tokenizer has no mask token.")
    special = torch.isin(ids, torch.tensor(tokenizer.all_special_ids))
    ordinary = (~special[0]).nonzero()[:, 0]
    places = ordinary[MASK_EVERY // 2 :: MASK_EVERY]
    if not len(places):
        raise InputError(
            f"masked_loss: the text has {len(ordinary)} tokens; expected {MASK_EVERY // 2 + 1} or "
            "more, of which one is masked."
        )
    masked = ids.clone()
    masked[:, places] = tokenizer.mask_token_id
    given = {**inputs, "input_ids": masked}

    def loss() -> Tensor:
        logits = model(**given).logits[0, places].float()
        return nn.functional.cross_entropy(logits, ids[0, places])

    return loss


def target_loss(
    model: nn.Module, inputs: Mapping[str, Tensor], target: Tensor
) -> Callable[[], Tensor]:
    """The mean cross-entropy of a target given its source, in nats, of an encoder-decoder.

    Args:
        model: that writes; inputs: its source; target: ids, (1, length).

    Returns: a function that runs the model once and gives the loss.
    """
    given = dict(inputs)
    given.pop("token_type_ids", None)

    def loss() -> Tensor:
        found: Tensor = model(**given, labels=target, use_cache=False).loss
        return found

    return loss


def output_change(model: nn.Module, inputs: Mapping[str, Tensor]) -> Callable[[], Tensor]:
    """How far the last hidden states are from what they are now: |y' - y| / |y|.

    For encoders that predict no tokens. 0: unchanged; about 1.4: unrelated, of the same size.

    Returns: a function that runs the model once and gives the change.
    """
    training = [(module, module.training) for module in model.modules()]
    try:
        nn.Module.eval(model)
        with torch.no_grad():
            before = model(**inputs).last_hidden_state
    finally:
        for module, was in training:
            module.training = was

    def change() -> Tensor:
        after: Tensor = model(**inputs).last_hidden_state
        far: Tensor = (after - before).norm() / before.norm()
        return far

    return change
