"""`headloom train` in one process or several: what each says, and how each ends."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from headloom.cli.endings import one_line
from headloom.cli.output import console, print_json, say
from headloom.errors import InputError

if TYPE_CHECKING:
    from headloom.training.config import RunConfig
    from headloom.training.loop import Listener, TrainingResult

__all__ = ["launched", "one_of_several", "trained"]


def trained(
    settings: RunConfig,
    folder: Path,
    tensorboard: Path | None,
    *,
    as_json: bool,
) -> None:
    """Train, and say how it went, to TensorBoard too; one of several processes speaks for all."""
    from headloom.api.launch import Attempts, AttemptsListener
    from headloom.models.dense import why_not_here
    from headloom.training.loop import train
    from headloom.training.progress import ConsoleListener, SeveralListeners, SilentListener

    if os.environ.get("RANK", "0") != "0":
        train(settings, folder, SilentListener())
        return
    kind = settings.training.products
    if reason := why_not_here(kind):
        say(f'Products are torch\'s in float32, not "{kind}": {reason}. See headloom doctor.')
    attempts = Attempts.of_this_process()
    with ExitStack() as stack:
        listeners: list[Listener] = [stack.enter_context(ConsoleListener(console()))]
        if tensorboard is not None:
            from headloom.api.training_board import BoardListener

            listeners.append(stack.enter_context(BoardListener(tensorboard, folder)))
        if attempts is not None:
            attempts.begin()
            listeners.append(AttemptsListener(attempts))
        result = train(settings, folder, SeveralListeners(*listeners))
    _say_result(result, folder, as_json=as_json)


def _say_result(result: TrainingResult, folder: Path, *, as_json: bool) -> None:
    ended = "" if result.reason == "max_steps" else f" Ended by training.{result.reason}."
    done, remedy = f"Trained {result.steps:,} steps in {result.seconds:,.1f} s.", ""
    if result.already:
        done = f"Finished already, after {result.steps:,} steps."
        remedy = f" To train again: --run FOLDER; further: a larger training.{result.reason}."
    say(
        f"{done} Best validation loss {result.best_loss:.4f}, at step {result.best_step:,}."
        f"{ended}{remedy} Run: {folder}"
    )
    if as_json:
        print_json(
            {
                "run": str(folder),
                "steps": result.steps,
                "train_seconds": result.seconds,
                "tokens": result.tokens,
                "best_loss": result.best_loss,
                "best_step": result.best_step,
                "reason": result.reason,
            }
        )


def launched(config: Path, command: Sequence[str], processes: int) -> None:
    """Run a command of headloom in several processes that train together; each reads the file."""
    from headloom.api.launch import launch

    if "RANK" in os.environ:
        raise InputError(
            f"--processes {processes}: torchrun has started processes already. Leave it out."
        )
    if not config.is_file():
        raise InputError(
            f"{config}: --processes {processes} needs a file, which each process reads; this is a "
            "pipe. Save it, and give its name."
        )
    launch(command, processes)


@contextmanager
def one_of_several() -> Iterator[bool]:
    """Ends a process of several as such a one ends; where it is the only one, changes nothing.

    Gives whether this process says what a person should read before the training.
    """
    if "RANK" not in os.environ:
        yield True
        return
    # Before torch is loaded, and without a line of its that is no news: that each gradient is
    # looked for is decided in headloom.training.ranks.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from headloom.api.launch import Attempts
    from headloom.training.ranks import GroupError

    leader, attempts = os.environ["RANK"] == "0", Attempts.of_this_process()
    if attempts is None:  # torchrun started it
        try:
            yield leader
        except GroupError:
            if leader:
                raise
            raise SystemExit(1) from None
        return
    if attempts.error:
        raise SystemExit(0)  # it was tried; trying again would not help
    try:
        yield False
    except KeyboardInterrupt:
        raise SystemExit(130) from None  # the process that started this one says so
    except GroupError:
        raise SystemExit(1) from None
    except Exception as error:
        attempts.end(one_line(error) or f"a fault of headloom: {error!r}.")
        if one_line(error) is None:
            raise
        raise SystemExit(1) from None
