"""Traces and runs on the Hub of Hugging Face: a trace is a data set there, a run a model.

    NAME.weft/   in a repository of data sets: the trace, file for file as on disk, and two tables,
                 layers.parquet and tokens.parquet, for the viewer of the Hub
    weft/        in a repository of models: the run; beside it, where Transformers has such an
                 architecture, the model as it opens it
    README.md    the card; one that is there already is left as it is

HF_ENDPOINT names another Hub, HF_TOKEN or `hf auth login` says who asks. No token is ever shown.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from weft.errors import DataError, InputError, optional_package
from weft.formats.folders import atomic_folder
from weft.formats.run import is_run
from weft.formats.trace_reader import Digests, open_folder
from weft.formats.trace_writer import EDGES, KEYS, MANIFEST, QUERIES_KEYS, RECEIVED, ROWS
from weft.jobs.hub_cards import run_card, trace_card

__all__ = ["Pulled", "Pushed", "pull", "push"]

Kind = Literal["dataset", "model"]

#: As the Hub has them: no -- or .., no .git, no . or - at an end, 96 characters.
_PART = r"[A-Za-z0-9](?:[\w.-]{0,94}\w)?"
_NAME = re.compile(rf"(?!.*(?:--|\.\.|\.git$))(?:(datasets|models)/)?({_PART}/{_PART})", re.ASCII)
_KINDS: dict[str, Kind] = {"datasets": "dataset", "models": "model"}
#: The files of a run that say how it went and what came of it; not those needed to train on.
_OF_RUN = (
    "run.json", "config.json", "vocabulary.json", "data.json", "best.safetensors", "metrics.jsonl",
    "measures.jsonl", "probe.safetensors",
)  # fmt: skip
_RUN = "weft"
#: The files that a trace has, some of them, besides its manifest.
_OF_TRACE = (EDGES, ROWS, KEYS, RECEIVED, QUERIES_KEYS)
#: What is fetched of a repository, whatever else it lists: a name leads nowhere but below a folder.
_SNAPSHOT = r"history/step-\d+\.safetensors"
_FETCHED: dict[Kind, re.Pattern[str]] = {
    "dataset": re.compile(
        rf"(?!\.{{1,2}}/|[A-Za-z]:)[^/\\\0]+/(?:{'|'.join(map(re.escape, (MANIFEST, *_OF_TRACE)))})"
    ),
    "model": re.compile(rf"{_RUN}/(?:{'|'.join(map(re.escape, _OF_RUN))}|{_SNAPSHOT})"),
}


@dataclass(frozen=True)
class Pushed:
    """What went to the Hub.

    repository: OWNER/NAME; kind: of it.
    url: of its page.
    files: how many, and bytes of them.
    card: whether README.md was written; False: there was one.
    names: folders outside of this one that its files name.
    """

    repository: str
    kind: Kind
    url: str
    files: int
    bytes: int
    card: bool
    names: tuple[str, ...]


@dataclass(frozen=True)
class Pulled:
    """What came from the Hub: the folder, and what it is: "trace", "traces" or "run"."""

    folder: Path
    what: str
    commit: str


def push(path: Path, repository: str, *, private: bool = False, history: bool = False) -> Pushed:
    """Send a trace, a folder of traces, or a run.

    Args:
        path: of it.
        repository: OWNER/NAME; made where there is none.
        private: whether a new one is seen by its owner alone.
        history: whether the snapshots of a run go along.

    Raises: InputError: no such name, huggingface_hub is missing, or the Hub refuses; DataError: no
        trace and no run, or a damaged one.
    """
    asked, name = _named(repository)
    api = _hub()
    kind: Kind = "model" if is_run(path) else "dataset"
    if asked not in (None, kind):
        raise InputError(f"{repository}: {path} is for a {kind}. Write {kind}s/{name}, or {name}.")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if kind == "model":
            card, names = _stage_run(path, folder, name, history), _paths_in(path)
        else:
            card, names = _stage_traces(path, folder, name), []
        files = [file for file in folder.rglob("*") if file.is_file()]
        size = sum(file.stat().st_size for file in files)
        with _told(name):
            url = api.create_repo(name, repo_type=kind, private=private or None, exist_ok=True)
            new_card = not api.file_exists(name, "README.md", repo_type=kind)
            if new_card:
                (folder / "README.md").write_text(card, encoding="utf-8")
            places = {place.name for place in folder.iterdir() if place.is_dir()}
            before = api.list_repo_files(name, repo_type=kind)
            api.upload_folder(
                repo_id=name, folder_path=folder, repo_type=kind,
                commit_message=f"{_name_of(path)}, by weft push",
                delete_patterns=[
                    glob.escape(file) for file in before
                    if _FETCHED[kind].fullmatch(file) and file.split("/")[0] in places
                ],
            )  # fmt: skip
    return Pushed(name, kind, _public(str(url)), len(files), size, new_card, tuple(names))


def pull(repository: str, output: Path) -> Pulled:
    """Fetch what `push` has sent; every file of a trace is held against its digest.

    Args:
        repository: OWNER/NAME; datasets/OWNER/NAME or models/OWNER/NAME where there are both.
        output: the folder to make: a trace, a folder of several, or a run.

    Raises: InputError: no such repository, or it may not be read; DataError: it holds nothing of
        weft's, it is damaged, or the folder exists.
    """
    asked, name = _named(repository)
    api = _hub()
    with atomic_folder(output) as new:
        kind = _kind_of(api, asked, name)
        # Within what is given up as a whole: a kill leaves nothing else.
        fetched = (new / ".fetched").absolute()
        fetched.mkdir()
        with _told(name):
            found = api.repo_info(name, repo_type=kind)
            commit = str(found.sha)
            files = [file.rfilename for file in found.siblings or ()]
            own = [glob.escape(file) for file in files if _FETCHED[kind].fullmatch(file)]
            if own:
                api.snapshot_download(
                    name, repo_type=kind, revision=commit, local_dir=fetched, allow_patterns=own
                )
        take = _take_run if kind == "model" else _take_traces
        with _said_of(name, fetched):
            what = take(fetched, new, name)
        shutil.rmtree(fetched)
    return Pulled(output, what, commit)


def _kind_of(api: Any, asked: Kind | None, name: str) -> Kind:
    """The kind of the repository of a name: the one that is asked for, or the only one."""
    if asked is not None:
        return asked
    with _told(name):
        kinds = [kind for kind in _KINDS.values() if api.repo_exists(name, repo_type=kind)]
    if len(kinds) == 1:
        return kinds[0]
    raise InputError(
        f"{name}: the Hub has a data set and a model of this name. Write datasets/{name} or "
        f"models/{name}."
        if kinds
        else f"{name}: the Hub has no such repository that you may read. Check the name, or log "
        "in: hf auth login."
    )


# What is sent.


def _stage_traces(path: Path, folder: Path, repository: str) -> str:
    """Links to the files of one trace or of several, as they lie in the repository; their card."""
    from weft.jobs.head_table import find_traces

    if path.is_dir() and not (path / MANIFEST).exists():
        places = sorted(manifest.parent for manifest in path.glob(f"*/{MANIFEST}"))
    else:
        places = [path]
    traces = find_traces([path]) if places else []
    if not traces:
        raise DataError(f"{path}: no run, and no trace is in it. Check the path.")
    from weft.jobs.hub_tables import write_tables

    names = [_name_of(place) for place in places]
    for place, trace, seen in zip(places, traces, names, strict=True):
        if not _FETCHED["dataset"].fullmatch(f"{seen}/{MANIFEST}"):
            raise InputError(
                f"{place}: `weft pull` takes no trace of this name, which is a path elsewhere. "
                "Rename it, without \\ and without : after one letter."
            )
        into = folder / seen
        into.mkdir()
        for name in _verified_files(place):
            (into / name).symlink_to((place / name).resolve())
        write_tables(trace, into)
    return trace_card(repository, traces, names)


def _name_of(path: Path) -> str:
    """The last name of a path as it is written, a link's own; of . and .. that of the folder."""
    return path.name if path.name not in ("", "..") else path.resolve().name


