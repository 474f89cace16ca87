"""Optimisers: Adam, AdamW, or Muon with AdamW; and the learning rate schedule."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from headloom.models.dense import multiplies_bfloat16
from headloom.models.predictor import Predictor
from headloom.training.config import Schedule, TrainingConfig

#: Coefficients of the polynomial a x + b x^3 + c x^5, iterated on the singular values: the steepest
#: at 0 that converges to 0.7 to 1.2 (Jordan et al. 2024).
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
#: Iterations of the polynomial.
ITERATIONS = 5


def orthogonal(matrices: Tensor) -> Tensor:
    """Approximate the nearest orthogonal matrices: ``U V^T`` of ``U S V^T``.

        X = M / |M|;  5 times:  A = X X^T,  X = a X + (b A + c A^2) X

    The singular values become 0.7 to 1.2, except those below a thousandth of the largest.

    Args:
        matrices: M, (number, rows, columns); computed in their type.

    Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"; Higham
    2008, "Functions of Matrices", section 8.3 (Newton-Schulz).

    >>> import torch
    >>> orthogonal(torch.tensor([[[2.0, 0.0], [0.0, 0.5]]])).round()
    tensor([[[1., 0.],
             [0., 1.]]])
    """
    a, b, c = COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Muon optimiser: momentum steps with orthogonalised matrices.

        m <- momentum m + (1 - momentum) g
        u = momentum m + (1 - momentum) g
        W <- (1 - rate decay) W - rate sqrt(max(1, rows / columns)) orthogonal(u)

    Matrices of equal shape are computed at once. torch.optim.Muon computes each separately, and
    always in bfloat16, which is slow without hardware support.

    Args:
        matrices: the parameters, of two dimensions.
        lr: the rate.
        momentum: of the gradients.
        weight_decay: the decay.
        dtype: of the orthogonalisation.

    Source: Jordan et al. 2024; Bernstein and Newhouse 2024 (why this is steepest descent in the
    spectral norm).
    """

    def __init__(
        self, matrices: list[nn.Parameter], *, lr: float = 0.02, momentum: float = 0.95,
        weight_decay: float = 0.0, dtype: torch.dtype = torch.float32,
    ) -> None:  # fmt: skip
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update the parameters by their gradients."""
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shapes.setdefault(parameter.shape, []).append(parameter)
            for matrices in shapes.values():
                self._move(matrices, group)

    def _move(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        gradients = [matrix.grad for matrix in matrices if matrix.grad is not None]
        for matrix in matrices:
            if not self.state[matrix]:
                self.state[matrix]["momentum"] = torch.zeros_like(matrix)
        means = [self.state[matrix]["momentum"] for matrix in matrices]
        torch._foreach_lerp_(means, gradients, 1 - group["momentum"])
        ahead = torch._foreach_lerp(gradients, means, group["momentum"])
        steps = orthogonal(torch.stack(list(ahead)).to(self.dtype)).to(matrices[0].dtype)
        rows, columns = matrices[0].shape
        rate = group["lr"] * max(1.0, rows / columns) ** 0.5
        if group["weight_decay"]:
            torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(matrices, list(steps), alpha=-rate)


def make_optimisers(model: Predictor, settings: TrainingConfig) -> list[torch.optim.Optimizer]:
    """Make the optimisers of a training; each parameter group has its maximum rate as "peak".

    Muon gets the matrices of hidden layers; AdamW the embeddings, last map, norms and biases.
    """
    matrices = _hidden_matrices(model) if settings.optimiser == "muon" else []
    chosen = {id(matrix) for matrix in matrices}
    optimisers: list[torch.optim.Optimizer] = []
    if matrices:
        # Without hardware support, torch computes bfloat16 number by number.
        fast = settings.products == "bfloat16" and multiplies_bfloat16()
        muon = Muon(
            matrices, lr=settings.matrix_learning_rate, weight_decay=settings.weight_decay,
            dtype=torch.bfloat16 if fast else torch.float32,
        )  # fmt: skip
        optimisers.append(muon)
    kind = torch.optim.Adam if settings.optimiser == "adam" else torch.optim.AdamW
    adam = kind(
        [parameter for parameter in model.parameters() if id(parameter) not in chosen],
        lr=settings.peak_learning_rate, betas=settings.betas, eps=settings.epsilon,
        weight_decay=settings.weight_decay, fused=True,
    )  # fmt: skip
    optimisers.append(adam)
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group["peak"] = group["lr"]
    return optimisers


def _hidden_matrices(model: Predictor) -> list[nn.Parameter]:
    """Return the matrices of linear layers, except the last one and embeddings."""
    modules = list(model.modules())
    others = {id(module.weight) for module in modules if isinstance(module, nn.Embedding)}
    if model.last_map is not None:
        others.add(id(model.last_map.weight))
    weights = (module.weight for module in modules if isinstance(module, nn.Linear))
    hidden = {id(weight): weight for weight in weights if isinstance(weight, nn.Parameter)}
    return [weight for key, weight in hidden.items() if key not in others]


def learning_rate(
    step: int, *, peak: float, warmup: int, last: int, schedule: Schedule, floor: float = 0.0,
    done: float = 0.0,
) -> float:  # fmt: skip
    """Compute the learning rate of a step: linear warm-up to the peak, then the schedule.

        inverse-sqrt:  peak * sqrt(warmup / step)
        cosine:        from the peak to floor * peak at the last step, along half a cosine
        linear:        the same along a line
        constant:      the peak

    Args:
        step: from 0.
        peak: the highest rate.
        warmup: steps of the warm-up.
        last: the last step of the training.
        schedule: name of the schedule.
        floor: the lowest rate of cosine and linear, as a share of the peak.
        done: share of the time limit, if any: cosine and linear follow steps or time, whichever is
            further.

    Source: Vaswani et al. 2017, equation 3 (inverse-sqrt); Loshchilov and Hutter 2017 (cosine).

    >>> learning_rate(9, peak=1.0, warmup=10, last=100, schedule="cosine")
    1.0
    >>> learning_rate(39, peak=1.0, warmup=10, last=100, schedule="inverse-sqrt")
    0.5
    """
    if step + 1 <= warmup:
        return peak * (step + 1) / warmup
    if schedule == "constant":
        return peak
    if schedule == "inverse-sqrt":
        return peak * math.sqrt(max(warmup, 1) / (step + 1))
    progress = min(1.0, max(done, (step + 1 - warmup) / max(1, last - warmup)))
    remaining = 1 - progress if schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return peak * (floor + (1 - floor) * remaining)
