"""The header of a GGUF file: what model it holds, and which tensors of which type, before any load.

GGUF is the format of llama.cpp: metadata, a table of tensors, and their numbers, mostly in blocks
of a few bits each. Reading it runs nothing. A damaged header can make a reader that believes it
take all memory or all time, so that every count and length is held against the file here first.

Source: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import math
import re
import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn

from weft.errors import DataError, installing, optional_package
from weft.formats.files import open_file

__all__ = ["GgufFile", "GgufTensor", "is_gguf", "read_gguf"]

_MAGIC = b"GGUF"

Scalar = int | float | bool | str

#: Scalars by their number in the file, as `struct` names them.
_SCALARS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

#: Arrays in arrays, at most; the specification sets no limit, no file has more than one.
_DEEPEST = 4

#: Types of numbers that are not blocks of few bits.
_WHOLE = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True)
class GgufTensor:
    """A tensor of the file: its name, its shape (fastest dimension first), its type, its size."""

    name: str
    shape: tuple[int, ...]
    kind: str
    bytes: int

    @property
    def numbers(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class GgufFile:
    """A GGUF file whose header is sound.

    metadata    scalars and strings by their keys; of an array its length
    tensors     in the order of the file
    """

    path: Path
    metadata: dict[str, Scalar]
    tensors: tuple[GgufTensor, ...]

    @property
    def architecture(self) -> str:
        """As llama.cpp names it: "llama", "qwen2"."""
        return str(self.metadata["general.architecture"])

    @property
    def numbers(self) -> int:
        """How many numbers all tensors hold."""
        return sum(tensor.numbers for tensor in self.tensors)

    @property
    def types(self) -> dict[str, int]:
        """How many tensors are of each type, those of most numbers first."""
        numbers: Counter[str] = Counter()
        for tensor in self.tensors:
            numbers[tensor.kind] += tensor.numbers
        counts = Counter(tensor.kind for tensor in self.tensors)
        return {kind: counts[kind] for kind, _ in numbers.most_common()}

    @property
    def quantization(self) -> str | None:
        """The bits and type of most of its numbers, "4-bit (Q4_1)"; None: whole numbers."""
        kind = next(iter(self.types), "F32")
        bits = re.search(r"\d+", kind)
        if kind in _WHOLE or bits is None:
            return None
        return f"{bits[0]}-bit ({kind})"


def is_gguf(path: Path) -> bool:
    """Whether a file is one of GGUF, by its first bytes or by its name."""
    if not path.is_file():
        return False
    if path.suffix.lower() == ".gguf":
        return True
    with open_file(path, "model") as file:
        return file.read(4) == _MAGIC


def read_gguf(path: Path) -> GgufFile:
    """The header of a GGUF file.

    Raises:
        DataError: not such a file, cut off, or damaged.
        InputError: the package gguf is missing.
    """
    with optional_package("a GGUF file", installing("gguf")):
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    sizes = {
        int(kind): (kind.name, *GGML_QUANT_SIZES[kind])
        for kind in GGMLQuantizationType
        if kind in GGML_QUANT_SIZES
    }
    with open_file(path, "GGUF file") as file:
        return _Header(path, file, sizes).read()


class _Header:
    """Reads a header from its start to its end; never more than the file has."""

    def __init__(self, path: Path, file: BinaryIO, sizes: dict[int, tuple[str, int, int]]) -> None:
        self.path, self.file, self.sizes = path, file, sizes
        self.size = path.stat().st_size
        self.place = 0

    def read(self) -> GgufFile:
        magic = self.file.read(4)
        self.place = 4
        if magic != _MAGIC:
            raise DataError(f"{self.path}: not a GGUF file (it does not begin with GGUF).")
        (version,) = self._unpack("I")
        if version not in (2, 3):
            swapped = int.from_bytes(version.to_bytes(4, "big"), "little") in (2, 3)
            kind = "of big-endian machines" if swapped else f"of version {version}"
            raise DataError(
                f"{self.path}: a GGUF file {kind}; expected version 2 or 3, little-endian. "
                "Convert it again."
            )
        tensors, entries = self._unpack("QQ")
        # The smallest tensor takes 32 bytes of the header, the smallest entry 13.
        if tensors * 32 + entries * 13 > self.size:
            self._damaged(f"it counts {tensors:,} tensors and {entries:,} entries")
        metadata: dict[str, Scalar] = {}
        for _ in range(entries):
            key = self._string()
            if key in metadata:
                self._damaged(f"the entry {key[:60]!r} stands twice")
            metadata[key] = self._value(self._unpack("I")[0], key, 0)
        architecture = metadata.get("general.architecture")
        if not isinstance(architecture, str) or not architecture:
            self._damaged("it names no architecture (general.architecture)")
        table = [self._tensor() for _ in range(tensors)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            self._damaged(f"the alignment {alignment!r} is no power of two")
        self._check_places(table, -(-self.place // alignment) * alignment, alignment)
        return GgufFile(self.path, metadata, tuple(tensor for tensor, _ in table))

    def _check_places(
        self, table: list[tuple[GgufTensor, int]], start: int, alignment: int
    ) -> None:
        """Every tensor lies in the file, at its own place, and has its own name."""
        if not table:
            self._damaged("it has no tensors")
        if len({tensor.name for tensor, _ in table}) < len(table):
            self._damaged("two tensors have one name")
        end = 0
        for tensor, offset in sorted(table, key=lambda entry: entry[1]):
            if offset % alignment or offset < end:
                self._damaged(f"the tensor {tensor.name[:60]} begins inside another one")
            end = offset + tensor.bytes
            if start + end > self.size:
                self._damaged(
                    f"the tensor {tensor.name[:60]} ends at byte {start + end:,} of {self.size:,}"
                )

    def _damaged(self, what: str) -> NoReturn:
        raise DataError(f"{self.path}: this GGUF file is damaged: {what}. Get it again.")

    def _take(self, size: int) -> bytes:
        if size > self.size - self.place:
            self._damaged(f"it ends at byte {self.size:,}, inside of its header")
        self.place += size
        return self.file.read(size)

    def _unpack(self, kinds: str) -> tuple[int, ...]:
        form = struct.Struct("<" + kinds)
        return form.unpack(self._take(form.size))

    def _string(self) -> str:
        (length,) = self._unpack("Q")
        try:
            return self._take(length).decode()
        except UnicodeDecodeError:
            self._damaged(f"the text before byte {self.place:,} is not UTF-8")

    def _value(self, kind: int, key: str, depth: int) -> Scalar:
        if kind in _SCALARS:
            value: Scalar = self._unpack(_SCALARS[kind])[0]
            if isinstance(value, float) and not math.isfinite(value):
                self._damaged(f"{key[:60]} is {value}")
            return value
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY or depth == _DEEPEST:
            self._damaged(f"the entry {key[:60]!r} is of an unknown type ({kind})")
        of_item, length = self._unpack("IQ")
        if of_item in _SCALARS:
            self._take(length * struct.calcsize(_SCALARS[of_item]))
            return length
        # An item takes 8 bytes or more, so that a wrong length ends at the end of the file.
        if length * 8 > self.size:
            self._damaged(f"{key[:60]} counts {length:,} items")
        for _ in range(length):
            self._value(of_item, key, depth + 1)
        return length

    def _tensor(self) -> tuple[GgufTensor, int]:
        """A tensor, and where its numbers begin, from the end of the header."""
        name = self._string()
        (dimensions,) = self._unpack("I")
        if not 1 <= dimensions <= 4:
            self._damaged(f"the tensor {name[:60]} has {dimensions:,} dimensions")
        shape = self._unpack(f"{dimensions}Q")
        kind, offset = self._unpack("IQ")
        if kind not in self.sizes:
            self._damaged(f"the tensor {name[:60]} is of the type {kind}, which gguf does not know")
        title, block, size = self.sizes[kind]
        if min(shape) < 1 or shape[0] % block or math.prod(shape) // block * size > self.size:
            self._damaged(f"the tensor {name[:60]} has the shape {shape}, of type {title}")
        return GgufTensor(name, shape, title, math.prod(shape) // block * size), offset
