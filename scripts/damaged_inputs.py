"""Damaged traces, runs, models and configurations: each is refused in one line, or read as it was.

    python scripts/damaged_inputs.py [--cases 10000] [--seed 0] [--workers 2] [--only NUMBER]

A case copies a small whole input, damages one file of it in a way that its number and the seed say
(bytes truncated, flipped or exchanged; a pipe, a folder, a link or nothing in its place;
forged numbers, types, shapes and columns, often with digests made to fit), and reads all of it
through the library, part by part, in a child process. A case is wrong when

    anything but an error of headloom in one line ends it, or a process dies
    it takes longer than 30 seconds, or 4 GiB of memory beside what the libraries take
    what is read is not what was written, although a digest could tell

Who changes a file and makes its digest fit it, or a file that has none, writes another input, which
is read as it says: that is counted as rewritten. The last line is the summary; the exit code is 1
where a case is wrong.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import hashlib
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

import headloom
from headloom.errors import HeadloomError
from headloom.formats.history import History
from headloom.formats.manifest import manifest_digest
from headloom.formats.run import RunFolder
from headloom.tracing.pretrained import load_pretrained
from headloom.training.config import load_config
from headloom.training.inference import open_run
from headloom.training.loop import train
from headloom.training.progress import Callback

SECONDS, BYTES = 30, 4 << 30
KINDS = ("trace", "trace", "trace", "run", "run", "run", "model", "config")
CONFIG = """[task]
kind = "dates"
train_examples = 60
test_examples = 4
[model]
width = 8
heads = 2
feed_forward = 8
encoder_layers = 1
decoder_layers = 1
dropout = 0.0
[training]
max_steps = 3
batch_tokens = 256
warmup = 2
validate_every = 2
checkpoint_every = 2
"""
Chance = random.Random
#: What each part of an input holds: its name, a digest of it, and whether the disk has one too.
Reading = dict[str, str]


# Whole inputs.


def make_originals(folder: Path) -> None:
    """Make a trace, a run, a model of Hugging Face and a configuration, each by its name."""
    (folder / "config").mkdir(parents=True)
    config = folder / "config" / "config.toml"
    config.write_text(CONFIG)
    train(load_config(config), folder / "run", Callback())
    words = {letter: number for number, letter in enumerate(["[UNK]", *"abcdefghij"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")
    made.save_pretrained(folder / "model")
    settings = transformers.GPT2Config(
        vocab_size=11, n_embd=8, n_layer=2, n_head=2, n_positions=16,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(settings).eval()
    model.save_pretrained(folder / "model")
    ids = torch.arange(1, 10)[None]
    headloom.trace(model, ids, tokenizer=made, keep=headloom.Top(3)).save(folder / "trace")


# Reading.


def digest(value: object) -> str:
    """Return the content of a value in a form that can be compared."""
    if isinstance(value, Tensor):
        content = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(content).hexdigest()}"
    if isinstance(value, list | tuple):
        value = [digest(part) for part in value]
    return hashlib.sha256(repr(value).encode("utf-8", "backslashreplace")).hexdigest()


_GRAPH = ("keys", "scores", "weights", "lse", "entropy", "rest")


def parts_of(kind: str, folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the parts of an input with their readers; those with a star have no digest on disk."""
    if kind == "config":
        yield "config*", lambda: load_config(folder / "config.toml")
    elif kind == "model":
        yield "model*", lambda: list(load_pretrained(folder)[0].parameters())
    elif kind == "run":
        yield "run*", lambda: RunFolder.open(folder).config()
        yield "state*", lambda: RunFolder(folder).state
        yield "metrics*", lambda: RunFolder(folder).reports.read()
        history = History(folder / "history")
        yield "measures", history.measures
        yield "snapshots", lambda: [
            [(layer.name, layer.measures, list(layer.matrices.values())) for layer in
             history[step].layers] for step in history.steps
        ]  # fmt: skip
        yield "weights", lambda: list(open_run(folder).model.parameters())
    else:
        trace = headloom.open(folder)
        yield "head", lambda: (trace.sequences, [(x.name, x.shape, x.mask) for x in trace.layers])
        for layer in trace.layers[:20]:
            yield f"{layer.name} graph", lambda x=layer: [getattr(x.graph, n) for n in _GRAPH]
            yield f"{layer.name} queries", lambda x=layer: [x.queries, x.keys, x.value_norms]
            yield f"{layer.name} tile", lambda x=layer: x.matrix and x.matrix[0, :3, :5]


def read(kind: str, folder: Path) -> tuple[Reading, str]:
    """Return the content of each readable part, and the error line of each other one."""
    held: Reading = {}
    refused = ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = parts_of(kind, folder)
        while True:
            try:
                name, part = next(parts, ("", lambda: None))
                if not name:
                    return held, refused
                held[name] = digest(part())
            except HeadloomError as error:
                refused = str(error)
                if not refused or "\n" in refused:
                    raise RuntimeError(f"not one line: {refused!r:.200}") from error


