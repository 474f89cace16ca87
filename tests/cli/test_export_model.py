"""`headloom export RUN --to`: what other programs make of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cli.conftest import Command, searched
from tests.slow import slow

from headloom.api import model_export
from headloom.api.model_export import export_model
from headloom.models.decoding import sample
from headloom.models.language_model import LanguageModel
from headloom.training.inference import TrainedRun, open_run

TEXTS = ["A dog runs.", "Two men talk", "<end> is no end", "ein häßlicher Hund"]


@pytest.mark.parametrize("task", ["dates", "translation"])
def test_transformers_translates_as_the_run_does(
    task: str, runs: Path, headloom_main: Command, tmp_path: Path
) -> None:
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    folder = tmp_path / "model"
    result = headloom_main("export", runs / task, "--to", "huggingface", "--output", folder)
    assert result.code == 0
    assert "PegasusForConditionalGeneration: logits within" in result.out
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    run = open_run(runs / task)
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    for row, text in zip(batch["input_ids"].tolist(), TEXTS, strict=True):
        assert [i for i in row if i != 0] == [*run.vocabulary.encode(text), run.vocabulary.end]
    written = model.generate(**batch, num_beams=1, max_new_tokens=8)[:, 1:].tolist()
    for row, text in zip(written, TEXTS, strict=True):
        tokens = searched(run, text, 1, 8)[0].tokens
        assert row[: len(tokens)] == tokens
        assert len(tokens) == 8 or row[len(tokens)] == run.vocabulary.end
    # Not cut after 20 tokens, as a model of Transformers is that says nothing of it.
    assert model.generation_config.max_length == run.model.architecture.max_length
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o644}


LLAMA = {
    "norm": "pre", "positions": "rotary", "normalisation": "rms", "feed_forward_kind": "gated",
    "activation": "silu", "biases": False,
}  # fmt: skip
WRITERS = [
    ("language", "GPT2LMHeadModel", {"positions": "learned", "max_length": 64}),
    ("language", "GPT2LMHeadModel", {"tied": False, "kv_heads": 1}),
    ("language", "LlamaForCausalLM", LLAMA),
    ("language", "LlamaForCausalLM", LLAMA | {"kv_heads": 1, "tied": False, "rotary_base": 50.0}),
    ("translation", "PegasusForConditionalGeneration", {"kv_heads": 1}),
    ("translation", "MarianMTModel", {"norm": "post", "feed_forward": 64}),
]
OTHERS = [WRITERS[place] for place in (1, 3, 4)]


@pytest.mark.parametrize(
    ("task", "architecture", "choices"), [WRITERS[0], WRITERS[2], WRITERS[5], *slow(*OTHERS)]
)
def test_transformers_writes_what_the_run_writes(
    task: str, architecture: str, choices: dict[str, Any], runs: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Opened from its folder by the line that is printed, with its cache, 40 tokens a text."""
    import transformers

    run = changed(runs / task, {"decoder_layers": 2, "heads": 2} | choices)
    with torch.no_grad():
        for name, parameter in run.model.named_parameters():
            # So that it is not always one token that is likeliest.
            parameter.normal_(std=0.1 if "embedding" in name else 1.0)
    monkeypatch.setattr(model_export, "open_run", lambda path: run)
    exported = export_model(runs / task, tmp_path / "model", "huggingface")
    assert exported.kind == architecture
    model = eval(exported.loading, {"transformers": transformers})
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    words = run.vocabulary
    for text in TEXTS:
        batch = tokenizer([text], return_tensors="pt")
        found = model.generate(**batch, num_beams=1, do_sample=False, max_new_tokens=40)[0].tolist()
        if task == "language":
            assert isinstance(run.model, LanguageModel)
            prompt = torch.tensor([words.encode(text)])
            expected = sample(
                run.model, run.model.start(), prompt, length=40, temperature=0, end=words.end
            )[0].tolist()
            found = found[prompt.shape[1] :]
        else:
            (hypothesis,) = searched(run, text, 1, 40)
            expected = hypothesis.tokens + [words.end] * hypothesis.ended
            found = found[1:]
        assert found == expected


