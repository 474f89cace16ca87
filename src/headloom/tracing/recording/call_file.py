"""A file in which recorded calls wait while a model goes on.

The prompt of a generation is read first, whole, in every layer, and its layers are written last,
each with the rows of all steps. Until then its edges need not be in memory.
"""

from __future__ import annotations

import errno
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from weakref import finalize

import torch
from torch import Tensor

from headloom.formats.files import NOT_WRITABLE, disk_errors
from headloom.mechanism.parts import with_tensors
from headloom.tracing.recording.free_memory import FreeMemory
from headloom.tracing.recording.layer_call import RecordedCall

__all__ = ["CallFile"]

#: Bytes of a tensor from which on it is put into the file.
LARGE = 2**14
#: Bytes that are written before the memory that they took is given back.
GIVEN_BACK = 2**26


class CallFile:
    """Holds the large tensors of calls.

    The file has no name, so that nothing of it is left however the process ends.

    Args: path: of the trace that is to be: the file is in the same folder.

    Raises: DataError: nothing can be written there.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = Path(os.path.realpath(path))
        with disk_errors(path, NOT_WRITABLE):
            self._file = tempfile.TemporaryFile(dir=self._path.parent, buffering=0)  # noqa: SIM115
        finalize(self, self._file.close)
        self._free = FreeMemory(GIVEN_BACK)

    def put(self, call: RecordedCall) -> tuple[int, RecordedCall]:
        """Its place, and the call with shapes in place of its large tensors.

        Raises: DataError: the disk is full.
        """
        with disk_errors(self._path):
            place = self._file.seek(0, os.SEEK_END)
            without = with_tensors(call, self._written)
            return place, replace(without, graph=with_tensors(call.graph, self._written))

    def get(self, call: RecordedCall, place: int) -> RecordedCall:
        """A call as it was before it was put to a place."""
        with disk_errors(self._path):
            self._file.seek(place)
            # In the order in which they were written.
            whole = with_tensors(call, self._read)
            return replace(whole, graph=with_tensors(call.graph, self._read))

    def _written(self, tensor: Tensor) -> Tensor:
        # An expanded tensor has less memory than numbers.
        size = tensor.nbytes
        if size < LARGE or not tensor.is_cpu or tensor.untyped_storage().nbytes() < size:
            return tensor
        left = tensor.contiguous().view(-1).view(torch.uint8).numpy().data
        while left:
            left = left[self._file.write(left) :]
        self._free.passed(size)
        return torch.empty_like(tensor, device="meta")

    def _read(self, tensor: Tensor) -> Tensor:
        if not tensor.is_meta:
            return tensor
        numbers = torch.empty(tensor.shape, dtype=tensor.dtype)
        left = numbers.view(-1).view(torch.uint8).numpy().data
        while left:
            count = self._file.readinto(left)
            if not count:
                raise OSError(errno.EIO, "the temporary file ends too soon")
            left = left[count:]
        return numbers
