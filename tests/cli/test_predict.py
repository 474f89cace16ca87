"""`headloom predict`: lines translated, continued, classified; and what --json says of them."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cli.conftest import Command, ran, searched, traces_in

import headloom
from headloom.formats.pharaoh import GoldLinks
from headloom.models.dense import current_products
from headloom.models.transformer import Transformer
from headloom.training.inference import TrainedRun, generate_text, open_run

TEXTS = ["de: 17. März 2024", "", "en: May 3, 1999", "fr: 1 mai 2001"]
#: What the tiny runs have never seen, and how it is shown.
STRANGE, SHOWN = "ж\u202e€ж", r"characters not in the vocabulary .*: ж ‹202E› € \(3\)$"


def objects(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "lines"
    path.write_text("".join(f"{text}\n" for text in TEXTS))
    return path


def test_a_file_is_as_standard_input(
    headloom_process: Command, headloom_main: Command, runs: Path, file: Path
) -> None:
    """Also empty lines, and those with characters that other programs take for line ends."""
    file.write_bytes(file.read_bytes() + "\r\n\x0cthe\u2028cow\x85sees\n\nlast".encode())
    command = ("predict", runs / "dates", "--beam", 2)
    piped = headloom_process(*command, stdin=file.read_bytes())
    assert piped.code == 0 and piped.out.count("\n") == 8
    (file.parent / "lines.gz").write_bytes(gzip.compress(file.read_bytes()))
    for path in (file, f"{file}.gz"):
        assert headloom_main(*command, "--file", path).out == piped.out
    described = headloom_main(*command, "--file", file, "--json")
    best = [line["hypotheses"][:1] for line in objects(described.out)]
    texts = [" ".join(kept[0]["text"].splitlines()) if kept else "" for kept in best]
    assert texts == piped.out.split("\n")[:-1]
    alone = headloom_process(*command, stdin=TEXTS[2].encode())
    assert alone.out == piped.out.split("\n")[2] + "\n"
    assert headloom_process(*command, stdin=b"").out == ""


def test_json_has_the_n_best_and_their_scores(
    headloom_main: Command, runs: Path, file: Path
) -> None:
    run = open_run(runs / "dates")
    result = headloom_main(
        "predict", runs / "dates", "--beam", 4, "--n-best", 3, "--json", "--file", file
    )
    assert result.code == 0, result.err
    lines = objects(result.out)
    assert [line["line"] for line in lines] == [1, 2, 3, 4]
    assert [line["source"] for line in lines] == TEXTS
    assert lines[1]["hypotheses"] == lines[1]["source_tokens"] == []
    for line in filter(lambda line: line["source"], lines):
        assert line["source_tokens"] == list(line["source"])
        expected = searched(run, line["source"], 4, 2 * len(line["source"]) + 34)[:3]
        for hypothesis, known in zip(line["hypotheses"], expected, strict=True):
            assert hypothesis["tokens"] == run.vocabulary.token_strings(known.tokens)
            assert hypothesis["ended"] == known.ended
            total = pytest.approx(known.log_probability, abs=1e-3)
            assert hypothesis["log_probability"] == total
            length = len(known.tokens) + known.ended
            assert hypothesis["score"] == pytest.approx(known.log_probability / length, abs=1e-4)


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learned its few sentences, and the file of lines for it."""
    run = tmp_path_factory.mktemp("trained") / "run"
    changes = {
        "training.max_steps": 100, "training.peak_learning_rate": 0.02, "training.warmup": 20,
        "training.validate_every": 100, "training.label_smoothing": 0, "model.width": 32,
    }  # fmt: skip
    options = [part for change in changes.items() for part in ("--set", "{}={}".format(*change))]
    ran("train", data / "translation.toml", "--run", run, *options)
    (run.parent / "lines").write_text(
        "the cat sees the dog\n\nthe cows\nthe cow sees the cat\nthe dog sees the cow\n"
    )
    return run


