"""A training that needs more memory than there is: what is said of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headloom.errors import InputError, is_out_of_memory
from headloom.formats.run import RunFolder
from headloom.training.checkpoint import Position
from headloom.training.config import TrainingConfig

__all__ = ["memory_errors"]


@contextmanager
def memory_errors(
    settings: TrainingConfig, folder: RunFolder, position: Position
) -> Iterator[None]:
    """Turn an error of memory into one line: what to lower, and what is kept.

    Smaller batches are another training, so they need another folder; the run itself goes on with
    the memory that it asks for.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        smaller, more = max(1, settings.batch_tokens // 2), 2 * settings.accumulate
        done = folder.steps_done()
        kept = f"from step {done:,}, its last checkpoint" if done else "from its start"
        raise InputError(
            f"step {position.step + 1:,}: not enough memory. With more of it the same command goes "
            f"on {kept}; or train in another folder, by --run, with smaller batches: --set "
            f"training.batch_tokens={smaller} --set training.accumulate={more} (now "
            f"{settings.batch_tokens} and {settings.accumulate})."
        ) from error
