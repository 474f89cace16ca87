"""Training that begins from a folder of Transformers, held against Transformers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.conftest import TEXT, assert_same, measures_of
from tests.training.test_loop import Interruption, run
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from torch.nn.functional import cross_entropy

from headloom.api.model_export import export_model
from headloom.errors import DataError, InputError
from headloom.training.config import RunConfig, check_config
from headloom.training.inference import classify, generate_text, open_run
from headloom.training.loop import train
from headloom.training.translation import Search, translate

transformers = pytest.importorskip("transformers")

WORDS = sorted({*TEXT.split(), "ein", "hund", "katze", "bad", "good", "film"})
PAIRS = [(f"the {a} sat", f"ein {b} hund") for a in ("cat", "dog", "mat") for b in ("ein", "katze")]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    transformers.utils.logging.disable_progress_bar()
    yield
    transformers.utils.logging.enable_progress_bar()


def drawn(kind: str, folder: Path, **settings: Any) -> Any:
    """A model of Transformers with random weights, saved."""
    model_class = getattr(transformers, kind)
    torch.manual_seed(4)
    model = model_class(model_class.config_class(**settings)).eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2 and "embed_positions" not in name:  # Marian's are computed
            torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder)
    return model


def byte_pairs(folder: Path, size: int = 300) -> Tokenizer:
    """Of the kind that GPT-2 has: spaces begin a piece, and one token ends a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        [TEXT],
        trainers.BpeTrainer(
            vocab_size=size, special_tokens=["<|endoftext|>"], show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )  # fmt: skip
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def words(folder: Path, specials: list[str], frame: str | None = None) -> Tokenizer:
    """One token a word, special tokens first."""
    names = {name: number for number, name in enumerate([*specials, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(names, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(specials)
    if frame is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=frame, special_tokens=[(name, names[name]) for name in specials]
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def config_of(task: dict[str, Any], model: dict[str, Any], **training: Any) -> RunConfig:
    settings = {
        "max_steps": 12, "batch_tokens": 64, "warmup": 2, "validate_every": 4,
        "checkpoint_every": 5, "label_smoothing": 0.0, "peak_learning_rate": 3e-3, **training,
    }  # fmt: skip
    return check_config({"task": task, "model": model, "training": settings}, "test")


def metrics(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def first_loss(path: Path) -> float:
    first = metrics(path)[0]
    assert first["step"] == 0
    return float(first["validation_loss"])


def check_learned(path: Path) -> None:
    """The loss has fallen, and what is used are other weights than those of the beginning."""
    losses = [line["validation_loss"] for line in metrics(path) if "validation_loss" in line]
    assert len(losses) == 4 and losses[-1] < losses[0] - 0.05
    assert open_run(path).step > 0


class Early(Interruption):
    """Stops a training after its first validation."""

    def validated(self, position: Any, report: Any, better: bool) -> None:
        raise KeyboardInterrupt


GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "bos_token_id": 0,
        "eos_token_id": 0}  # fmt: skip
LLAMA = {
    "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "bos_token_id": 0, "eos_token_id": [0, 1],
}  # fmt: skip
LANGUAGE = [("GPT2LMHeadModel", GPT2), ("LlamaForCausalLM", LLAMA)]


def language(tmp_path: Path, kind: str, settings: dict[str, Any]) -> tuple[Any, Tokenizer, Path]:
    folder = tmp_path / "folder"
    theirs = drawn(kind, folder, vocab_size=304, **settings)  # more than the tokenizer has
    (tmp_path / "text.txt").write_text(TEXT)
    return theirs, byte_pairs(folder), folder


def language_config(tmp_path: Path, **training: Any) -> RunConfig:
    task = {"kind": "language", "file": str(tmp_path / "text.txt"), "block": 8}
    return config_of(task, {"folder": str(tmp_path / "folder"), "dropout": 0.1}, **training)


@pytest.mark.parametrize(("kind", "settings"), LANGUAGE, ids=["gpt2", "llama"])
def test_language_models(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    theirs, tokenizer, folder = language(tmp_path, kind, settings)
    config = language_config(tmp_path)
    run(config, tmp_path / "run")
    held_out = torch.tensor(tokenizer.encode(TEXT[int(0.9 * len(TEXT)) :]).ids)
    nats: list[Tensor] = []
    with torch.no_grad():
        for start in range(0, len(held_out) - 8, 8):
            window = held_out[start : start + 9]
            logits = theirs(window[None, :-1]).logits[0]
            nats.append(cross_entropy(logits, window[1:], reduction="none"))
    assert first_loss(tmp_path / "run") == pytest.approx(float(torch.cat(nats).mean()), rel=1e-5)
    check_learned(tmp_path / "run")
    # Used, and gone on with, where the folder is gone.
    shutil.rmtree(folder)
    learned = open_run(tmp_path / "run")
    export_model(tmp_path / "run", tmp_path / "back", "huggingface")
    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back")
    assert back.config.eos_token_id == 0 and back.config.pad_token_id is None
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    ids = torch.tensor([read("the cat sat on")["input_ids"]])
    with torch.no_grad():
        assert torch.allclose(back(ids).logits, learned.model(ids), atol=1e-4)
    assert learned.vocabulary.encode("the cat") == tokenizer.encode("the cat").ids
    assert learned.vocabulary.decode(tokenizer.encode(" the cat").ids) == " the cat"
    assert generate_text(learned, "the cat", length=6, temperature=0)
    losses = [m["validation_loss"] for m in metrics(tmp_path / "run") if "validation_loss" in m]
    assert measures_of(learned, "valid")["loss"] == pytest.approx(min(losses), rel=1e-5)
    longer = language_config(tmp_path, max_steps=15)
    assert run(longer, tmp_path / "run").steps == 15


def test_interruptions_change_nothing(tmp_path: Path) -> None:
    """Before the first step, before the first checkpoint, and after it: the same bits."""
    language(tmp_path, *LANGUAGE[0])
    config = language_config(tmp_path)
    run(config, tmp_path / "whole")

    for listener in (Early(0), Interruption(3), Interruption(7)):
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "stopped", listener)
    run(config, tmp_path / "stopped")
    assert_same(tmp_path / "whole", tmp_path / "stopped")
    assert [m["step"] for m in metrics(tmp_path / "stopped")] == [0, 4, 8, 12]


MARIAN = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 20, "decoder_ffn_dim": 20,
    "eos_token_id": 0, "forced_eos_token_id": None, "max_position_embeddings": 32,
    "scale_embedding": True,
}  # fmt: skip


def test_a_translator(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    specials = ["</s>", "[UNK]"]
    pad = len(specials) + len(WORDS)
    theirs = drawn(
        "MarianMTModel", folder, vocab_size=pad + 1, pad_token_id=pad, decoder_start_token_id=pad,
        **MARIAN,
    )  # fmt: skip
    tokenizer = words(folder, specials, "$A </s>")
    (tmp_path / "all.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS * 4))
    task = {
        "kind": "translation", "folder": str(tmp_path), "train": ["all.tsv"], "valid": ["all.tsv"],
    }  # fmt: skip
    config = config_of(task, {"folder": str(folder)})
    run(config, tmp_path / "run")
    source = torch.tensor([tokenizer.encode(a).ids for a, _ in PAIRS])
    target = torch.tensor([tokenizer.encode(b).ids for _, b in PAIRS])
    with torch.no_grad():
        expected = theirs(source, labels=target).loss
    assert first_loss(tmp_path / "run") == pytest.approx(float(expected), rel=1e-5)
    check_learned(tmp_path / "run")
    # Padding, of which the model was never taught that it is none, is not written.
    learned = open_run(tmp_path / "run")
    with torch.no_grad():
        learned.model.output_embedding.bias[pad] = 100.0  # type: ignore[union-attr, index]
    for beam in (1, 3):
        (text,) = translate(learned.model, learned.vocabulary, ["the cat sat"], Search(beam))
        assert text and set(text.split()) <= {*WORDS}


BERT = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20,
    "max_position_embeddings": 12,
}  # fmt: skip


def labelled(tmp_path: Path) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    rows = [
        (label, f"the {noun} sat {word}")
        for label, word in (("neg", "bad"), ("pos", "good"))
        for noun in ("cat", "dog", "film", "hund", "katze")
    ]
    (tmp_path / "all.tsv").write_text("".join(f"{label}\t{text}\n" for label, text in rows * 6))
    task = {
        "kind": "labels", "folder": str(tmp_path), "train": "all.tsv", "valid": "all.tsv",
        "test_share": 0.0, "max_length": 12,
    }  # fmt: skip
    return task, rows


@pytest.mark.parametrize("known", [True, False], ids=["its own classes", "other classes"])
def test_a_classifier(known: bool, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    names = {0: "neg", 1: "pos"} if known else {0: "a", 1: "b", 2: "c"}
    theirs = drawn(
        "BertForSequenceClassification", folder, vocab_size=4 + len(WORDS), id2label=names,
        label2id={name: number for number, name in names.items()}, **BERT,
    )  # fmt: skip
    tokenizer = words(folder, specials, "[CLS] $A [SEP]")
    task, rows = labelled(tmp_path)
    config = config_of(task, {"folder": str(folder), "dropout": 0.0}, peak_learning_rate=2e-2)
    if not known:  # the classes are drawn anew, what they are read from is the folder's
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "begun", Early(0))
        output = open_run(tmp_path / "begun").model.output
        assert isinstance(output, torch.nn.Linear) and output.out_features == 2
        theirs.classifier = output
    run(config, tmp_path / "run")
    ids = torch.tensor([tokenizer.encode(text).ids for _, text in rows])
    targets = torch.tensor([int(label == "pos") for label, _ in rows])
    with torch.no_grad():
        expected = cross_entropy(theirs(ids).logits, targets)
    assert first_loss(tmp_path / "run") == pytest.approx(float(expected), rel=1e-5)
    check_learned(tmp_path / "run")
    learned = open_run(tmp_path / "run")
    found = classify(learned.model, learned.data, ["the cat sat good", "", "the dog sat bad"])
    assert [each.label for each in found] == ["pos", None, "neg"]


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    _, tokenizer, folder = language(tmp_path, *LANGUAGE[0])
    config = language_config(tmp_path)
    larger = byte_pairs(folder)
    larger.add_tokens([f"more {number}" for number in range(99)])
    larger.save(str(folder / "tokenizer.json"))
    with pytest.raises(InputError, match=r"tokenizer\.json has \d+ tokens, the model embeds 304"):
        run(config, tmp_path / "run")
    tokenizer.save(str(folder / "tokenizer.json"))
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", Early(0))
    data = tmp_path / "run" / "data.json"
    facts = json.loads(data.read_text())
    del facts["pretrained"]["architecture"]["width"]
    facts["pretrained"]["architecture"]["size"] = 3
    data.write_text(json.dumps(facts))
    with pytest.raises(DataError, match=r"data\.json of this run lacks the sizes"):
        open_run(tmp_path / "run")
    data.write_text(json.dumps(facts | {"special_tokens": {"pad": "none"}}))
    with pytest.raises(DataError, match=r"data\.json of this run lacks the ids"):
        open_run(tmp_path / "run")