def words_of(tokens: list[str]) -> list[list[int]]:
    """The places of the tokens of each word: it begins at a token with a space."""
    words: list[list[int]] = []
    for place, token in enumerate(tokens):
        if token.startswith(" "):
            words.append([])
        words[-1].append(place)
    return words


def test_alignments_are_those_of_a_trace_of_the_translation(
    headloom_main: Command, trained: Path
) -> None:
    """By the formula, from the tokens: a word's rows, their mean; a word's columns, their sum."""
    run = open_run(trained)
    result = headloom_main(
        "predict", trained, "--beam", 3, "--n-best", 2, "--json", "--file",
        trained.parent / "lines",
    )  # fmt: skip
    assert result.code == 0, result.err
    compared = 0
    for line in objects(result.out):
        most = 2 * len(line["source_tokens"]) + 34
        known = searched(run, line["source"], 3, most)[:2] if line["source"] else []
        for hypothesis, searched_for in zip(line["hypotheses"], known, strict=True):
            if "".join(hypothesis["tokens"]) != " " + hypothesis["text"]:
                continue
            matrices = traced_weights(run, line["source"], searched_for.tokens)
            source, target = words_of(line["source_tokens"]), words_of(hypothesis["tokens"])
            mean = torch.zeros(len(target), len(source))
            # Row 0 is that of the start token: row t writes token t.
            for t, rows in enumerate(target):
                for s, columns in enumerate(source):
                    mean[t, s] = matrices[:, rows][:, :, columns].sum(2).mean()
            torch.testing.assert_close(
                torch.tensor(hypothesis["weights"]), mean, atol=2e-6, rtol=1e-4
            )
            links = GoldLinks.of_line(hypothesis["alignment"])
            assert links is not None and links.sure
            for s, t in links.sure:  # each other's best, but for what is rounded
                assert max(mean[t].max(), mean[:, s].max()) - mean[t, s] < 1e-5
            compared += 1
    assert compared >= 6


def traced_weights(run: TrainedRun, text: str, written: list[int]) -> torch.Tensor:
    """The weights of the first layer of cross-attention, (heads, 1 + written, source tokens)."""
    words = run.vocabulary
    inputs = {
        "source": torch.tensor([[*words.encode(text), words.end]]),
        "target": torch.tensor([[words.start, *written]]),
    }
    traced = headloom.trace(run.model, inputs, tokenizer=words, keep=headloom.All())
    assert isinstance(traced, headloom.Trace)
    return traced.layer("cross", 0).graph.to_dense()


def test_texts_are_continued(headloom_process: Command, runs: Path) -> None:
    command = ("predict", runs / "language", "--max-new-tokens", 12)
    first = headloom_process(*command, stdin=b"the c\nthe d\n")
    run = open_run(runs / "language")
    texts = [prompt + generate_text(run, prompt, length=12) for prompt in ("the c", "the d")]
    assert first.out.splitlines() == texts
    (one,) = objects(headloom_process(*command, "--json", stdin=b"the c\n").out)
    assert one["prompt"] == "the c" and "the c" + one["text"] == texts[0]
    model = headloom.load(runs / "language")
    drawn = {model.generate("the c", max_new_tokens=12, seed=seed) for seed in range(5)}
    assert len(drawn) > 1
    # A nucleus of one token is the likeliest.
    cold = {
        model.generate("the c", max_new_tokens=12, seed=seed, **how)
        for seed in range(3)
        for how in ({"temperature": 0}, {"top_p": 1e-9})
    }
    assert len(cold) == 1


