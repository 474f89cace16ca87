"""Rotary positions: queries and keys are rotated, so that their product depends on the distance.

A model trained on short texts can read longer ones if the rotations are slowed down:
`RotaryScaling` has four common ways. If the kernels support the tensor, they rotate it in one pass
over memory; see native/passes.h.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from headloom.errors import InputError, ShapeError
from headloom.mechanism.backends.compiled import INSTRUCTION_SET, kernels, why_wrapped
from headloom.mechanism.backends.formulas import batched
from headloom.mechanism.parts import without_float64
from headloom.mechanism.shapes import (
    TYPES,
    chosen,
    describe,
    finite_number,
    real_tensor,
    whole_number,
)

ScalingKind = Literal["linear", "ntk", "llama3", "yarn"]
#: Default `slow` and `fast` of `RotaryScaling`, in turns of a pair within the original length.
_TURNS = {"llama3": (1.0, 4.0), "yarn": (1.0, 32.0)}


@dataclass(frozen=True)
class RotaryScaling:
    """Slower rotary positions, for texts longer than in training.

    theta_i is the angle of pair i from one position to the next, s the factor, L the original
    length, turns_i = L theta_i / (2 pi) the number of turns of the pair within L. New angles:

        linear    theta_i / s
        ntk       theta_i of the base  base s^(depth / (depth - 2)): the last pair is slowed down
                  by s, the first not at all
        llama3    (1 - g) theta_i / s + g theta_i,  g = (turns_i - slow) / (fast - slow), in [0, 1]
        yarn      the same, but g falls linearly from 1 to 0 over the pairs between the one with
                  ``fast`` turns and the one with ``slow`` turns, and queries and keys are
                  multiplied by the temperature, by default 0.1 ln(s) + 1

    Args:
        kind: "linear", "ntk", "llama3" or "yarn".
        factor: s, the ratio of the new length to the original one; 1 or more.
        original_length: L, for "llama3" and "yarn": the length used in training.
        slow: for "llama3" and "yarn": pairs with fewer turns are slowed down by s. None: 1.
        fast: for "llama3" and "yarn": pairs with more turns stay. None: 4, for "yarn" 32.
        temperature: for "yarn": factor on queries and on keys.

    Raises: InputError: another kind, a number out of its range, or one that the kind does not have.
    Source: Chen et al. 2023 (linear); bloc97 2023 (ntk); Llama Team 2024, as in the code of
        Llama 3.1; Peng et al. 2023, sections 3.2 to 3.4, with the ramp of the authors' code, over
        whole pairs (yarn).
    """

    kind: ScalingKind
    factor: float
    original_length: int | None = None
    slow: float | None = None
    fast: float | None = None
    temperature: float | None = None

    def __post_init__(self) -> None:
        name = "RotaryScaling"
        chosen(name, "kind", self.kind, get_args(ScalingKind))
        if finite_number(name, "factor", self.factor) < 1:
            raise InputError(f"{name}: factor={self.factor:g}; expected 1 or more, as 8.")
        by_turns = self.kind in _TURNS
        has = {"original_length": by_turns, "slow": by_turns, "fast": by_turns}
        for setting, allowed in (has | {"temperature": self.kind == "yarn"}).items():
            number = getattr(self, setting)
            if number is not None and not allowed:
                raise InputError(
                    f'{name}: {setting}={number:g} with kind="{self.kind}", which has none. Leave '
                    "it out, or use another kind."
                )
            if number is not None and finite_number(name, setting, number) <= 0:
                raise InputError(f"{name}: {setting}={number:g}; expected a number above 0.")
        if by_turns and self.original_length is None:
            raise InputError(
                f'{name}: kind="{self.kind}" without original_length=, the length that the model '
                "was trained at. Give it, as original_length=8192."
            )
        if by_turns and self.turns[0] >= self.turns[1]:
            slow, fast = self.turns
            raise InputError(f"{name}: slow={slow:g}, fast={fast:g}; expected slow below fast.")

    @property
    def turns(self) -> tuple[float, float]:
        """``slow`` and ``fast``, or their defaults; only for "llama3" and "yarn"."""
        slow, fast = _TURNS[self.kind]
        return (
            slow if self.slow is None else float(self.slow),
            fast if self.fast is None else float(self.fast),
        )

    @property
    def size(self) -> float:
        """Factor on queries and keys: the temperature for "yarn", else 1."""
        if self.kind != "yarn":
            return 1.0
        return 0.1 * math.log(self.factor) + 1 if self.temperature is None else self.temperature

    def other_base(self, depth: int, base: float) -> float:
        """Return the base of "ntk"; unchanged for a head of one pair."""
        return base * self.factor ** (depth / (depth - 2)) if depth > 2 else base


def rotary_frequencies(depth: int, base: float, scaling: RotaryScaling | None = None) -> Tensor:
    """Return the angle of each pair from one position to the next: base^(-2i / depth), scaled.

    Returns: (depth / 2,), float64, on the CPU. Source: Su et al. 2021, section 3.2.2.
    """
    pairs = torch.arange(0, depth, 2, dtype=torch.float64, device="cpu")
    if scaling is not None and scaling.kind == "ntk":  # bloc97 2023; Peng et al. 2023, section 3.1
        base = scaling.other_base(depth, base)
    angle: Tensor = base ** (-pairs / depth)
    if scaling is None or scaling.kind == "ntk":
        return angle
    if scaling.kind == "linear":  # Chen et al. 2023: position m becomes m / s
        return angle / scaling.factor
    slow, fast = scaling.turns
    length = scaling.original_length or 0
    if scaling.kind == "llama3":  # the code of Llama 3.1; as Peng et al. 2023, section 3.2
        turns = angle * (length / (2 * math.pi))
        share = ((turns - slow) / (fast - slow)).clamp(0, 1)
    else:  # the authors' code of Peng et al. 2023: the unscaled share falls linearly over pairs

        def pair(turns: float) -> float:
            """Return the pair, as a fraction, with this many turns within the original length."""
            return depth * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

        first, last = max(math.floor(pair(fast)), 0), min(math.ceil(pair(slow)), depth - 1)
        # (0.001, as in the authors' code, if the two are the same.)
        share = 1 - ((pairs / 2 - first) / (last - first or 0.001)).clamp(0, 1)
    return (1 - share) * angle / scaling.factor + share * angle


def rotary(
    tensor: Tensor,
    offset: int = 0,
    base: float = 10_000.0,
    *,
    dims: int | None = None,
    interleaved: bool = False,
    scaling: RotaryScaling | None = None,
) -> Tensor:
    """Rotate queries or keys by their positions, so that dot products depend on the distance.

    Pair i, (a, b), of the row at position m is rotated by the angle m theta_i:

        (a, b)  ->  (a cos(m theta_i) - b sin(m theta_i), a sin(m theta_i) + b cos(m theta_i))
        theta_i  =  base^(-2i / dims),                    i = 0, ..., dims/2 - 1
        (a, b)   =  (x_i, x_{i + dims/2}),                or, interleaved, (x_{2i}, x_{2i + 1})

    The coordinates from x_dims on are unchanged. Then ``rotary(q)_m . rotary(k)_n`` depends only on
    q, k and m - n. Use the order of pairs that the model was trained with.

    Args:
        tensor: queries or keys, (..., positions, depth).
        offset: the position of the first row.
        base: sets the longest wavelength; above 0.
        dims: number of rotated coordinates, the first ones, even (GPT-NeoX, Phi). None: all.
        interleaved: whether neighbours are pairs (GPT-J, Llama's own code); otherwise the two
            halves are paired (GPT-NeoX, Llama in Transformers).
        scaling: slows the rotations down, for longer texts; see `RotaryScaling`, whose depth is
            ``dims`` here.

    Returns: the same shape.
    Raises: ShapeError: an odd depth, or dims that are odd or larger. InputError: no floating-point
        tensor, another base or scaling.
    Source: Su et al. 2021, equation 34, whose pairs are interleaved; by halves: GPT-NeoX.

    One pair of neighbours turns by one radian from position 0 to 1, the other two numbers stay:

    >>> rotary(torch.tensor([[1.0, 0.0, 5.0, 6.0]] * 2), dims=2, interleaved=True)
    tensor([[1.0000, 0.0000, 5.0000, 6.0000],
            [0.5403, 0.8415, 5.0000, 6.0000]])
    """
    tensor = real_tensor("rotary", "the tensor", tensor)
    if tensor.dtype not in TYPES:
        raise InputError(
            f"rotary: the tensor is {tensor.dtype}; expected floating-point numbers. Convert it, "
            "as in tensor.float()."
        )
    if type(offset) is not int:  # not known yet in a program compiled for a dynamic offset
        offset = whole_number("rotary", "offset", offset)
    checked_scaling("rotary", scaling, base)
    if tensor.ndim < 2:
        raise ShapeError(
            f"rotary: got {describe(tensor)}; expected (..., positions, depth), two dimensions or "
            "more."
        )
    depth = tensor.shape[-1]
    dims = depth if dims is None else whole_number("rotary", "dims", dims)
    if not 0 <= dims <= depth or dims % 2:
        raise ShapeError(
            f"rotary: {dims} coordinates, from {describe(tensor)}, do not make pairs; expected an "
            f"even number up to the depth, {depth}, as dims=2."
        )
    part = tensor if dims == depth else tensor[..., :dims]
    if interleaved:
        # All first numbers of the pairs, then all second ones; and back.
        part = part.reshape(*part.shape[:-1], dims // 2, 2).transpose(-2, -1).flatten(-2)
    rotated = _rotated(part, offset, base, scaling)
    if interleaved:
        rotated = rotated.reshape(*rotated.shape[:-1], 2, dims // 2).transpose(-2, -1).flatten(-2)
    return rotated if dims == depth else torch.cat((rotated, tensor[..., dims:]), -1)


def _rotated(tensor: Tensor, offset: int, base: float, scaling: RotaryScaling | None) -> Tensor:
    """Rotate all coordinates, with the two halves paired."""
    depth = tensor.shape[-1]
    if _kernel_serves(tensor, offset):
        # The table covers a power of two of positions, 64 or more.
        length = 1 << max(offset + tensor.shape[2] - 1, 63).bit_length()
        cosines, sines = _table(depth, base, scaling, length)
        return _rotary(tensor, cosines[offset:], sines[offset:], False)
    # Angles of far positions need more digits than float32 has.
    device = torch.device("cpu") if without_float64(tensor.device) else tensor.device
    position = torch.arange(tensor.shape[-2], device=device, dtype=torch.float64) + offset
    cosines, sines = _angles(position, depth, base, scaling)
    return _rotate(tensor, *(part.to(tensor.dtype).to(tensor.device) for part in (cosines, sines)))


@lru_cache(maxsize=8)
def _table(
    depth: int, base: float, scaling: RotaryScaling | None, length: int
) -> tuple[Tensor, Tensor]:
    """Return cosines and sines for positions 0 to ``length - 1``, (length, depth / 2) each."""
    position = torch.arange(length, dtype=torch.float64, device="cpu")
    cosines, sines = _angles(position, depth, base, scaling)
    return cosines.float(), sines.float()


def _angles(
    position: Tensor, depth: int, base: float, scaling: RotaryScaling | None
) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of the angles of positions, times the factor of the scaling."""
    angle = position[:, None] * rotary_frequencies(depth, base, scaling).to(position.device)
    size = 1.0 if scaling is None else scaling.size
    return angle.cos() * size, angle.sin() * size


def checked_scaling(operation: str, scaling: object, base: float) -> None:
    """Raise an InputError unless the base is above 0 and the scaling is valid for it."""
    if finite_number(operation, "base", base) <= 0:
        raise InputError(f"{operation}: base={base:g}; expected a number above 0, as 10,000.")
    if not isinstance(scaling, RotaryScaling | None):
        raise InputError(
            f"{operation}: scaling is a {type(scaling).__name__}; expected a headloom."
            'RotaryScaling, as headloom.RotaryScaling("linear", 4).'
        )
    if scaling is not None and scaling.kind == "yarn" and base <= 1:
        raise InputError(
            f'{operation}: base={base:g} with the scaling "yarn", which needs a base above 1.'
        )


#: Largest number of positions in the cached table of angles.
ANGLES_KEPT = 2**17


def _kernel_serves(tensor: Tensor, offset: int) -> bool:
    return (
        kernels is not None
        and tensor.ndim == 4
        and tensor.numel() > 0
        and 0 <= offset <= ANGLES_KEPT - tensor.shape[2]
        and tensor.dtype == torch.float32
        and tensor.device.type == "cpu"
        and why_wrapped((tensor,)) is None
    )


def _rotate(tensor: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate each pair of coordinates (x_i, x_{i + depth/2}) by its angle, in torch."""
    first, second = tensor.chunk(2, -1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), -1)


class _Rotary(torch.autograd.Function):
    """Rotation by the kernel; its derivative is the rotation back, with the same factor."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, cosines: Tensor, sines: Tensor, back: bool) -> Tensor:
        ctx.cosines, ctx.sines, ctx.back = cosines, sines, back
        tensor = tensor if tensor.stride(-1) == 1 else tensor.contiguous()
        batch, heads, positions, depth = tensor.shape
        output = tensor.new_empty(batch, positions, heads, depth).transpose(1, 2)
        call = kernels.RotaryCall()
        call.batch, call.heads, call.positions, call.depth = tensor.shape
        call.input, call.output = kernels.strided(tensor), kernels.strided(output)
        call.cosines, call.sines, call.back = cosines.data_ptr(), sines.data_ptr(), back
        kernels.rotary(call, torch.get_num_threads(), INSTRUCTION_SET)
        return output

    @staticmethod
    def backward(ctx: Any, by_output: Tensor) -> tuple[Tensor | None, ...]:
        cosines, sines, back = ctx.cosines, ctx.sines, not ctx.back
        if not batched((by_output,)):
            return _rotary(by_output, cosines, sines, back), None, None, None
        length = by_output.shape[2]
        rotated = _rotate(by_output, cosines[:length], -sines[:length] if back else sines[:length])
        return rotated, None, None, None


_rotary: Callable[..., Tensor] = _Rotary.apply
