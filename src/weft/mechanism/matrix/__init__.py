"""The whole attention weight matrix as an exact operator that is never formed."""

import warnings
from typing import Any


def __getattr__(name: str) -> Any:
    """The class of the module that this package was."""
    if name != "AttentionMatrix":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from weft.mechanism.matrix import attention_matrix

    # 2: the import statement of the caller.
    warnings.warn(
        "weft.mechanism.matrix.AttentionMatrix has moved to weft.AttentionMatrix.",
        DeprecationWarning,
        stacklevel=2,
    )
    return attention_matrix.AttentionMatrix