# Damage: as a disk or a careless copy does.


def flip(content: bytearray, chance: Chance) -> None:
    """Flip some bits, more often in headers."""
    for _ in range(chance.choice((1, 1, 3))):
        near = chance.choice((len(content), min(64, len(content))))
        content[chance.choice((1, -1)) * chance.randrange(near)] ^= 1 << chance.randrange(8)


def exchange(content: bytearray, chance: Chance) -> None:
    """Cut off the end, or replace the content."""
    if chance.random() < 0.5:
        del content[chance.randrange(len(content)) :]
        return
    content[:] = chance.choice((b"", b"null", b"[]", b"{}", chance.randbytes(300), b"\xff\xfe"))


BYTE_DAMAGES = (flip, exchange)


def put_elsewhere(file: Path, chance: Chance) -> str:
    """Another kind of thing, or nothing, in the place of a file."""
    file.unlink()
    way = chance.choice(("removed", "pipe", "folder", "link"))
    if way == "pipe":
        os.mkfifo(file)
    elif way == "folder":
        file.mkdir()
    elif way == "link":
        file.symlink_to(chance.choice((file.name, "/dev/zero", "/etc/hostname", "/nowhere")))
    return way


# Damage: as a forger does, so that the file looks whole.

FORGED = (
    0, -1, 1, 3, 255, 2**31, 2**53 + 1, 2**63 - 1, 10**30, 10**400, 0.5, 1e308, float("nan"), True,
    None, "", "\x1b[31m\u202e", "x" * 5_000, "../../etc/passwd", [], {}, [[]], [10**30] * 3,
)  # fmt: skip
RAW = ("1" * 5_000, "[" * 100_000 + "]" * 100_000, '{"a":' * 100_000)


def forge(content: object, chance: Chance) -> None:
    """Change one value in what a JSON file says, deep or shallow alike."""
    while isinstance(content, dict | list) and content:
        key = chance.choice(list(content) if isinstance(content, dict) else range(len(content)))
        inner = content[key]
        if not isinstance(inner, dict | list) or not inner or chance.random() < 0.2:
            if chance.random() < 0.2:
                del content[key]
            else:
                content[key] = chance.choice(FORGED)
            return
        content = inner


def forge_json(file: Path, chance: Chance) -> None:
    """Change a value of a JSON file, or of one line of it."""
    lines = file.read_text("utf-8").splitlines() if file.suffix == ".jsonl" else None
    number = chance.randrange(len(lines)) if lines else 0
    content = json.loads(lines[number] if lines else file.read_text("utf-8"))
    forge(content, chance)
    text = chance.choice(RAW) if chance.random() < 0.1 else json.dumps(content, indent=1)
    if lines:
        lines[number] = text.replace("\n", "")
        text = "\n".join(lines) + "\n"
    file.write_text(text, "utf-8")


def forge_parquet(file: Path, chance: Chance) -> None:
    """Change a column of a table: type, value, order or length."""
    table = pq.read_table(file)
    number = chance.randrange(table.num_columns)
    name, column = table.column_names[number], table.column(number)
    values = column.to_pylist()
    match chance.randrange(5):
        case 0:
            table = table.drop_columns([name])
        case 1:
            kind = chance.choice((pa.string(), pa.float64(), pa.int8()))
            table = table.set_column(number, name, column.cast(kind, safe=False))
        case 2:
            values[chance.randrange(len(values))] = chance.choice((-1, 2**15 - 1, None))
            table = table.set_column(number, name, pa.array(values, column.type))
        case 3:
            table = table.slice(0, chance.randrange(len(values)))
        case _:
            table = pa.concat_tables([table, table])
    pq.write_table(table, file, row_group_size=chance.choice((1, 7, 10**6)))


def forge_tensors(file: Path, chance: Chance) -> None:
    """Change the header of a tensor file: a type, a shape, a name, a note, its length."""
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    forge(header, chance)
    text = json.dumps(header).encode()
    length = chance.choice((len(text), len(text), len(text), 0, 2**63, len(content)))
    file.write_bytes(length.to_bytes(8, "little") + text + content[8 + size :])


FORGERS: dict[str, Callable[[Path, Chance], None]] = {
    ".json": forge_json, ".jsonl": forge_json, ".parquet": forge_parquet,
    ".safetensors": forge_tensors,
}  # fmt: skip