def _verified_files(folder: Path) -> list[str]:
    """The names of the files of a trace, each of which is as it was written."""
    folder, manifest = open_folder(folder)
    digests = Digests(folder, manifest)
    for name in manifest["files"]:
        if name not in _OF_TRACE:
            raise DataError(
                f"{folder}: this trace is damaged: {MANIFEST} names {name!r}, which is no file of "
                "a trace. Trace again, or fetch it again."
            )
        try:
            digests.verify(name)
        except (OSError, ValueError) as error:
            raise DataError(
                f"{folder / name}: this trace is damaged: {error}. Trace again, or fetch it again."
            ) from None
    return [MANIFEST, *manifest["files"]]


def _stage_run(path: Path, folder: Path, repository: str, history: bool) -> str:
    """Links to the files of a run, and its model as Transformers opens it; its card."""
    from weft.jobs.model_export import export_model
    from weft.training.inference import open_run

    run = open_run(path)
    into = folder / _RUN
    into.mkdir()
    for name in _OF_RUN:
        if (path / name).exists():
            (into / name).symlink_to((path / name).resolve())
    if history:
        (into / "history").mkdir()
        for file in sorted((path / "history").glob("step-*.safetensors")):
            (into / "history" / file.name).symlink_to(file.resolve())
    loading = None
    try:
        exported = export_model(path, folder / "model", "huggingface")
    except InputError:
        pass  # Transformers has no such architecture: the run alone goes
    else:
        for file in exported.folder.iterdir():
            file.rename(folder / file.name)
        exported.folder.rmdir()
        loading = exported.loading
    return run_card(repository, run, loading)


