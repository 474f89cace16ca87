"""`weft trace` of models of Hugging Face: generation, images, windows, a corpus that is killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tests.cli.conftest import Command

import weft

transformers = pytest.importorskip("transformers")

LETTERS = "abcdefghij"


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random GPT-2 that can write, with a tokenizer of letters, saved as its library saves it."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("models") / "writer"
    words = {"[UNK]": 0, **{letter: i + 1 for i, letter in enumerate(LETTERS)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]"
    ).save_pretrained(folder)
    torch.manual_seed(5)
    config = transformers.GPT2Config(
        vocab_size=11, n_embd=8, n_layer=2, n_head=2, n_positions=16,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def seer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random ViT with its processor."""
    folder = tmp_path_factory.mktemp("models") / "seer"
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        image_size=24, patch_size=8,
    )  # fmt: skip
    transformers.ViTModel(config).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(
        json.dumps(
            {"image_processor_type": "ViTImageProcessor", "size": {"height": 24, "width": 24}}
        )
    )
    return folder


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    image = pytest.importorskip("PIL.Image").effect_noise((50, 40), 90).convert("RGB")
    image.save(tmp_path / "noise.png")
    return tmp_path / "noise.png"


def assert_one_line(result, message: str) -> None:
    assert result.code == 2
    assert message in result.err
    assert result.err.count("\n") == 1, result.err


def test_generate(weft_main: Command, writer: Path, tmp_path: Path) -> None:
    path = tmp_path / "t"
    result = weft_main("trace", writer, "--text", "a b c", "--generate", 6, "-o", path, "--json")
    assert result.code == 0
    said = json.loads(result.out.splitlines()[-1])
    assert said["sequences"]["tokens"][:3] == ["a", "b", "c"]
    trace = weft.open(path)
    assert len(trace.tokens) == 9
    assert trace.positions["tokens"]["generated"] == [False] * 3 + [True] * 6
    assert trace.positions["tokens"]["offsets"] == [[0, 1], [2, 3], [4, 5]] + [[0, 0]] * 6
    assert trace.layers[0].graph.count[0].tolist() == list(range(1, 10))
    # On no terminal there is no bar.
    assert "━" not in result.err
    result = weft_main("trace", writer, "--text", "a b", "--generate", 20, "-o", tmp_path / "u")
    assert_one_line(result, "2 tokens and 20 to generate; GPT2LMHeadModel reads 16 at most")


def test_generate_of_wefts_own_runs(weft_main: Command, runs: Path, tmp_path: Path) -> None:
    path = tmp_path / "t"
    result = weft_main("trace", runs / "language", "--text", "the", "--generate", 4, "-o", path)
    assert result.code == 0
    assert sum(weft.open(path).positions["tokens"]["generated"]) == 4
    result = weft_main(
        "trace", runs / "translation", "--text", "the", "--generate", 4, "-o", tmp_path / "u"
    )
    assert_one_line(result, "--generate: this run translates")


def test_an_image(weft_main: Command, seer: Path, picture: Path, tmp_path: Path) -> None:
    path = tmp_path / "t"
    assert weft_main("trace", seer, "--image", picture, "-o", path).code == 0
    trace = weft.open(path)
    assert trace.model["image"] == str(picture)
    assert trace.sequences["patches"][:2] == ["[CLS]", "patch 0,0"]
    assert trace.positions["patches"]["columns"] == [-1, *([0, 1, 2] * 3)]
    assert trace.layers[0].shape == (2, 10, 10)


