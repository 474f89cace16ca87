"""What training asks of a model: outputs, and from them the scores of what may be predicted."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from torch import Tensor, nn

from headloom.errors import InputError


class Predictor(nn.Module):
    """A model that predicts one of several things at each of its outputs.

    The two steps are apart so that only those outputs are scored that have a target.

    purpose: what it is for, and by which command, as errors say it.
    """

    purpose: ClassVar[str] = "predicts"

    @abstractmethod
    def outputs(self, *args: Any, **inputs: Any) -> Tensor:
        """What the model makes of its inputs, (..., width)."""

    @abstractmethod
    def logits(self, outputs: Tensor) -> Tensor:
        """Scores of everything that may be predicted, (..., choices), from outputs (..., width)."""

    @property
    def classifies_texts(self) -> bool:
        """Whether it reads a text, `tokens`, and scores its classes."""
        return False

    @property
    def last_map(self) -> nn.Linear | None:
        """The linear map that `logits` is; None where it is another function."""
        return None

    def forward(self, *args: Any, **inputs: Any) -> Tensor:
        """Both steps: (..., choices)."""
        return self.logits(self.outputs(*args, **inputs))


def other_kind(model: object, action: str, kind: str) -> InputError:
    """The error for a run that is asked for what its model was not made for.

    Args: action: what was asked; kind: of a model that does it.

    >>> print(other_kind(None, "translate", "a translator"))
    this run predicts; it does not translate. Give a run of a translator.
    """
    purpose = getattr(model, "purpose", Predictor.purpose)
    return InputError(f"this run {purpose}; it does not {action}. Give a run of {kind}.")