def _paths_in(run: Path) -> list[str]:
    """The absolute paths that the configuration of a run names."""
    from weft.formats.run import RunFolder

    task = RunFolder.open(run).config().get("task", {})
    texts = task.values() if isinstance(task, dict) else ()
    return sorted({text for text in texts if isinstance(text, str) and Path(text).is_absolute()})


# What is fetched.


@contextmanager
def _said_of(repository: str, fetched: Path) -> Iterator[None]:
    """Errors in what was fetched, said of the files on the Hub: those that lie here go away."""
    try:
        yield
    except (DataError, InputError) as error:
        text = str(error).replace(f"{fetched}{os.sep}", f"{repository}: ")
        if isinstance(error, DataError) and str(fetched) in str(error) and "Upgrade" not in text:
            # The last sentence is the remedy where a trace or a run was made.
            what = text.rpartition(". ")[0] or text.removesuffix(".")
            text = f"{what}. Pull again, or push it anew."
        raise type(error)(text) from None


def _take_traces(fetched: Path, new: Path, repository: str) -> str:
    """Move the traces among what was fetched to their place, each file verified."""
    places = sorted(manifest.parent for manifest in fetched.glob(f"*/{MANIFEST}"))
    if not places:
        raise DataError(
            f"{repository}: this data set holds no trace of weft's. `weft push TRACE OWNER/NAME` "
            "makes such a one."
        )
    for place in places:
        into = new if len(places) == 1 else new / place.name
        into.mkdir(exist_ok=True)
        for name in _verified_files(place):
            shutil.move(place / name, into / name)
    return "trace" if len(places) == 1 else "traces"


def _take_run(fetched: Path, new: Path, repository: str) -> str:
    """Move a run among what was fetched to its place, if its weights can be read."""
    from weft.training.inference import open_run

    run = fetched / _RUN
    if not is_run(run):
        raise DataError(
            f"{repository}: this model holds no run of weft's. A model of Transformers is traced "
            f"by its name: weft trace {repository} --text ... -o t.weft."
        )
    open_run(run)
    for file in run.iterdir():
        shutil.move(file, new / file.name)
    (new / "history").mkdir(exist_ok=True)
    return "run"


# The Hub.


def _named(repository: str) -> tuple[Kind | None, str]:
    """The kind that is asked for, if one is, and OWNER/NAME."""
    found = _NAME.fullmatch(repository)
    if found is None:
        raise InputError(
            f"{repository}: expected the name of a repository on the Hub, OWNER/NAME, of letters, "
            "digits, -, _ and the full stop."
        )
    return _KINDS.get(found[1]), found[2]


def _hub() -> Any:
    """The interface to the Hub, without bars and remarks of its own."""
    with optional_package("The Hub", '"weft[hf]"'):
        import huggingface_hub.utils
    said: Any = huggingface_hub.utils
    said.disable_progress_bars()
    said.logging.set_verbosity_error()
    return huggingface_hub.HfApi(endpoint=_endpoint())


def _endpoint() -> str:
    """The address of the Hub. Raises: InputError: it is none; it may hold a password, and is not
    shown.
    """
    address = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    try:
        parts = urlsplit(address)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        known = False
    if not known:
        raise InputError("HF_ENDPOINT: expected an address, as https://huggingface.co. Unset it.")
    return address


def _public(url: str) -> str:
    """An address without what may be secret in it: a name, a password, a query."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return f"{parts.scheme}://{host}{f':{parts.port}' if parts.port else ''}{parts.path}"


@contextmanager
def _told(repository: str) -> Iterator[None]:
    """What the Hub refuses, as one line. Nothing that its library says is repeated."""
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    # What the library below raises where nobody answers: another one from version to version.
    transport: type[BaseException] = HfHubHTTPError.__bases__[0]

    try:
        yield
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        reason = {
            401: "the Hub does not know who asks. Log in: hf auth login, or set HF_TOKEN",
            403: "the Hub does not allow this. Check who owns the repository, and that the token "
            "may write",
            404: "the Hub has no such repository, or none that you may see. Check the name",
            409: "the Hub says that it exists already as something else. Take another name",
        }.get(status or 0, f"the Hub refuses (status {status}). Try again later")
        raise InputError(f"{repository}: {reason}.") from None
    except OfflineModeIsEnabled:
        raise InputError(
            f"{repository}: HF_HUB_OFFLINE is set, and this needs the Hub. Unset it."
        ) from None
    except (transport, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of a disk
        hub = _public(_endpoint())
        raise InputError(
            f"{repository}: {hub} cannot be reached. Check the network, and HF_ENDPOINT."
        ) from None
