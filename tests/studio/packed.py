"""The bytes of a page's pieces, as Python reads them."""

from __future__ import annotations

import base64
import zlib

#: The digits that a page has where Python's base 85 has signs of markup.
_OWN = str.maketrans(",./", "&<>")


def planes(text: str) -> bytes:
    """What a piece holds before its bytes are put together."""
    assert not set(text) & set("&<>\"\\'"), "a digit that JSON or HTML writes otherwise"
    return zlib.decompress(base64.b85decode(text.translate(_OWN)))