def test_a_folder_of_transformers_continues(
    headloom_main: Command, writer: Path, file: Path
) -> None:
    file.write_text("a b\n")
    command = ("predict", writer, "--file", file, "--max-new-tokens", 4, "--temperature", 0)
    model = headloom.load(writer)
    ids = model.tokenizer("a b", return_tensors="pt")["input_ids"]
    for _ in range(4):
        with torch.no_grad():
            ids = torch.cat((ids, model.module(ids).logits[:, -1:].argmax(-1)), 1)
    expected = model.tokenizer.decode(ids[0], skip_special_tokens=True)
    assert headloom_main(*command).out == f"{expected}\n"
    assert model.generate("a b", max_new_tokens=4, temperature=0) == expected
    drawn = {model.generate("a b", max_new_tokens=4, seed=seed) for seed in (1, 1, 2, 3)}
    assert 1 < len(drawn) < 4


@pytest.mark.parametrize(
    ("run", "options", "message"),
    [
        ("dates", ("--n-best", 4, "--beam", 3), "n_best 4: larger than the beam of 3"),
        ("dates", ("--length-penalty", 11), "Invalid value for '--length-penalty'"),
        ("dates", ("--file", "/no/such"), "/no/such: no such text file"),
        ("dates", ("--products", "int8"), "--products"),
        ("language", ("--top-p", 1.5), "Invalid value for '--top-p'"),
        ("language", ("--temperature", -1), "Invalid value for '--temperature'"),
        ("nothing", (), "no such run or model"),
    ],
)
def test_what_cannot_be_asked(
    headloom_main: Command, runs: Path, file: Path, run: str, options: tuple[Any, ...], message: str
) -> None:
    source = () if "--file" in options else ("--file", file)
    result = headloom_main("predict", runs / run, *source, *options)
    assert message in result.one_line()
    assert result.out == ""


def test_a_line_too_long_for_the_model(headloom_main: Command, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "learned"
    done = headloom_main(
        "train", data / "dates.toml", "--run", run, "--set", "model.positions=learned", "--set",
        "model.max_length=80", "--set", "training.max_steps=1", "--set", "training.warmup=1",
    )  # fmt: skip
    assert done.code == 0, done.err
    (tmp_path / "lines").write_text("de: 1\n\n" + "1" * 80 + "\nde: 2\n")
    result = headloom_main("predict", run, "--file", tmp_path / "lines", "--beam", 1)
    assert "line 3 has 81 tokens with its end" in result.one_line()
    assert len(result.out.splitlines()) == 2
    # A translation that is cut where the positions end has no alignment.
    (tmp_path / "lines").write_text("de: " + "1" * 30 + "\n")
    result = headloom_main("predict", run, "--file", tmp_path / "lines", "--json", "--beam", 1)
    assert result.code == 0, result.err
    assert "ended" in objects(result.out)[0]["hypotheses"][0]


def test_products_are_chosen(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    step = Transformer.step

    def watched(model: Transformer, tokens: Any, state: Any) -> Any:
        seen.add(current_products())
        return step(model, tokens, state)

    monkeypatch.setattr(Transformer, "step", watched)
    for products in ("bfloat16", "float32"):
        seen.clear()
        assert len(headloom.predict(runs / "dates", TEXTS, products=products)) == len(TEXTS)
        assert seen == {products}


@pytest.mark.parametrize(
    "words",
    [
        "trace R/language --text cat@ -o t.loom",
        "trace R/language --file text.txt --window 4 -o windows",
        "relevance R/language --text cat@",
        "ablate R/language --text cats --patch @ --layer 0",
        "predict R/dates --file text.txt",
    ],
)
def test_what_a_vocabulary_lacks_is_named_once(
    headloom_main: Command, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(f"the {STRANGE} cat")
    line = words.replace("@", STRANGE).replace("R/", f"{runs}/", 1).split()
    result = headloom_main(*line)
    assert result.code == 0, result.err
    (note,) = [line for line in result.err.splitlines() if "vocabulary" in line]
    assert re.search(SHOWN, note), note
    assert "\u202e" not in result.err
    if "windows" in words:
        assert len(traces_in(tmp_path / "windows")) > 1
