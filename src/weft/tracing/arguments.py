"""What a model's forward or generate takes, by the names of its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["Arguments", "Inputs"]

#: To be read: tensors, and what else a model takes.
Inputs = Mapping[str, Any]
#: Of one's own, to be changed.
Arguments = dict[str, Any]
