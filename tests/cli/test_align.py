"""`headloom align`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.cli.conftest import Command, ran

import headloom

SOURCES = ["the cat sees the dog", "the dog", "", "the cow sees the cat"]
TARGETS = ["das cat sieht das dog", "das dog", "", "das cow sieht das cat"]


@pytest.fixture
def texts(tmp_path: Path) -> list[str]:
    """The options that name two line-aligned files."""
    for name, lines in (("source", SOURCES), ("target", TARGETS)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    return ["--sources", str(tmp_path / "source"), "--targets", str(tmp_path / "target")]


def test_a_run_aligns_two_files_as_its_traces_do(
    headloom_main: Command, runs: Path, texts: list[str], tmp_path: Path
) -> None:
    run, out = runs / "translation", tmp_path / "out"
    options = ["--heads", "2.1,2.0:write", "--method", "argmax", "--json"]
    said = headloom_main("align", run, *texts, "-o", out, *options).json()
    lines = out.read_text().splitlines()
    assert said["pairs"] == 4 == len(lines)
    assert said["heads"] == ["2.1", "2.0:write"]
    assert said["links"] == sum(len(line.split()) for line in lines) == 12
    assert lines[2] == ""
    # Of each pair alone, traced by another command.
    folder = tmp_path / "traces"
    folder.mkdir()
    for number in (0, 1, 3):
        pair = ("--text", SOURCES[number], "--target", TARGETS[number])
        ran("trace", run, *pair, "-o", folder / f"{number}.loom")
    headloom_main("align", folder, "-o", tmp_path / "traced", *options)
    assert (tmp_path / "traced").read_text().splitlines() == [lines[i] for i in (0, 1, 3)]
    # And by the formula, from the tokens of one.
    trace = headloom.open(folder / "1.loom")
    layer = trace.layer("cross", 0)
    weights = layer.graph.to_dense()
    # Words of pieces: the mean over those of the target, the sum over those of the source.
    target = [i for i, token in enumerate(layer.query_tokens) if token.startswith(" ")]
    source = [i for i, token in enumerate(layer.key_tokens) if token.startswith(" ")]
    target.append(len(layer.query_tokens))
    source.append(len(layer.key_tokens) - 1)
    expected = []
    for t in range(2):
        rows = torch.arange(target[t], target[t + 1])
        mean = weights[1][rows].mean(0) + weights[0][rows - 1].mean(0)
        mass = [float(mean[source[s] : source[s + 1]].sum()) for s in range(2)]
        expected.append(f"{mass.index(max(mass))}-{t}")
    assert lines[1].split() == sorted(expected)


def test_heads_are_chosen_by_gold_and_by_agreement(
    headloom_main: Command, runs: Path, texts: list[str], tmp_path: Path
) -> None:
    (tmp_path / "gold").write_text("0-0 1-1 2-2 3-3 4-4\n0-0 1?1\n\n0-0 1-1\n")
    words = ("align", runs / "translation", *texts, "--gold", tmp_path / "gold")
    said = headloom_main(*words, "-o", tmp_path / "a", "--json").json()
    assert (said["chosen_on"], said["measured_on"]) == (2, 2)
    links = [list(links.sure) for links in headloom.read_pharaoh(tmp_path / "a")]
    rate = headloom.alignment_error_rate(
        links[1::2], headloom.read_pharaoh(tmp_path / "gold")[1::2]
    )
    assert said["aer"] == pytest.approx(rate.aer)
    assert f"On the other 2 pairs: {rate}." in headloom_main(*words, "-o", tmp_path / "a2").out
    # Two heads, by both steps.
    assert len(said["table"]) == 4
    picture = tmp_path / "p.png"
    free = headloom_main(
        "align", runs / "translation", *texts, "-o", tmp_path / "b", "--picture", picture
    )
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "agreement" in free.out and "chosen on 4 pairs" in free.out
    assert "On the" not in free.out


@pytest.mark.parametrize("name", ["BART", "Marian", "T5"])
def test_an_encoder_decoder_of_hugging_face(
    headloom_main: Command, texts: list[str], tmp_path: Path, name: str
) -> None:
    """Its links are those of the weights that it returns itself."""
    transformers = pytest.importorskip("transformers")
    from tests.tracing.conftest import FAMILIES
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    letters = sorted(set("".join(SOURCES + TARGETS)) - {" "})
    tokenizer = Tokenizer(
        models.WordLevel({w: i for i, w in enumerate(["<pad>", "<s>", "</s>", *letters])}, "<s>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split("", "isolated")]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 2)]
    )
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", bos_token="<s>"
    )
    family = next(family for family in FAMILIES if family.name == name)
    model = family.build()
    model.save_pretrained(tmp_path / "model")
    fast.save_pretrained(tmp_path / "model")
    options = ("--heads", "5.2", "--method", "argmax", "-o", tmp_path / "out")
    ran("align", tmp_path / "model", *texts, *options)
    lines = (tmp_path / "out").read_text().splitlines()
    for source, target, line in zip(SOURCES, TARGETS, lines, strict=True):
        if not source:
            assert line == ""
            continue
        start = [model.config.decoder_start_token_id]
        with torch.no_grad():
            output = model(
                input_ids=torch.tensor([fast(source)["input_ids"]]),
                decoder_input_ids=torch.tensor([start + fast(target)["input_ids"]]),
                output_attentions=True,
            )
        weights = output.cross_attentions[1][0, 2]
        expected, row = [], 1
        for t, written in enumerate(target.split()):
            mean, column, mass = weights[row : row + len(written)].mean(0), 0, []
            for read in source.split():
                mass.append(float(mean[column : column + len(read)].sum()))
                column += len(read)
            row += len(written)
            expected.append((mass.index(max(mass)), t))
        assert line == " ".join(f"{s}-{t}" for s, t in sorted(expected))


def test_bad_input_is_one_line(
    headloom_main: Command,
    runs: Path,
    texts: list[str],
    trace_path: Path,
    tmp_path: Path,
    writer: Path,
) -> None:
    run, out = runs / "translation", ["-o", str(tmp_path / "out")]
    (tmp_path / "short").write_text("a\n")
    (tmp_path / "wrong").write_text("0-0\n\n\nx\n")
    (tmp_path / "far").write_text("0-0\n0-2\n\n\n")
    for words, line in (
        ([run], "Give sources and targets"),
        ([run, *texts[:2], "--targets", tmp_path / "short"], "4 sources have 1 targets"),
        ([run, *texts, "--gold", tmp_path / "wrong"], "line 4 holds 'x'"),
        ([run, *texts, "--gold", tmp_path / "far"], "line 2 links word 0 of the source to word 2"),
        ([run, *texts, "--heads", "best"], "best heads are chosen against gold"),
        ([trace_path, *texts], "traces have texts of their own"),
        ([runs / "language", *texts], "only a translator attends from a target to its source"),
        ([writer, *texts], "a gpt2 reads one text; only an encoder-decoder"),
    ):
        assert line in headloom_main("align", *words, *out).one_line()
        assert not (tmp_path / "out").exists()
    # Progress may stand before it.
    result = headloom_main("align", run, *texts, "--heads", "3.0", *out)
    assert (result.code, (tmp_path / "out").exists()) == (2, False)
    last = result.err.splitlines()[-1]
    assert "no head 3.0; there is cross-attention in layer 2, there with 2 heads" in last
