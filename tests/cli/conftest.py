"""A tiny run of each task, trained once, by the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.forked import Loaded
from tests.saved_models import LETTERS, save_writer

import headloom.cli
from headloom.models.decoding import Hypothesis, beam_hypotheses
from headloom.models.transformer import Transformer
from headloom.training.inference import TrainedRun

TRAINING = """
[training]
max_steps = 3
batch_tokens = 256
warmup = 2
validate_every = 2
checkpoint_every = 2
"""
MODEL = f"""
[model]
width = 16
heads = 2
feed_forward = 16
decoder_layers = 1
dropout = 0.0
{TRAINING}"""

TASKS = {
    "dates": 'kind = "dates"\ntrain_examples = 200\ntest_examples = 4\n',
    "translation": (
        'kind = "translation"\nfolder = "{folder}"\ntrain = ["train.en", "train.de"]\n'
        'valid = ["valid.tsv"]\ntest = ["valid.tsv"]\nvocabulary = 300\n'
    ),
    "language": 'kind = "language"\nfile = "{folder}/train.en"\nblock = 8\n',
}


@dataclass(frozen=True)
class Result:
    """What a command left: exit code, standard output and error."""

    code: int
    out: str
    err: str

    def one_line(self) -> str:
        """The error of bad input: exit code 2, one line that begins with headloom's name."""
        assert self.code == 2
        (line,) = self.err.splitlines()
        assert line.startswith("headloom: ")
        return line

    def json(self) -> Any:
        """The object that a command printed which ended well."""
        assert self.code == 0, self.err
        return json.loads(self.out)


Command = Callable[..., Result]


@pytest.fixture
def headloom_main(capsys: pytest.CaptureFixture[str]) -> Command:
    """A function that runs a command in this process."""

    def call(*arguments: object) -> Result:
        capsys.readouterr()
        code = 0
        try:
            headloom.cli.main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = 0 if stop.code is None else int(stop.code)
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return call


def ran(*arguments: object) -> None:
    """Run a command in this process, which ends well."""
    try:
        headloom.cli.main([str(argument) for argument in arguments])
    except SystemExit as stop:
        assert not stop.code


def run_headloom(*arguments: object, stdin: bytes = b"", **environment: str) -> Result:
    """Run ``python -m headloom`` in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "headloom", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture(scope="session")
def headloom_process(loaded: Loaded) -> Command:
    """A function that runs a command in a process of its own.

    A forked one, which has torch loaded already; where its environment is to differ, one that
    starts anew.
    """

    def call(*arguments: object, stdin: bytes = b"", **environment: str) -> Result:
        if environment:
            return run_headloom(*arguments, stdin=stdin, **environment)
        code, out, err = loaded.run(*arguments, stdin=stdin)
        return Result(code, out.decode(), err.decode())

    return call


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts and the configuration of each task."""
    folder = tmp_path_factory.mktemp("data")
    english = [f"the {a} sees the {b}" for a in ("cat", "dog", "cow") for b in ("cat", "dog")]
    german = [line.replace("the", "das").replace("sees", "sieht") for line in english]
    (folder / "train.en").write_text("\n".join(english * 4) + "\n")
    (folder / "train.de").write_text("\n".join(german * 4) + "\n")
    pairs: Sequence[tuple[str, str]] = list(zip(english, german, strict=True))[:3]
    (folder / "valid.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs))
    for name, task in TASKS.items():
        # A language model has no encoder.
        model = MODEL if name == "language" else MODEL.replace("heads", "encoder_layers = 1\nheads")
        (folder / f"{name}.toml").write_text("[task]\n" + task.format(folder=folder) + model)
    return folder


@pytest.fixture(scope="session")
def runs(data: Path) -> Path:
    """The folder with a trained run of each task; tests leave these as they are."""
    folder = data / "runs"
    for name in TASKS:
        ran("train", data / f"{name}.toml", "--run", folder / name)
    return folder


@pytest.fixture(scope="session")
def trace_path(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of the translation run; tests leave it as it is."""
    path = tmp_path_factory.mktemp("traces") / "cat.loom"
    ran("trace", runs / "translation", "--text", "the cat", "-o", path)
    return path


@pytest.fixture(scope="session")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random GPT-2 that can write, over letters."""
    folder = tmp_path_factory.mktemp("models") / "writer"
    return save_writer(folder, width=8, layers=2, heads=2, positions=16)


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """Fifteen words in the order of their ids, by a tokenizer that is saved in tmp_path."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]", mask_token="[MASK]"
    ).save_pretrained(tmp_path)
    return words


def assert_one_line(result: Result, *parts: str) -> None:
    line = result.one_line()
    assert all(part in line for part in parts), line


def searched(run: TrainedRun, text: str, beam: int, max_length: int) -> list[Hypothesis]:
    """What the library's own search finds for a text."""
    words, model = run.vocabulary, run.model
    assert isinstance(model, Transformer)
    source = torch.tensor([[*words.encode(text), words.end]])
    (ranked,) = beam_hypotheses(
        model, model.start(source), 1, start=words.start, end=words.end, max_length=max_length,
        beam=beam,
    )  # fmt: skip
    return ranked


def traces_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.loom"))