def test_an_image_and_a_text(
    weft_main: Command, writer: Path, picture: Path, tmp_path: Path
) -> None:
    folder, path = tmp_path / "both", tmp_path / "t"
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
             "intermediate_size": 16, "projection_dim": 8}  # fmt: skip
    config = transformers.CLIPConfig(
        text_config={**sizes, "vocab_size": 11, "max_position_embeddings": 8, "eos_token_id": 10},
        vision_config={**sizes, "image_size": 24, "patch_size": 8},
    )
    transformers.CLIPModel(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((writer / name).read_bytes())
    (folder / "preprocessor_config.json").write_text(
        '{"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 24}, '
        '"crop_size": {"height": 24, "width": 24}}'
    )
    assert_one_line(weft_main("trace", folder, "--image", picture, "-o", path), "reads a text too")
    result = weft_main("trace", folder, "--image", picture, "--text", "a b j", "-o", path)
    assert result.code == 0, result.err
    trace = weft.open(path)
    assert trace.sequences["tokens"] == ["a", "b", "j"]
    assert len(trace.sequences["patches"]) == 10
    assert {layer.queries_from for layer in trace.layers} == {"tokens", "patches"}


def test_images_that_cannot_be_traced(
    weft_main: Command, seer: Path, writer: Path, runs: Path, picture: Path, tmp_path: Path
) -> None:
    out = tmp_path / "t"

    def said(model: Path, *arguments: object) -> object:
        return weft_main("trace", model, *arguments, "-o", out)

    assert_one_line(said(seer, "--image", tmp_path / "no.png"), "no.png: no such image")
    (tmp_path / "text.png").write_text("no picture")
    assert_one_line(said(seer, "--image", tmp_path / "text.png"), "not an image that Pillow can")
    (tmp_path / "half.png").write_bytes(picture.read_bytes()[:900])
    assert_one_line(said(seer, "--image", tmp_path / "half.png"), "damaged, or not readable")
    assert_one_line(said(writer, "--image", picture), "a gpt2 reads no images (pixel_values)")
    assert_one_line(said(seer, "--image", picture, "--text", "a"), "a vit sees an image and reads")
    assert_one_line(said(runs / "dates", "--image", picture), "is a run of weft, which reads text")
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).write_bytes((seer / name).read_bytes())
    assert_one_line(said(bare, "--image", picture), "no processor that makes inputs of an image")
    assert not out.exists()


def test_windows(weft_main: Command, writer: Path, tmp_path: Path) -> None:
    text = " ".join(LETTERS[i % 10] for i in range(40))
    folder = tmp_path / "windows"
    arguments = ("trace", writer, "--text", text, "-o", folder, "--window", 16)
    result = weft_main(*arguments, "--json")
    assert result.code == 0
    assert "3 windows of at most 16 tokens" in result.err
    paths = json.loads(result.out.splitlines()[-1])["traces"]
    traces = [weft.open(path) for path in paths]
    # A quarter is shared; together they are the text.
    assert [trace.tokens for trace in traces] == [
        text.split()[start : start + 16] for start in (0, 12, 24)
    ]
    for trace in traces:
        for token, (start, end) in zip(
            trace.tokens, trace.positions["tokens"]["offsets"], strict=True
        ):
            assert text[start:end] == token
    assert [trace.model["window"]["number"] for trace in traces] == [0, 1, 2]
    # Given again, the same command finds all there; another one replaces nothing unasked.
    times = [(Path(path) / "trace.json").stat().st_mtime_ns for path in paths]
    for again in ((), ("--overwrite",)):
        result = weft_main(*arguments, *again, "--json")
        assert result.code == 0
        assert json.loads(result.out.splitlines()[-1])["there"] == 3
        assert "3 were there already" in result.err
    assert [(Path(path) / "trace.json").stat().st_mtime_ns for path in paths] == times
    other = (*arguments, "--keep", 3)
    assert_one_line(weft_main(*other), "000000.weft exists already, of another text, model or")
    assert weft_main(*other, "--overwrite").code == 0
    assert {layer.graph.k for path in paths for layer in weft.open(path).layers} == {3}
    assert_one_line(weft_main(*arguments[:-1], 17), "reads 16 at most. Give --window 16 or less.")
    assert_one_line(weft_main(*arguments, "--overlap", 16), "no room for new ones. Give a larger")
    elsewhere = ("trace", writer, "--text", text[:9], "-o", tmp_path / "none.weft")
    assert_one_line(weft_main(*elsewhere, "--layers", " , "), "--layers names no layer")
    assert_one_line(weft_main("trace", writer, "--text", text, "-o", folder, "--overlap", 2),
                    "--overlap is for --window")  # fmt: skip