@pytest.mark.parametrize("task", ["dates", "language"])
def test_ctranslate2_scores_as_the_run_does(
    task: str, runs: Path, headloom_main: Command, tmp_path: Path
) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2")
    folder = tmp_path / "model"
    result = headloom_main("export", runs / task, "--to", "ctranslate2", "--output", folder)
    assert result.code == 0
    assert "log-probabilities within" in result.out
    run = open_run(runs / task)
    names = run.vocabulary.token_names()
    if task == "dates":
        source = [names[i] for i in run.vocabulary.encode("A dog")] + ["<end>"]
        translator = ctranslate2.Translator(str(folder))
        (theirs,) = translator.translate_batch([source], beam_size=1, max_decoding_length=8)
        assert theirs.hypotheses[0] == [names[i] for i in searched(run, "A dog", 1, 8)[0].tokens]
    else:
        generator = ctranslate2.Generator(str(folder))
        text = run.vocabulary.encode("A man runs")
        (scored,) = generator.score_batch([[names[i] for i in text]])
        with torch.no_grad():
            ours = run.model(torch.tensor([text])).log_softmax(-1)[0, :-1]
        ours = ours.gather(1, torch.tensor(text[1:])[:, None])[:, 0]
        assert torch.allclose(torch.tensor(scored.log_probs), ours, atol=1e-4)


SETTINGS = [
    ("dates", {"positions": "learned", "max_length": 64, "kv_heads": 1, "activation": "gelu"}),
    ("language", LLAMA | {"kv_heads": 1}),
    ("language", {"positions": "learned", "max_length": 8}),
]


@pytest.mark.parametrize(("task", "choices"), SETTINGS)
def test_ctranslate2_reads_other_settings(
    task: str, choices: dict[str, Any], runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ctranslate2")
    monkeypatch.setattr(model_export, "open_run", lambda path: changed(path, choices))
    written = export_model(runs / task, tmp_path / "model", "ctranslate2")
    assert 0 < written.difference < 1e-4


def changed(path: Path, choices: dict[str, Any]) -> TrainedRun:
    """A run whose model is built otherwise, of random weights."""
    import dataclasses

    from headloom.training.tasks import build_model

    run = open_run(path)
    model = run.config.model.model_copy(update=choices)
    config = run.config.model_copy(update={"model": model})
    torch.manual_seed(2)
    return dataclasses.replace(run, config=config, model=build_model(config, run.data).eval())


@pytest.mark.parametrize("to", ["huggingface", "ctranslate2"])
def test_a_model_that_differs_is_not_written(
    to: Any, runs: Path, tmp_path: Path, headloom_main: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_export, "TOLERANCE", -1.0)
    result = headloom_main("export", runs / "dates", "--to", to, "--output", tmp_path / "model")
    assert result.code == 2 and "differ from the run's by" in result.err
    assert list(tmp_path.iterdir()) == []


def test_bad_input(runs: Path, headloom_main: Command, tmp_path: Path) -> None:
    run, folder = runs / "dates", tmp_path / "model"
    folder.mkdir()
    for words, line in (
        ((run, "--to", "huggingface", "-o", folder), "exists already"),
        ((run, "--to", "huggingface"), "Give one kind"),
        ((run, "-o", folder), "Give one kind"),
        ((run, "--to", "onnx", "-o", folder, "--html", tmp_path / "p"), "Give one kind"),
        ((tmp_path / "no", "--to", "onnx", "-o", tmp_path / "m"), "no such run or model"),
    ):
        assert line in headloom_main("export", *words).one_line()
    assert list(tmp_path.iterdir()) == [folder] and list(folder.iterdir()) == []
