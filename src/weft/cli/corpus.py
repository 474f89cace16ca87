"""A corpus of many texts: a trace each, in one folder, by several processes, resumable.

    FOLDER/corpus.json     the model, the options, and the SHA-256 of each text
    FOLDER/NAME.weft       the trace of each text

A trace is there whole or not at all, so what is there is done.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import Any

import torch

from weft.cli.terminal import tell_unknown
from weft.cli.tracing import Opened, Options, Verified, open_model, trace_opened
from weft.errors import DataError, InputError, WeftError
from weft.formats.files import read_json, read_text, remove_leftovers, write_json
from weft.formats.folders import own_folder
from weft.formats.trace_reader import open_folder

__all__ = ["Done", "read_corpus", "trace_corpus"]

_LIST, _FORMAT = "corpus.json", "weft-corpus"


@dataclass
class Done:
    """How many texts were traced now, were there already, and which failed and why."""

    traced: int = 0
    there: int = 0
    failed: dict[str, str] = field(default_factory=dict)


def read_corpus(path: Path) -> dict[str, str]:
    """The texts of a corpus by their names: lines of a file, or the .txt files of a folder.

    Lines without a character but spaces are left out, and counted all the same: the trace of line
    7 is 000007. Raises: DataError: no such file, not UTF-8, or no text in it.
    """
    if path.is_dir():
        files = sorted(file for file in path.rglob("*.txt") if file.is_file())
        texts = {
            "-".join(file.relative_to(path).with_suffix("").parts): read_text(file, "text file")
            for file in files
        }
        if len(texts) < len(files):
            raise DataError(f"{path}: two texts have one name. Rename one of them.")
    else:
        lines = read_text(path, "corpus").removesuffix("\n").split("\n")
        texts = {f"{number:06d}": line.removesuffix("\r") for number, line in enumerate(lines, 1)}
    texts = {name: text for name, text in texts.items() if text.strip()}
    if not texts:
        raise DataError(f"{path}: no text in it; expected a text a line, or .txt files.")
    return texts


def trace_corpus(
    model: str,
    corpus: Path,
    output: Path,
    options: Options,
    *,
    workers: int = 1,
    threads: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Done:
    """Trace every text of a corpus that has no trace yet.

    Args:
        model: a run's folder; a folder or a name of a model of Hugging Face.
        corpus: a file with a text a line, or a folder of .txt files.
        output: the folder for the traces; one that an earlier call left is gone on with.
        options: as for one text.
        workers: processes. Each opens the model.
        threads: of each process; None: the cores divided by the workers.
        progress: told how many texts of how many are done.

    A text that cannot be traced is counted, and the others are traced.

    Raises: DataError: the folder holds another corpus; a worker was killed.
    """
    texts = read_corpus(corpus)
    with own_folder(output, "traces this corpus") as folder:
        _remember(folder, model, options, texts)
        done = Done()
        missing = {}
        for name, text in texts.items():
            if _is_there(folder / f"{name}.weft"):
                done.there += 1
            else:
                missing[name] = text
        progress(done.there, len(texts))
        if not missing:
            return done
        # Also where workers open it, so that an error of the model is one line, not one of each.
        opened = open_model(model, options)
        finished = (
            _by_processes(model, folder, options, missing, workers, threads)
            if workers > 1 and len(missing) > 1
            else _here(opened, folder, options, missing)
        )
        for name, reason in finished:
            if reason is None:
                done.traced += 1
            else:
                done.failed[name] = reason
            progress(done.there + done.traced + len(done.failed), len(texts))
    if opened.run is not None:
        tell_unknown(opened.run, "the corpus", "".join(missing.values()))
    return done


def _remember(folder: Path, model: str, options: Options, texts: dict[str, str]) -> None:
    """Write what is traced here, or check that it is the same as before."""
    asked = {
        name: value
        for name, value in asdict(options).items()
        if name not in ("overwrite", "verify")
    }
    digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
    content: dict[str, Any] = {"format": _FORMAT, "version": 1, "model": model, "options": asked,
                               "texts": digests}  # fmt: skip
    path = folder / _LIST
    remove_leftovers(folder)
    if path.exists():
        before = read_json(path, "list of a corpus")
        if not isinstance(before, dict) or before.get("format") != _FORMAT:
            raise DataError(f"{path}: not a list of weft's. Choose another folder.")
        for name in ("model", "options"):
            if before.get(name) != content[name]:
                raise DataError(
                    f"{folder}: its traces were made with another {name.removesuffix('s')}. Give "
                    "the same command again, or choose another folder."
                )
        known = before.get("texts")
        if not isinstance(known, dict):
            raise DataError(f"{path}: this list of a corpus is damaged. Choose another folder.")
        changed = [
            name
            for name in digests
            if known.get(name, digests[name]) != digests[name]
            and (folder / f"{name}.weft").exists()
        ]
        if changed:
            raise DataError(
                f"{folder}: the text {changed[0]} is not what it was when it was traced. Choose "
                "another folder, or remove its trace and the list."
            )
        content["texts"] = {**known, **digests}
    elif any(folder.iterdir()):
        raise DataError(
            f"{folder}: not empty, and no corpus was traced here. Choose another folder."
        )
    write_json(path, content)


def _is_there(path: Path) -> bool:
    """Whether a whole trace is at a path."""
    if not path.exists():
        return False
    open_folder(path)
    return True


def _here(
    opened: Opened, folder: Path, options: Options, texts: dict[str, str]
) -> Iterator[tuple[str, str | None]]:
    verified = Verified(opened, options)
    for name, text in texts.items():
        yield name, _one(opened, verified, name, text, folder, options)


def _one(
    opened: Opened, verified: Verified, name: str, text: str, folder: Path, options: Options
) -> str | None:
    """Trace one text; returns why it could not be, or None."""
    path = folder / f"{name}.weft"
    try:
        if not text:
            raise InputError("the text is empty; give at least one character.")
        known = verified.check(text)
        trace_opened(opened, text, path, options, verification=known)
    except InputError as error:
        return str(error)
    except DataError:
        # A worker of an earlier call that was killed may have ended it meanwhile.
        if not _is_there(path):
            raise
    return None


#: In a worker process: the model that its first task opened.
_worker: list[tuple[Opened, Verified, Path, Options]] = []


def _end_with_parent() -> None:
    """End this process as soon as the one that started it has ended, even by ``kill -9``.

    A pipe of multiprocessing closes then, on every system; on Linux the system also sends a signal,
    which needs no thread of ours to run.
    """
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SIGNAL_AT_DEATH_OF_PARENT, signal.SIGKILL)
    threading.Thread(target=watch, name="weft-parent", daemon=True).start()


#: The number of prctl's PR_SET_PDEATHSIG.
_SIGNAL_AT_DEATH_OF_PARENT = 1


def _begin(model: str, folder: Path, options: Options, threads: int) -> None:
    _end_with_parent()
    torch.set_num_threads(threads)
    opened = open_model(model, options)
    _worker.append((opened, Verified(opened, options), folder, options))


def _task(name: str, text: str) -> tuple[str, str | None]:
    opened, verified, folder, options = _worker[0]
    return name, _one(opened, verified, name, text, folder, options)


def _by_processes(
    model: str,
    folder: Path,
    options: Options,
    texts: dict[str, str],
    workers: int,
    threads: int | None,
) -> Iterator[tuple[str, str | None]]:
    each = threads or max(1, (os.cpu_count() or 1) // workers)
    # A process of its own, not a copy of this one: threads of torch do not survive a fork.
    with ProcessPoolExecutor(
        min(workers, len(texts)),
        mp_context=get_context("spawn"),
        initializer=_begin,
        initargs=(model, folder, options, each),
    ) as pool:
        waiting: set[Future[tuple[str, str | None]]] = set()
        remaining = iter(texts.items())
        try:
            while True:
                # A few at a time: a corpus is not sent whole.
                while len(waiting) < 2 * workers:
                    following = next(remaining, None)
                    if following is None:
                        break
                    waiting.add(pool.submit(_task, *following))
                if not waiting:
                    return
                ready, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in ready:
                    yield future.result()
        except BrokenProcessPool:
            raise DataError(
                f"{folder}: a worker was killed, perhaps for want of memory. What is traced is "
                "there: give the same command again, with fewer --workers, and it goes on."
            ) from None
        except WeftError:
            pool.shutdown(cancel_futures=True)
            raise