def test_windows_that_are_killed_go_on(weft_main: Command, writer: Path, tmp_path: Path) -> None:
    folder, text = tmp_path / "windows", tmp_path / "text.txt"
    text.write_text(" ".join(LETTERS[i % 10] for i in range(640)))
    arguments = ("trace", writer, "--file", text, "-o", folder, "--window", 16, "--overlap", 0,
                 "--json")  # fmt: skip
    command = [sys.executable, "-m", "weft", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=environment, **quiet) as process:
        until = time.monotonic() + 400
        while len(traces_in(folder)) < 3:
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.005)
        process.kill()
    there = traces_in(folder)
    assert 3 <= len(there) < 40
    times = [(folder / name / "trace.json").stat().st_mtime_ns for name in there]
    # A window whose manifest was changed since is not taken for whole.
    manifest = folder / there[0] / "trace.json"
    whole = manifest.read_bytes()
    manifest.write_bytes(whole.replace(b'"a"', b'"b"'))
    assert_one_line(weft_main(*arguments), "damaged")
    manifest.write_bytes(whole)
    os.utime(manifest, ns=(times[0], times[0]))
    done = weft_main(*arguments)
    assert done.code == 0, done.err
    assert json.loads(done.out.splitlines()[-1])["there"] == len(there)
    assert [(folder / name / "trace.json").stat().st_mtime_ns for name in there] == times
    assert sorted(path.name for path in folder.iterdir()) == [f"{n:06d}.weft" for n in range(40)]
    words = [token for name in traces_in(folder) for token in weft.open(folder / name).tokens]
    assert words == text.read_text().split()


def test_windows_of_a_language_model_of_weft(
    weft_main: Command, runs: Path, tmp_path: Path
) -> None:
    text, folder = "the cat sees the dog the cow", tmp_path / "windows"
    arguments = ("trace", runs / "language", "--text", text, "-o", folder, "--overlap", 2)
    result = weft_main(*arguments, "--window", 8, "--json")
    assert result.code == 0, result.err
    traces = [weft.open(path) for path in json.loads(result.out.splitlines()[-1])["traces"]]
    assert ["".join(trace.tokens) for trace in traces] == [
        text[start : start + 8] for start in (0, 6, 12, 18, 24)
    ]
    for trace in traces:
        offsets = trace.positions["tokens"]["offsets"]
        assert [text[start:end] for start, end in offsets] == trace.tokens
    # Each is what the model does with its window alone.
    alone = tmp_path / "alone.weft"
    assert weft_main("trace", runs / "language", "--text", text[6:14], "-o", alone).code == 0
    expected, found = weft.open(alone).layers[0].graph, traces[1].layers[0].graph
    assert torch.equal(found.weights, expected.weights)
    assert torch.equal(found.keys, expected.keys)
    assert weft_main(*arguments, "--window", 8).code == 0
    assert_one_line(weft_main(*arguments, "--window", 2), "no room for new tokens")
    assert_one_line(
        weft_main("trace", runs / "dates", "--text", text, "-o", folder, "--window", 8),
        "is a run that translates",
    )


