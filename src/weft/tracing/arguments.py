"""What a model's forward or generate takes, by the names of its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["BESIDE", "Arguments", "Inputs"]

#: To be read: tensors, and what else a model takes.
Inputs = Mapping[str, Any]
#: Of one's own, to be changed.
Arguments = dict[str, Any]

#: Beginnings of the names of arguments that hold images, videos or sounds, or say something of each
#: of these; no tokens.
BESIDE = ("pixel", "image", "video", "audio", "input_features", "input_values", "batch_num")
