"""`headloom translate`: lines of any number, and what --json says of them."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cli.conftest import Command
from tests.forked import Loaded

import headloom
import headloom.cli
from headloom.formats.pharaoh import GoldLinks
from headloom.models.decoding import beam_hypotheses
from headloom.models.dense import current_products
from headloom.models.transformer import Transformer
from headloom.training.inference import TrainedRun, open_run

TEXTS = ["de: 17. März 2024", "", "en: May 3, 1999", "fr: 1 mai 2001"]


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
    command = ("translate", runs / "dates", "--beam", 2)
    piped = headloom_process(*command, stdin=file.read_bytes())
    assert piped.code == 0
    (file.parent / "lines.gz").write_bytes(gzip.compress(file.read_bytes()))
    for options in (
        ("--file", file), ("--file", file, "--lines-at-once", 1), ("--file", f"{file}.gz"),
    ):  # fmt: skip
        result = headloom_main(*command, *options)
        assert (result.code, result.out) == (0, piped.out), result.err
    described = headloom_main(*command, "--file", file, "--json")
    best = [line["hypotheses"][:1] for line in objects(described.out)]
    texts = [" ".join(kept[0]["text"].splitlines()) if kept else "" for kept in best]
    assert texts == piped.out.split("\n")[:-1]


def searched(run: TrainedRun, text: str, beam: int) -> list[Any]:
    """What the library's own search finds."""
    words, model = run.vocabulary, run.model
    assert isinstance(model, Transformer)
    ids = [*words.encode(text), words.end]
    (ranked,) = beam_hypotheses(
        model, model.start(torch.tensor([ids])), 1, start=words.start, end=words.end,
        max_length=2 * len(ids) + 32, beam=beam,
    )  # fmt: skip
    return ranked


