"""How a training begins, or goes on: its folder, locked, its task with the data; and signals."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from headloom.errors import DataError, InputError
from headloom.formats.files import JsonObject
from headloom.formats.run import RunFolder, is_run
from headloom.formats.tensors import load_tensors
from headloom.models.configuration import Architecture
from headloom.models.predictor import Predictor
from headloom.training.config import RunConfig, check_config
from headloom.training.data import DataDescription
from headloom.training.ranks import Ranks
from headloom.training.tasks import begin_model, build_model, make_task
from headloom.training.tasks.task import Task

#: What ends a run. Where it is raised, or given up, the same run goes on.
_ENDS = tuple(f"training.{end}" for end in ("max_steps", "max_epochs", "max_minutes", "patience"))
_PUT_BACK = "Put a copy back, or train again in another folder with --run."


def tried(config: RunConfig, task: Task) -> Predictor:
    """A model as a new run would begin with it, before anything is made on disk.

    Raises: InputError: its positions end before the longest text does.
    """
    model = build_model(config, task.description)
    begin_model(config, task, model)
    architecture = getattr(model, "architecture", None)
    room = architecture.room if isinstance(architecture, Architecture) else None
    if room is not None and (longest := task.longest()) > room:
        raise InputError(
            f"model.max_length is {room}, the longest text has {longest} tokens. Set "
            f"model.max_length to {longest} or more, or {task.shorter}."
        )
    return model


def begin(
    config: RunConfig, path: Path, ranks: Ranks, stack: ExitStack, task: Task | None
) -> tuple[RunFolder, Task]:
    """The folder of a run, which is this training's until the stack ends, and its task.

    Of several processes the first makes the folder, and the vocabulary; the others read them.

    Args: task: of a new run, with its data read; None: the run goes on, or another process begins.
    Raises: HeadloomError: the data cannot be used, the folder holds another run or is damaged.
    """
    if ranks.leader:
        folder, task = _lead(config, path, stack, task)
        if config.task.place is not None:
            folder.keep_place(Path(getattr(config.task, config.task.place)))
        return folder, task
    if not is_run(path):
        raise InputError(
            f"{path}: process {ranks.number} of {ranks.count} does not see this folder, which "
            "process 0 has made. Choose one that all machines share, with --run-folder."
        )
    folder = RunFolder.open(path)
    return folder, make_task(config, DataDescription.load(folder))


def _lead(
    config: RunConfig, path: Path, stack: ExitStack, task: Task | None
) -> tuple[RunFolder, Task]:
    stack.enter_context(RunFolder.training_lock(path))
    if task is not None and not is_run(path):
        folder = RunFolder.create(path, config.model_dump(mode="json"))
        try:
            task.description.save(folder)
        except BaseException:
            # Without its data it has not begun: where the lock ends, what was made is removed.
            (path / "run.json").unlink(missing_ok=True)
            raise
        return folder, task
    folder = RunFolder.open(path)
    _check_same(folder, config)
    if folder.state == "finished" and not folder.checkpoint.exists():
        raise DataError(
            f"{folder.path}: this run is finished, but its {folder.checkpoint.name} is missing. "
            f"{_PUT_BACK}"
        )
    # Before the first checkpoint nothing depends on what is there, which may be unfinished.
    known = DataDescription.load(folder) if folder.checkpoint.exists() else None
    task = make_task(config, known)
    if known is None:
        task.description.save(folder)
    return folder, task


def _saved(folder: RunFolder, now: RunConfig) -> JsonObject:
    """The configuration of a run, with the defaults of keys that came after it was written.

    now: the configuration that it goes on with, which may name the data's place from elsewhere.
    """
    config = check_config(folder.config(), str(folder.path / "config.json"))
    content, key = config.model_dump(mode="json"), now.task.place
    if key is not None and key in content["task"]:
        data = Path(getattr(now.task, key))
        if data.resolve() == (folder.place() or Path(content["task"][key])).resolve():
            content["task"][key] = str(data)
    return content


def _check_same(folder: RunFolder, config: RunConfig) -> None:
    """Raise an InputError unless a configuration is the run's, or lets it end later."""
    if folder.monitored() is not None:
        raise InputError(
            f"{folder.path}: this is the folder of a training that headloom.monitor watches. "
            "Choose another folder."
        )
    for place, old, new in _differences(_saved(folder, config), config.model_dump(mode="json")):
        if place not in _ENDS:
            raise InputError(
                f"{folder.path}: this run was started with another configuration: {place} was "
                f"{old!r}, is {new!r}. Choose another folder with --run, or remove this one."
            )
        later = isinstance(old, int | float) and (
            new is None or (isinstance(new, int | float) and new > old)
        )
        if not later:
            raise InputError(
                f"{folder.path}: {place} was {old}, is {new}, and {folder.steps_done()} steps are "
                "done: a run can be extended, not shortened. Leave it, or choose another folder "
                "with --run."
            )


def extend(folder: RunFolder, config: RunConfig) -> None:
    """Let a run go on to the ends of this configuration, where they are not the run's yet.

    A process killed between the two writes leaves a run that trains and has the old ends: the same
    command extends it then.
    """
    content = config.model_dump(mode="json")
    if _saved(folder, config) != content:
        folder.set_state("training")
        folder.set_config(content)


def _differences(before: JsonObject, after: JsonObject) -> Iterator[tuple[str, object, object]]:
    """Each key at which two configurations differ, with both values: "model.width", 256, 128."""
    for section in before:
        one, two = before[section], after[section]
        for key in sorted({*one, *two}):
            if one.get(key) != two.get(key):
                yield f"{section}.{key}", one.get(key), two.get(key)


def check_best(folder: RunFolder, step: int) -> None:
    """Raise a DataError unless the best weights, which were kept at a step, are still there."""
    try:
        load_tensors(folder.best, "checkpoint")
    except DataError as error:
        raise DataError(
            f"{folder.best}: missing or damaged; the run's best weights (step {step:,}) were "
            f"there. {_PUT_BACK}"
        ) from error


@contextmanager
def held_signals(*, repeated: bool = False) -> Iterator[list[int]]:
    """Hold SIGINT and SIGTERM back until the block ends; the list fills with those that came.

    The first is then raised anew, for who answered to it before. Python handles signals in the main
    thread: in others nothing is held.

    Args: repeated: whether a second one is held too, as launchers of several processes pass on
        what a terminal has sent to all; else it acts at once.
    """
    came: list[int] = []
    main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # What is ignored, as Ctrl-C by a shell's job in the background, stays so.
    before = {n: old for n, old in handlers.items() if main and old not in (signal.SIG_IGN, None)}

    def put_back() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def hold(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if not repeated:
            put_back()

    for number in before:
        signal.signal(number, hold)
    try:
        yield came
    finally:
        put_back()
        if came:
            signal.raise_signal(came[0])
