"""The settings of rotary positions as Transformers writes them in config.json, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from headloom.errors import InputError
from headloom.mechanism.rotary import RotaryScaling, ScalingKind
from headloom.mechanism.shapes import finite_number
from headloom.models.configuration import Architecture

__all__ = ["read_rotary", "rope_parameters"]

#: From Transformers' kind to headloom's. Without "dynamic", which turns earlier positions anew as a
#: text grows, and "longrope", which has a learned number for each pair.
_KINDS: dict[object, ScalingKind] = {"linear": "linear", "llama3": "llama3", "yarn": "yarn"}
#: The numbers of each kind in headloom's words, and in Transformers'.
_NUMBERS: dict[str, dict[str, str]] = {
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "original_length": "original_max_position_embeddings",
        "slow": "low_freq_factor",
        "fast": "high_freq_factor",
    },
    "yarn": {
        "factor": "factor",
        "original_length": "original_max_position_embeddings",
        "slow": "beta_slow",
        "fast": "beta_fast",
        "temperature": "attention_factor",
    },
}


def read_rotary(
    settings: Mapping[str, Any], base: float, longest: int
) -> tuple[float, RotaryScaling | None] | None:
    """The base and the scaling of ``rope_parameters``; None: headloom's models do not have them.

    Args:
        settings: ``rope_parameters`` of Transformers 5, or ``rope_scaling`` of earlier versions.
        base: where the settings name none.
        longest: ``max_position_embeddings``, which is the original length where none is named.

    Raises: InputError: a number that is none, or out of its range.
    """
    kind = settings.get("rope_type", settings.get("type", "default"))
    base = finite_number("rope_parameters", "rope_theta", settings.get("rope_theta", base))
    if settings.get("partial_rotary_factor", 1.0) != 1.0:
        return None
    if kind == "default":
        return base, None
    if kind not in _KINDS or settings.get("truncate", True) is not True:
        return None
    numbers: dict[str, Any] = {
        ours: settings[theirs]
        for ours, theirs in _NUMBERS[_KINDS[kind]].items()
        if settings.get(theirs) is not None
    }
    if "factor" not in numbers:
        raise InputError(f'rope_parameters: the kind "{kind}" without a factor.')
    factor = finite_number("rope_parameters", "factor", numbers["factor"])
    if kind != "linear":
        numbers.setdefault("original_length", longest)
    first, second = (
        finite_number("rope_parameters", name, settings.get(name) or 0)
        for name in ("mscale", "mscale_all_dim")
    )
    if kind == "yarn" and "temperature" not in numbers and first and second:
        grows = 0.1 * math.log(max(factor, 1))
        numbers["temperature"] = (first * grows + 1) / (second * grows + 1)
    return base, RotaryScaling(_KINDS[kind], **numbers)


def rope_parameters(architecture: Architecture) -> dict[str, object]:
    """What Transformers' config.json says of a model's rotary positions."""
    scaling, base = architecture.rotary_scaling, architecture.rotary_base
    if scaling is None:
        return {"rope_type": "default", "rope_theta": base}
    if scaling.kind == "ntk":
        depth = architecture.depth or architecture.width // architecture.heads
        return {"rope_type": "default", "rope_theta": scaling.other_base(depth, base)}
    numbers = {
        "factor": scaling.factor,
        "original_length": scaling.original_length,
        "temperature": scaling.size,
    }
    if scaling.kind != "linear":
        numbers["slow"], numbers["fast"] = scaling.turns
    return {
        "rope_type": scaling.kind,
        "rope_theta": base,
        **{theirs: numbers[ours] for ours, theirs in _NUMBERS[scaling.kind].items()},
    }
