"""The tokens of a folder of Transformers: its tokenizer, and the ids that its settings name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headloom.errors import DataError, installing, optional_package
from headloom.models.huggingface.folder import Settings

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["NamedTokens", "named_tokens", "read_tokenizer"]


@dataclass(frozen=True)
class NamedTokens:
    """Ids that mean something to a model; None where its settings name none.

    first: that a text begins with; start: that a translation begins with.
    ends: that end a text; padding: that fills short sequences.
    """

    first: int | None
    start: int | None
    ends: tuple[int, ...]
    padding: int | None


def named_tokens(settings: Settings) -> NamedTokens:
    """Those of a folder."""
    ends = settings.raw("eos_token_id")
    given = ends if isinstance(ends, list) else [ends]

    def number(key: str) -> int | None:
        value = settings.raw(key)
        return value if isinstance(value, int) else None

    return NamedTokens(
        number("bos_token_id"),
        number("decoder_start_token_id"),
        tuple(end for end in given if isinstance(end, int)),
        number("pad_token_id"),
    )


def read_tokenizer(folder: Path) -> Tokenizer:
    """Of tokenizer.json; it neither cuts nor fills texts.

    Raises: DataError: missing or damaged.
    """
    with optional_package("from_huggingface", installing("hf")):
        from tokenizers import Tokenizer
    path = folder / "tokenizer.json"
    if not path.exists():
        raise DataError(
            f"{path}: no such file. Write it by Transformers: "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER), or give ids."
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises plain Exception
        raise DataError(f"{path}: this tokenizer is damaged: {error}. Get it again.") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