def reseal(folder: Path, file: Path) -> bool:
    """Make the digests of a trace fit again; False: it has none."""
    manifest = folder / "trace.json"
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
        content = json.loads(manifest.read_text("utf-8"))
        if file != manifest:
            seal = {"bytes": file.stat().st_size}
            content["files"][file.name] |= seal | {
                "sha256": hashlib.sha256(file.read_bytes()).hexdigest()
            }
        content["sha256"] = manifest_digest(content)
        manifest.write_text(json.dumps(content, indent=1), "utf-8")
        return True
    return False


def damage(kind: str, folder: Path, chance: Chance) -> tuple[str, bool]:
    """Damage one file; what was done, and whether a digest tells it."""
    files = sorted(path for path in folder.rglob("*.*") if path.is_file() and path.stat().st_size)
    file = chance.choice(files)
    tells = kind == "trace" or (kind == "run" and file.suffix == ".safetensors")
    if chance.random() < 0.2:
        what = put_elsewhere(file, chance)
        return f"{what}: {file.name}", tells and (kind == "trace" or what != "removed")
    if chance.random() < 0.5 and file.suffix in FORGERS:
        FORGERS[file.suffix](file, chance)
        what = "forged"
    else:
        way = chance.choice(BYTE_DAMAGES)
        content = bytearray(file.read_bytes())
        way(content, chance)
        file.write_bytes(content)
        what = way.__name__
    sealed = kind == "trace" and chance.random() < 0.5 and reseal(folder, file)
    return f"{what}: {file.name}{' (digest made to fit)' * sealed}", tells and not sealed


# Cases.


def too_long(*_: object) -> None:
    """End what does not end."""
    raise TimeoutError("it does not end")


def examine(number: int, seed: int, whole: Path, expected: dict[str, Reading]) -> tuple[str, str]:
    """Damage a copy of an input and read it; the outcome, and what there is to say of it."""
    chance = random.Random(f"{seed} {number}")
    kind = chance.choice(KINDS)
    with tempfile.TemporaryDirectory(prefix="headloom-damaged-") as place:
        folder = Path(place) / kind
        shutil.copytree(whole / kind, folder)
        what, tells = damage(kind, folder, chance)
        signal.signal(signal.SIGALRM, too_long)
        signal.alarm(SECONDS)
        try:
            held, refused = read(kind, folder)
        except Exception as error:
            return "wrong", f"{kind}, {what}: {type(error).__name__}: {error!s:.300}"
        finally:
            signal.alarm(0)
        other = [name for name, value in held.items() if expected[kind].get(name) != value]
        told = [name for name in other if tells and not name.endswith("*")]
        if told:
            return "wrong", f"{kind}, {what}: other data: {', '.join(told)}"
        return "refused" if refused else "rewritten" if other else "equal", f"{kind}, {what}"


def work(numbers: list[int], seed: int, whole: Path, expected: dict[str, Reading]) -> None:
    """Go through cases in a child; each outcome is a line on its standard output."""
    size = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    limit = size * os.sysconf("SC_PAGE_SIZE") + BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for number in numbers:
        with (whole / "outcomes").open("a") as file:
            file.write(f"{number} begun\n")
            file.flush()
            outcome, said = examine(number, seed, whole, expected)
            file.write(f"{number} {outcome} {said!r}\n")


def main() -> None:
    """Go through the cases, in child processes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", type=int, help="the number of one case")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    numbers = [*range(asked.cases)] if asked.only is None else [asked.only]
    with tempfile.TemporaryDirectory(prefix="headloom-originals-") as folder:
        whole = Path(folder)
        make_originals(whole)
        expected = {kind: read(kind, whole / kind)[0] for kind in set(KINDS)}
        fork = multiprocessing.get_context("fork")
        todo = [numbers[start :: asked.workers] for start in range(asked.workers)]
        while any(todo):
            children = [fork.Process(target=work, args=(part, asked.seed, whole, expected))
                        for part in todo]  # fmt: skip
            for child in children:
                child.start()
            for child in children:
                child.join()
            # A case that was begun and has no outcome ended its process: go on after it.
            lines = (whole / "outcomes").read_text().splitlines()
            begun = {int(line.split()[0]) for line in lines}
            todo = [[number for number in part if number not in begun] for part in todo]
    outcomes = dict.fromkeys(begun, ("wrong", "its process died"))
    for line in lines:
        number, outcome, *said = line.split(" ", 2)
        if outcome != "begun":
            outcomes[int(number)] = (outcome, *said)
    counts = collections.Counter(outcome for outcome, _ in outcomes.values())
    for number, (outcome, said) in sorted(outcomes.items()):
        if outcome == "wrong" or asked.only is not None:
            print(f"{outcome} {number}: {said}")
    print(
        f"{len(outcomes):,} cases: {counts['refused']:,} refused in one line, {counts['equal']:,} "
        f"read equal, {counts['rewritten']:,} read as rewritten, {counts['wrong']:,} wrong"
    )
    sys.exit(counts["wrong"] > 0)


if __name__ == "__main__":
    main()