def test_ctrl_c_says_what_is_left_of_a_trace(
    weft_main: Command, writer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("weft.cli.tracing.trace_model", stopped)
    result = weft_main("trace", writer, "--text", "a b", "-o", tmp_path / "none.weft")
    assert result.code == 130
    assert result.err.splitlines()[-1] == (
        "weft: stopped. What is traced is whole; with --corpus and --window the same command "
        "goes on."
    )
    assert not (tmp_path / "none.weft").exists()


def test_windows_of_an_earlier_text_do_not_stay_among_new_ones(
    weft_main: Command, writer: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "windows"
    options = ("-o", folder, "--window", 8, "--overlap", 0)
    long, short = (" ".join(LETTERS[i % 10] for i in range(count)) for count in (24, 9))

    def names() -> list[str]:
        return sorted(path.name for path in folder.iterdir())

    assert weft_main("trace", writer, "--text", long, *options).code == 0
    assert names() == ["000000.weft", "000001.weft", "000002.weft"]
    (folder / "notes.weft").mkdir()
    for number in (0, 1):
        shutil.rmtree(folder / f"00000{number}.weft")
    assert_one_line(
        weft_main("trace", writer, "--text", short, *options), "000002.weft exists already"
    )
    assert weft_main("trace", writer, "--text", short, *options, "--overwrite").code == 0
    assert names() == ["000000.weft", "000001.weft", "notes.weft"]

    # What is there and no folder of windows is left alone.
    trace = folder / "000000.weft"
    before = sorted(path.name for path in trace.iterdir())
    into = ("trace", writer, "--text", short, "-o", trace, "--window", 8, "--overwrite")
    assert_one_line(weft_main(*into), "windows need a folder of their own")
    assert sorted(path.name for path in trace.iterdir()) == before
    (folder / "corpus.json").write_text("{}")
    assert_one_line(
        weft_main("trace", writer, "--text", short, *options, "--overwrite"),
        "windows need a folder of their own",
    )


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    lines = [" ".join(LETTERS[(i + j) % 10] for j in range(2 + i % 9)) for i in range(12)]
    lines[4] = ""
    lines[7] = "a " * 30  # more than the model reads
    path.write_text("\n".join(lines) + "\n")
    return path


def traces_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.weft"))


def test_a_corpus(weft_main: Command, writer: Path, corpus: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    arguments = ("trace", writer, "--corpus", corpus, "-o", folder)
    result = weft_main(*arguments, "--json")
    assert result.code == 2
    assert "000008: trace: 30 tokens in input_ids" in result.err
    assert "1 of 11 texts could not be traced" in result.err
    assert json.loads(result.out.splitlines()[-1])["traced"] == 10
    expected = [f"{number:06d}.weft" for number in range(1, 13) if number not in (5, 8)]
    assert traces_in(folder) == expected
    assert weft.open(folder / "000002.weft").tokens == corpus.read_text().split("\n")[1].split()
    times = [(folder / name / "trace.json").stat().st_mtime_ns for name in expected]
    lines = corpus.read_text().replace("a " * 30, "a b").split("\n")
    corpus.write_text("\n".join([*lines[:-1], "j i h"]) + "\n")
    # The text that failed was not traced: it may change. One more has come.
    result = weft_main(*arguments, "--json")
    assert result.code == 0, result.err
    said = json.loads(result.out.splitlines()[-1])
    assert (said["traced"], said["there"]) == (2, 10)
    assert [(folder / name / "trace.json").stat().st_mtime_ns for name in expected] == times
    assert_one_line(weft_main(*arguments, "--keep", 3), "were made with another option")
    corpus.write_text(corpus.read_text().replace("j i h", "j i g"))
    assert_one_line(weft_main(*arguments), "the text 000013 is not what it was")
    assert_one_line(weft_main("trace", writer, "--corpus", corpus, "-o", tmp_path), "not empty")
    assert_one_line(weft_main(*arguments, "--text", "a"), "--corpus has its own texts")
    (tmp_path / "empty.txt").write_text("\n \n")
    assert_one_line(
        weft_main("trace", writer, "--corpus", tmp_path / "empty.txt", "-o", tmp_path / "e"),
        "no text in it",
    )


def test_a_corpus_of_files(weft_main: Command, writer: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    (texts / "deep").mkdir(parents=True)
    (texts / "one.txt").write_text("a b")
    (texts / "deep" / "two.txt").write_text("c d")
    (texts / "notes.md").write_text("not this")
    folder = tmp_path / "out"
    assert weft_main("trace", writer, "--corpus", texts, "-o", folder).code == 0
    assert traces_in(folder) == ["deep-two.weft", "one.weft"]


def test_a_corpus_that_is_killed_goes_on(weft_main: Command, writer: Path, tmp_path: Path) -> None:
    corpus, folder = tmp_path / "texts.txt", tmp_path / "out"
    corpus.write_text("\n".join(["a b c d e f g"] * 60) + "\n")
    arguments = ("trace", writer, "--corpus", corpus, "-o", folder, "--json")
    command = [sys.executable, "-m", "weft", *map(str, arguments), "--workers", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=environment, start_new_session=True, **quiet) as process:
        until = time.monotonic() + 400
        while len(traces_in(folder)) < 3:
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.02)
        # The command and its workers, all of which it started.
        os.killpg(process.pid, signal.SIGKILL)
    there = traces_in(folder)
    assert 3 <= len(there) < 60
    for name in there:
        assert weft.open(folder / name).deviation < 1e-5
    done = weft_main(*arguments)
    assert done.code == 0, done.err
    said = json.loads(done.out.splitlines()[-1])
    assert said["there"] >= len(there)
    assert said["traced"] + said["there"] == 60
    left = sorted(path.name for path in folder.iterdir() if not path.name.endswith(".weft"))
    assert left == ["corpus.json"]


def test_a_bar_stands_on_a_terminal_only(writer: Path, tmp_path: Path) -> None:
    import pty

    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "weft", "trace", str(writer), "--text", "a b", "--json",
               "-o", str(tmp_path / "t")]  # fmt: skip
    environment = {**os.environ, "TERM": "xterm", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stderr=theirs, stdout=subprocess.PIPE, env=environment
    ) as process:
        os.close(theirs)
        said = b""
        try:
            while block := os.read(ours, 1 << 16):
                said += block
        except OSError:
            pass  # the other end is closed
        out = process.stdout.read()
    os.close(ours)
    assert b"h.1.attn" in said
    assert b"2/2" in said
    assert json.loads(out.splitlines()[-1])["layers"] == 2
