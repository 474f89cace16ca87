"""Folder of Transformers: settings, tensors (all must be used) and tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from headloom.errors import DataError, InputError, installing, optional_package
from headloom.formats.files import JsonObject, cannot_read, check_file, read_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Value = TypeVar("Value", int, float, bool, str)

#: Redundant tensors: positions, masks and frequencies that models recompute.
_COMPUTED = (
    "position_ids", "token_type_ids", "attn.bias", "attn.masked_bias", "rotary_emb.inv_freq",
)  # fmt: skip


class Settings:
    """Content of a config.json, with defaults for missing keys."""

    def __init__(self, path: Path, content: JsonObject) -> None:
        self.path, self.content = path, content

    @classmethod
    def read(cls, folder: Path) -> Settings:
        """Read the settings of a folder. Raises: DataError: missing or damaged."""
        path = folder / "config.json"
        content = read_json(path, "configuration")
        if not isinstance(content, dict):
            raise DataError(f"{path}: damaged; expected a JSON object. Get the model again.")
        return cls(path, content)

    def get(self, key: str, default: Value) -> Value:
        """Return a value, which has the type of its default; the default if missing or null."""
        value = self.content.get(key)
        if value is None:
            return default
        if isinstance(default, float) and type(value) is int:
            value = float(value)
        if type(value) is not type(default):
            raise self.wrong(key, f"a {type(default).__name__}")
        return value

    def raw(self, key: str) -> object:
        """Return an unchecked value; None if it is missing."""
        return self.content.get(key)

    def size(self, key: str, default: int) -> int:
        """Return an integer of at least 1."""
        size = self.get(key, default)
        if size < 1:
            raise self.wrong(key, "a whole number from 1 on")
        return size

    def wrong(self, key: str, expected: str) -> DataError:
        """Return the error for an invalid value."""
        return DataError(
            f"{self.path}: {key} is {self.content.get(key)!r}; expected {expected}. Get the model "
            "again."
        )

    def expect(self, key: str, only: Value) -> None:
        """Raise an InputError if a key has another value than the one that headloom supports."""
        if self.get(key, only) != only:
            raise self.refused(key)

    def refused(self, key: str) -> InputError:
        """Return the error for a setting that headloom's models do not support."""
        return InputError(
            f"{self.path}: headloom's models have no {key} = {self.content.get(key)!r}. Trace the "
            "original model by headloom.trace instead."
        )

    def damaged(self, why: str) -> DataError:
        """Return the error for contradicting settings."""
        return DataError(f"{self.path}: {why} Get the model again.")


class Tensors:
    """Tensors of a folder by name; each is taken once."""

    def __init__(self, folder: Path, tensors: dict[str, Tensor]) -> None:
        self.folder, self._unused = folder, tensors

    def has(self, name: str) -> bool:
        """Whether a tensor exists and was not taken yet."""
        return name in self._unused

    def sizes(self, name: str) -> tuple[int, ...]:
        """Return the sizes of a tensor that was not taken yet."""
        return tuple(self._unused[name].shape)

    def take(self, name: str, sizes: tuple[int, ...]) -> Tensor:
        """Take a tensor of these sizes, as float32."""
        if name not in self._unused:
            raise DataError(f"{self.folder}: the weights lack {name}. Get the model again, whole.")
        tensor = self._unused.pop(name)
        if tuple(tensor.shape) != sizes or not tensor.is_floating_point():
            raise DataError(
                f"{self.folder}: {name} is {tensor.dtype} of sizes {list(tensor.shape)}, "
                f"config.json says {list(sizes)}. Get the model again."
            )
        return tensor.float()

    def drop(self, prefix: str) -> None:
        """Ignore the tensors whose names begin with a prefix."""
        self._unused = {k: v for k, v in self._unused.items() if not k.startswith(prefix)}

    def check_used(self) -> None:
        """Raise an InputError if a tensor was not taken, other than redundant ones."""
        unused = [name for name in self._unused if not name.endswith(_COMPUTED)]
        if unused:
            raise InputError(
                f"{self.folder}: headloom's model of this kind does not use "
                f"{', '.join(unused[:3])}. Trace the model by headloom.trace instead."
            )


def read_tensors(folder: Path) -> Tensors:
    """Read all tensors of a folder's safetensors files."""
    index = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.exists():
        table = read_json(index, "index of the weights")
        parts = table.get("weight_map") if isinstance(table, dict) else None
        if not isinstance(parts, dict) or not all(
            isinstance(name, str) and Path(name).name == name for name in parts.values()
        ):
            raise DataError(f"{index}: damaged; expected names of files. Get the model again.")
        names = sorted(set(parts.values()))
    tensors: dict[str, Tensor] = {}
    for name in names:
        path = folder / name
        check_file(path, "file of weights")
        try:
            with safe_open(path, framework="pt") as file, torch.no_grad():
                keys = list(file.keys())
                # Older models from TensorFlow name the two parts of a norm gamma and beta.
                tensors |= {_renamed(key): file.get_tensor(key) for key in keys}
        except OSError as error:
            raise cannot_read(path, "file of weights", error) from error
        except (SafetensorError, ValueError, RuntimeError) as error:
            raise DataError(
                f"{path}: this file of weights is damaged ({error}). Get the model again."
            ) from error
    return Tensors(folder, tensors)


def _renamed(name: str) -> str:
    if name.endswith("LayerNorm.gamma"):
        return name.removesuffix("gamma") + "weight"
    return name.removesuffix("beta") + "bias" if name.endswith("LayerNorm.beta") else name


@dataclass(frozen=True)
class NamedTokens:
    """Ids of the first token of a text, of a translation, of ends and of padding; None: none."""

    first: int | None
    start: int | None
    ends: tuple[int, ...]
    padding: int | None


def named_tokens(settings: Settings) -> NamedTokens:
    """Return the special tokens of a folder."""
    ends = settings.raw("eos_token_id")
    end_ids = ends if isinstance(ends, list) else [ends]

    def number(key: str) -> int | None:
        value = settings.raw(key)
        return value if isinstance(value, int) else None

    return NamedTokens(
        number("bos_token_id"),
        number("decoder_start_token_id"),
        tuple(end for end in end_ids if isinstance(end, int)),
        number("pad_token_id"),
    )


def read_tokenizer(folder: Path) -> Tokenizer:
    """Read tokenizer.json, without truncation and padding."""
    with optional_package("from_pretrained", installing("hf")):
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
