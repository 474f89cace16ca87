"""A model as it is looked at while it learns: with the running mean of its weights, and whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from headloom.models.predictor import Predictor
from headloom.training.parts import whole

__all__ = ["LookedAt"]


class LookedAt:
    """A model that learns, the running mean of its weights, and a whole copy where it is shared.

    mean: the running mean of each parameter; None: there is none.

    Args:
        model: as it learns; where processes share it, every method is called by all of them.
        decay: of the mean; 0: there is none.
        copy: the same model with whole matrices, of the process that looks; None: the matrices are
            whole, or this process does not look.
        shared: whether each process holds a share of the matrices only.
    """

    def __init__(
        self, model: Predictor, decay: float, copy: Predictor | None, *, shared: bool
    ) -> None:
        self.model, self.copy, self.shared = model, copy, shared
        self.decay = decay
        self.mean = (
            {name: value.detach().clone() for name, value in model.named_parameters()}
            if decay
            else None
        )

    @torch.no_grad()
    def update(self, steps: int) -> None:
        """``mean <- decay * mean + (1 - decay) * weights``; early on with less decay.

        steps: done, this one too.
        """
        if self.mean is None:
            return
        decay = min(self.decay, steps / (steps + 10))
        weights = [parameter.detach() for parameter in self.model.parameters()]
        torch._foreach_lerp_(list(self.mean.values()), weights, 1 - decay)

    @contextmanager
    def averaged(self) -> Iterator[Predictor]:
        """The model with the mean of its weights, where there is one."""
        if self.shared:
            yield self._filled(self.mean)
            return
        if self.mean is None:
            yield self.model
            return
        own = {name: value.detach().clone() for name, value in self.model.named_parameters()}
        parameters = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, value in self.mean.items():
                parameters[name].copy_(value)
        try:
            yield self.model
        finally:
            with torch.no_grad():
                for name, value in own.items():
                    parameters[name].copy_(value)

    def whole(self) -> Predictor:
        """The model with whole matrices, and their gradients where there are some."""
        return self._filled(None) if self.shared else self.model

    @torch.no_grad()
    def _filled(self, weights: dict[str, Tensor] | None) -> Predictor:
        """The copy, given parameters of which each process holds a share: by default the model's.

        Where this process has no copy, the model, which nothing is to be asked of.
        """
        copies = {} if self.copy is None else dict(self.copy.named_parameters())
        for name, parameter in self.model.named_parameters():
            value = whole((weights or {}).get(name, parameter).detach())
            gradient = None if parameter.grad is None else whole(parameter.grad)
            if name in copies:
                copies[name].copy_(value)
                copies[name].grad = gradient
        # Others, as tables of positions, each model makes for itself, as long as it needs them.
        kept = self.model.state_dict().keys()
        buffers = dict(self.model.named_buffers())
        for name, buffer in () if self.copy is None else self.copy.named_buffers():
            if name in kept:
                buffer.copy_(buffers[name])
        return self.model if self.copy is None else self.copy