def test_json_has_the_n_best_and_their_scores(
    headloom_main: Command, runs: Path, file: Path
) -> None:
    run = open_run(runs / "dates")
    result = headloom_main(
        "translate", runs / "dates", "--beam", 4, "--n-best", 3, "--json", "--file", file
    )
    assert result.code == 0, result.err
    lines = objects(result.out)
    assert [line["line"] for line in lines] == [1, 2, 3, 4]
    assert [line["source"] for line in lines] == TEXTS
    assert lines[1]["hypotheses"] == lines[1]["source_tokens"] == []
    for line in lines:
        if not line["source"]:
            continue
        assert line["source_tokens"] == list(line["source"])
        expected = searched(run, line["source"], 4)[:3]
        assert len(line["hypotheses"]) == len(expected)
        for hypothesis, known in zip(line["hypotheses"], expected, strict=True):
            assert hypothesis["tokens"] == run.vocabulary.token_strings(known.tokens)
            assert hypothesis["text"] == run.vocabulary.decode(known.tokens)
            assert hypothesis["ended"] == known.ended
            total = pytest.approx(known.log_probability, abs=1e-3)
            assert hypothesis["log_probability"] == total
            length = len(known.tokens) + known.ended
            assert hypothesis["score"] == pytest.approx(known.log_probability / length, abs=1e-4)
        scores = [hypothesis["score"] for hypothesis in line["hypotheses"]]
        assert scores == sorted(scores, reverse=True)


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learned its few sentences, and the file of lines for it."""
    run = tmp_path_factory.mktemp("trained") / "run"
    changes = {
        "training.max_steps": 100, "training.peak_learning_rate": 0.02, "training.warmup": 20,
        "training.validate_every": 100, "training.label_smoothing": 0, "model.width": 32,
    }  # fmt: skip
    options = [part for change in changes.items() for part in ("--set", "{}={}".format(*change))]
    try:
        headloom.cli.main(["train", str(data / "translation.toml"), "--run", str(run), *options])
    except SystemExit as stop:
        assert not stop.code
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


@pytest.mark.parametrize("heads", [None, "2.1", "2.0:write,2.1"])
def test_alignments_are_those_of_a_trace_of_the_translation(
    headloom_main: Command, trained: Path, heads: str | None
) -> None:
    """By the formula, from the tokens: a word's rows, their mean; a word's columns, their sum."""
    run = open_run(trained)
    chosen = () if heads is None else ("--heads", heads)
    result = headloom_main(
        "translate", trained, "--beam", 3, "--n-best", 2, "--json", "--file",
        trained.parent / "lines", *chosen,
    )  # fmt: skip
    assert result.code == 0, result.err
    names = ["2.0:write", "2.1:write"] if heads is None else heads.split(",")
    compared = 0
    for line in objects(result.out):
        if not line["source"]:
            continue
        known = searched(run, line["source"], 3)[:2]
        for hypothesis, searched_for in zip(line["hypotheses"], known, strict=True):
            if "".join(hypothesis["tokens"]) != " " + hypothesis["text"]:
                continue
            matrices = traced_weights(run, line["source"], searched_for.tokens)
            source, target = words_of(line["source_tokens"]), words_of(hypothesis["tokens"])
            assert hypothesis["words"] == hypothesis["text"].split()
            assert line["source_words"] == line["source"].split()
            expected = torch.zeros(len(names), len(target), len(source))
            for number, name in enumerate(names):
                # Row 0 is that of the start token: row t writes token t, row t + 1 reads it.
                later = 0 if name.endswith(":write") else 1
                for t, rows in enumerate(target):
                    for s, columns in enumerate(source):
                        looked_at = matrices[int(name[2])][[row + later for row in rows]]
                        expected[number, t, s] = looked_at[:, columns].sum(1).mean()
            mean = expected.mean(0)
            assert line["heads"] == names
            torch.testing.assert_close(
                torch.tensor(hypothesis["weights"]), mean, atol=2e-6, rtol=1e-4
            )
            # Each is the other's best, up to rounding: a word that stands there twice ties.
            links = GoldLinks.of_line(hypothesis["alignment"]).sure
            assert links
            for s, t in links:
                assert mean[t, s] >= max(mean[t].max(), mean[:, s].max()) - 1e-5
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
    return traced.layer("cross", 0).graph.dense()


def test_without_alignment_all_else_is_the_same(headloom_main: Command, trained: Path) -> None:
    command = ("translate", trained, "--file", trained.parent / "lines", "--json", "--n-best", 2)
    aligned, plain = (
        objects(headloom_main(*command, "--heads", heads).out) for heads in ("all", "none")
    )
    for line in aligned:
        line["heads"] = []
        for hypothesis in line["hypotheses"]:
            del hypothesis["alignment"], hypothesis["weights"]
    assert aligned == plain
    assert sum(len(line["hypotheses"]) for line in plain) == 8


def test_heads_by_agreement_are_those_of_align(
    headloom_main: Command, trained: Path, tmp_path: Path
) -> None:
    """Chosen once, on the first window."""
    file = trained.parent / "lines"
    command = ("translate", trained, "--file", file, "--beam", 2, "--json", "--heads", "agreement")
    lines = [line for line in objects(headloom_main(*command).out) if line["source"]]
    (tmp_path / "source").write_text("".join(f"{line['source']}\n" for line in lines))
    (tmp_path / "target").write_text(
        "".join(f"{line['hypotheses'][0]['text']}\n" for line in lines)
    )
    sides = ("--source-file", tmp_path / "source", "--target-file", tmp_path / "target")
    out = tmp_path / "out"
    aligned = headloom_main("align", trained, *sides, "-o", out, "--json")
    assert aligned.code == 0, aligned.err
    heads = json.loads(aligned.out)["heads"]
    assert [line["heads"] for line in lines] == [heads] * 4
    written = [GoldLinks.of_line(line["hypotheses"][0]["alignment"]) for line in lines]
    assert written == list(headloom.read_pharaoh(out))
    windows = objects(headloom_main(*command, "--lines-at-once", 1).out)
    assert len({tuple(line["heads"]) for line in windows if line["source"]}) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--n-best", 2), "--n-best is for --json"),
        (("--heads", "0.1"), "--heads is for --json"),
        (("--json", "--n-best", 4, "--beam", 3), "--n-best 4: a beam of 3 holds no more than 3"),
        (("--json", "--heads", "7.0"), "no head 7.0; there is cross-attention in layer 2"),
        (("--json", "--heads", "some"), "'some'; expected LAYER.HEAD"),
        (("--json", "--heads", "best"), "--heads best: "),
        (("--file", "/no/such"), "/no/such: no such text file"),
        (("--lines-at-once", 0), "--lines-at-once"),
    ],
)
def test_what_cannot_be_asked(
    headloom_main: Command, runs: Path, file: Path, options: tuple[Any, ...], message: str
) -> None:
    source = () if "--file" in options else ("--file", file)
    result = headloom_main("translate", runs / "dates", *source, *options)
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
    for options in ((), ("--json",), ("--lines-at-once", 1)):
        result = headloom_main(
            "translate", run, "--file", tmp_path / "lines", "--beam", 1, *options
        )
        line = result.one_line()
        assert "line 3 has 81 tokens with its end, the model's positions end at 80" in line
        assert len(result.out.splitlines()) == 2


def written_words(characters: list[str]) -> list[list[int]]:
    """The places of the characters of each word, and of the space before it."""
    words: list[list[int]] = []
    begins: list[int] | None = []
    for place, character in enumerate(characters):
        if character.isspace():
            begins = [place]
        elif len(character) == 1:
            if begins is not None:
                words.append(begins)
            words[-1].append(place)
            begins = None
    return words


def test_translations_that_are_cut_where_the_positions_end(
    headloom_main: Command, data: Path, tmp_path: Path
) -> None:
    """Their last token has no place to be read: its row is not there, that which wrote it is."""
    run, texts, compared = tmp_path / "learned", ["de: " + "1" * 30, "en: " + "23" * 15], 0
    done = headloom_main(
        "train", data / "dates.toml", "--run", run, "--set", "model.positions=learned", "--set",
        "model.max_length=80", "--set", "training.max_steps=1", "--set", "training.warmup=1",
        "--set", "training.peak_learning_rate=1e-9",
    )  # fmt: skip
    assert done.code == 0, done.err
    (tmp_path / "lines").write_text("".join(f"{text}\n" for text in texts))
    command = ("translate", run, "--file", tmp_path / "lines", "--json", "--beam", 1, "--heads")
    for heads in ("all", "2.0", "2.0:write"):
        result = headloom_main(*command, heads)
        assert result.code == 0, result.err
        for line in objects(result.out):
            (hypothesis,) = line["hypotheses"]
            assert (len(hypothesis["tokens"]), hypothesis["ended"]) == (80, False)
            if heads == "all":
                continue
            # By torch alone, from the rows of each word's tokens that there are.
            opened = open_run(run)
            names = {name: number for number, name in enumerate(opened.vocabulary.token_names())}
            ids = [names[token] for token in hypothesis["tokens"]]
            matrix = traced_weights(opened, line["source"], ids[:-1])[0]
            matrix = torch.stack([matrix[:, :3].sum(1), matrix[:, 3:34].sum(1)], 1)
            rows = [*range(80)] if heads == "2.0:write" else [*range(1, 80)]
            expected = [
                matrix[[rows[place] for place in word if place < len(rows)]].mean(0).tolist()
                for word in written_words(hypothesis["tokens"])
            ]
            assert len(expected) == len(hypothesis["words"])
            for row, known in zip(hypothesis["weights"], expected, strict=True):
                assert row == pytest.approx(known, abs=2e-6)
            compared += len(expected)
    assert compared
    traced = headloom_main("trace", run, "--text", texts[0], "-o", tmp_path / "t.loom")
    assert traced.code == 0, traced.err


def test_each_window_is_written_before_the_next_is_read(loaded: Loaded, runs: Path) -> None:
    """A program on the other end of the pipes gets its answer before it asks on."""
    ours, theirs = os.pipe()
    command = ("translate", runs / "dates", "--beam", 1, "--lines-at-once", 1)
    with loaded.start(*command, stdin=ours) as process:
        for text in ("de: 1", "de: 2"):
            os.write(theirs, f"{text}\n".encode())
            assert process.stdout.readline().endswith(b"\n")
        process.stdout.close()
        # The reader leaves, as head does: the rest is not translated, and nothing is said of it.
        os.write(theirs, b"de: 3\n" * 20)
        os.close(theirs)
        assert (process.wait(), process.errors()) == (0, b"")
    os.close(ours)


def test_products_are_chosen(
    headloom_main: Command, runs: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()
    step = Transformer.step

    def watched(model: Transformer, tokens: Any, state: Any) -> Any:
        seen.add(current_products())
        return step(model, tokens, state)

    monkeypatch.setattr(Transformer, "step", watched)
    command = ("translate", runs / "dates", "--file", file, "--products")
    for kind in ("bfloat16", "float32"):
        seen.clear()
        result = headloom_main(*command, kind)
        assert result.code == 0
        assert seen == {kind}
        assert len(result.out.splitlines()) == len(TEXTS)
    assert current_products() == "float32"
    assert headloom_main(*command, "int8").code == 2
