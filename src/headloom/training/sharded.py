"""Sharded checkpoints, by torch.distributed.checkpoint: each process writes what it holds.

Its writer of safetensors files is used: its own format keeps what is where as a pickle.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headloom.errors import DataError, InputError
from headloom.formats.files import JsonObject, disk_errors, reason_of, sync
from headloom.formats.shards import Shards, digests_of
from headloom.training.ranks import Ranks

if TYPE_CHECKING:
    from torch.distributed.checkpoint.api import CheckpointException

__all__ = ["load_shards", "save_shards"]


def save_shards(
    shards: Shards, tensors: dict[str, Tensor], notes: JsonObject, ranks: Ranks
) -> None:
    """Write tensors of which each process holds a part, and the notes.

    Args:
        shards: where to.
        tensors: sharded ones (DTensor), ones that are the same on all processes, and ones of a
            single process, whose names are no other's.
        notes: as JSON.
        ranks: the processes; each calls this.
    """
    _check_torch()
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    with ranks.led() if ranks.leader else _following(ranks):
        if ranks.leader:
            with disk_errors(shards.path):
                shards.make()
    with disk_errors(shards.path), _quiet():
        writer = HuggingFaceStorageWriter(str(shards.path), save_distributed=True)
        # Scalars have no place among the parts of a tensor.
        whole = {
            name: value.reshape(1) if value.dim() == 0 else value for name, value in tensors.items()
        }
        try:
            save(whole, storage_writer=writer)
        except CheckpointException as error:
            raise _not_written(shards, error) from error
        mine = [f for f in shards.files if f.name.startswith(f"shard-{ranks.number + 1:05}-")]
        for file in mine:
            sync(file)
        digests = ranks.gather_text(json.dumps(digests_of(mine)))
        if ranks.leader:
            together: dict[str, str] = {}
            for text in digests:
                together |= json.loads(text)
            shards.finish(together, notes)


def _not_written(shards: Shards, error: CheckpointException) -> DataError:
    """What is said of a failure of some processes."""
    reasons = [failure for failure, _ in error.failures.values()]
    known = [reason_of(reason) for reason in reasons if isinstance(reason, OSError)]
    reason = known[0] if known else reasons[0] if reasons else error
    return DataError(
        f"{shards.path}: this checkpoint could not be written: {reason}. The one before is kept; "
        "the same command goes on from it."
    )


def _check_torch() -> None:
    """Raise an InputError where torch cannot write shards as safetensors."""
    if find_spec("torch.distributed.checkpoint.hf_storage") is None:
        raise InputError(
            'training.parallel = "fsdp" keeps checkpoints that torch '
            f'{torch.__version__} cannot write. Install torch 2.9 or newer, or choose "ddp".'
        )


@contextmanager
def _following(ranks: Ranks) -> Iterator[None]:
    ranks.follow()
    yield


def load_shards(
    shards: Shards, room: Callable[[str], Tensor | None], number: int
) -> dict[str, Tensor]:
    """Read the tensors of a checkpoint, or the parts of them that this process holds.

    Args:
        shards: where from; checked.
        room: where a tensor is to be read to, by its name; None: to a new one.
        number: of this process; of the random states only its own is read.

    Raises: DataError: of another model.
    """
    _check_torch()
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(shards.path))
    with _quiet():
        stored = reader.read_metadata().state_dict_metadata
        tensors: dict[str, Tensor] = {}
        for name, entry in stored.items():
            if name.startswith("random_state/") and name != f"random_state/{number}":
                continue
            if not isinstance(entry, TensorStorageMetadata):
                continue
            place = room(name)
            if place is not None and place.dim() and place.shape != entry.size:
                raise DataError(
                    f"{shards.path}: these weights are of another model than the run's config.json "
                    "describes."
                )
            tensors[name] = (
                torch.zeros(entry.size, dtype=entry.properties.dtype)
                if place is None or not place.dim()
                else place.detach()
            )
        try:
            load(tensors, storage_reader=reader)
        except CheckpointException as error:
            raise DataError(f"{shards.path}: this checkpoint cannot be read: {error}.") from error
    for name in tensors:
        place = room(name)
        if (place is not None and not place.dim()) or name.endswith("/step"):
            tensors[name] = tensors[name].reshape(())
    return tensors


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the library says of its own progress."""
    logger = logging.getLogger("torch.distributed.checkpoint")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
