"""The seven modules as a user builds, saves and loads them."""

from __future__ import annotations

import inspect
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import headloom
from headloom.training import model_sections as sections

IDS = torch.randint(1, 50, (2, 7), generator=torch.Generator().manual_seed(1))
EDGES = torch.tensor([[0, 1, 2], [1, 2, 0]])
SMALL: dict[str, Any] = {"width": 16, "heads": 2}
ROTARY: dict[str, Any] = {
    "positions": "rotary", "rotary_scaling": headloom.RotaryScaling("linear", 2.0), "norm": "post",
}  # fmt: skip
#: Class, its arguments, what it reads, the shape of its output, and some names of its state dict.
MODULES: list[tuple[str, dict[str, Any], tuple[Tensor, ...], tuple[int, ...], str]] = [
    ("LanguageModel", {"vocabulary": 50, "layers": 2, **SMALL}, (IDS,), (2, 7, 50),
     "decoder.1.self_attention.w_q.weight output_embedding.weight embedding.tokens.weight"),
    ("LanguageModel", {"vocabulary": 50, "layers": 1, "tied": False, **SMALL, **ROTARY}, (IDS,),
     (2, 7, 50), "decoder.0.feed_forward.rise.weight decoder.0.self_attention_norm.weight"),
    ("Transformer", {"vocabulary": 50, "encoder_layers": 1, "decoder_layers": 2, **SMALL},
     (IDS, IDS[:, :3]), (2, 3, 50), "encoder.0.self_attention.w_o.bias decoder.1.cross_attention."
     "w_k.weight source_embedding.tokens.weight target_embedding.tokens.weight"),
    ("Encoder", {"vocabulary": 50, "layers": 1, "pooler": True, **SMALL}, (IDS,), (2, 7, 16),
     "embedding.segments.weight pooler.weight encoder.0.feed_forward.fall.weight"),
    ("Classifier", {"vocabulary": 50, "classes": 3, "layers": 1, "padding": 0, **SMALL}, (IDS,),
     (2, 3), "encoder.0.self_attention.w_v.weight encoder_norm.weight output.bias"),
    ("GraphAttentionNetwork", {"features": 5, "classes": 3, "width": 8, "heads": 4},
     (torch.ones(4, 5), EDGES), (4, 3), "convolutions.0.lin.weight convolutions.1.att_src"),
    ("VisionTransformer", {"image": (1, 8, 8), "classes": 3, "layers": 1, **SMALL},
     (torch.ones(2, 1, 8, 8),), (2, 3), "class_token patches.weight positions class_scores.weight"),
    ("ConvolutionalClassifier", {"image": [1, 8, 8], "classes": 3, "channels": [4, 8],
     "attention": 2, "region": [0, 0, 4, 4]}, (torch.ones(2, 1, 8, 8),), (2, 3),
     "convolutions.1.weight norms.0.running_mean attention.gamma class_scores.bias"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "inputs", "shape", "names"), MODULES)
@torch.no_grad()
def test_a_module_is_built_run_traced_saved_and_loaded(
    name: str, arguments: dict[str, Any], inputs: tuple[Tensor, ...], shape: tuple[int, ...],
    names: str, tmp_path: Path,
) -> None:  # fmt: skip
    torch.manual_seed(1)
    module = getattr(headloom, name)(**arguments)
    assert set(names.split()) <= set(module.state_dict())
    assert set(arguments) <= set(inspect.signature(type(module)).parameters)
    module(*inputs)  # in training mode, by which batch norms have other numbers
    expected = module.eval()(*inputs)
    assert expected.shape == shape
    module.save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "config.json", "model.safetensors", "README.md"
    }  # fmt: skip
    saved = json.loads((tmp_path / "config.json").read_text())
    assert (
        saved["headloom"] == name
        and saved | json.loads(json.dumps(arguments, default=asdict)) == saved
    )
    again = type(module).from_pretrained(tmp_path)
    assert not again.training and torch.equal(again(*inputs), expected)
    assert type(headloom.load(tmp_path).module) is type(module)
    traces = headloom.trace(module, inputs)
    assert (traces[0] if isinstance(traces, list) else traces).layers


@pytest.mark.parametrize(
    ("name", "theirs", "ours"),
    [
        ("LanguageModel", {"vocab_size": 9, "d_model": 8, "n_heads": 2, "n_layers": 1,
         "max_len": 3}, {"vocabulary": 9, "width": 8, "heads": 2, "layers": 1, "max_length": 3}),
        ("Encoder", {"vocab_size": 9, "hidden_size": 8, "num_attention_heads": 2,
         "num_hidden_layers": 1, "intermediate_size": 4, "pad_token_id": 0}, {"vocabulary": 9,
         "width": 8, "heads": 2, "layers": 1, "feed_forward": 4, "padding": 0}),
        ("Transformer", {"vocab_size": 9, "d_model": 8, "nhead": 2, "num_encoder_layers": 1,
         "num_decoder_layers": 2, "dim_feedforward": 4}, {"vocabulary": 9, "width": 8, "heads": 2,
         "encoder_layers": 1, "decoder_layers": 2, "feed_forward": 4}),
        ("Transformer", {"vocab_size": 9, "d_model": 8, "num_layers": 2},
         {"vocabulary": 9, "width": 8, "encoder_layers": 2, "decoder_layers": 2}),
        ("GraphAttentionNetwork", {"in_channels": 5, "hidden_channels": 8, "out_channels": 2,
         "num_layers": 1}, {"features": 5, "width": 8, "classes": 2, "layers": 1}),
    ],
    ids=str,
)  # fmt: skip
def test_names_of_other_libraries(
    name: str, theirs: dict[str, Any], ours: dict[str, Any], tmp_path: Path
) -> None:
    kind = getattr(headloom, name)
    kind(**theirs).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved | json.loads(json.dumps(ours)) == saved
    assert not set(theirs) - set(ours) & set(saved)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("LanguageModel", {"vocabulary": 9, "widht": 8}, r"takes no widht=; use width="),
        ("LanguageModel", {"vocab_size": 9, "encoder_layers": 8}, "encoder_layers=; use layers="),
        ("LanguageModel", {"vocab_size": 9, "vocabulary": 9}, "got vocabulary twice"),
        ("LanguageModel", {"width": 8}, "'vocabulary'"),
        ("VisionTransformer", {"image_size": 8, "classes": 2}, "image_size=; use image="),
        ("Classifier", {"vocab_size": 9, "classes": 2, "device": "cpu"}, "use vocabulary, classes"),
    ],
)
def test_arguments_that_there_are_not(name: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        getattr(headloom, name)(**arguments)


def test_folders_of_another_kind(tmp_path: Path) -> None:
    headloom.Classifier(9, 2, **SMALL).save_pretrained(tmp_path / "saved")
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "run").mkdir()
    for name in ("run.json", "config.json"):
        (tmp_path / "run" / name).write_text("{}")
    for name, error, message in (
        ("saved", headloom.InputError, "holds a Classifier. Use headloom.Classifier.from_pretrain"),
        ("bert", headloom.InputError, "a bert, no LanguageModel. Use headloom.Encoder.from_pretr"),
        ("run", headloom.InputError, r"is a run; headloom.load\(.*run'\).module"),
        ("", headloom.DataError, "config.json"),
    ):
        with pytest.raises(error, match=message):
            headloom.LanguageModel.from_pretrained(tmp_path / name)
    config = tmp_path / "saved" / "config.json"
    config.write_text(config.read_text().replace('"layers": 2', '"layers": 3'))
    with pytest.raises(headloom.DataError, match="not the weights of this Classifier"):
        headloom.Classifier.from_pretrained(tmp_path / "saved")
    with pytest.raises(headloom.DataError, match="no such folder, and the Hub gives no model"):
        headloom.Classifier.from_pretrained("me/nothing", local_files_only=True)


def test_arguments_are_the_keys_of_the_section_with_its_defaults() -> None:
    for name, section in (
        ("Transformer", sections.TransformerConfig), ("Classifier", sections.ClassifierConfig),
        ("GraphAttentionNetwork", sections.GraphConfig),
        ("VisionTransformer", sections.VisionTransformerConfig),
        ("ConvolutionalClassifier", sections.ConvolutionalConfig),
    ):  # fmt: skip
        takes = inspect.signature(getattr(headloom, name)).parameters
        keys = {key: field.default for key, field in section.model_fields.items() if key != "kind"}
        assert keys == {key: takes[key].default for key in keys}


class Words:
    """A tokenizer that knows numbers."""

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def token_strings(self, ids: list[int]) -> list[str]:
        return list(map(str, ids))


def test_a_text_is_traced_by_a_tokenizer() -> None:
    model = headloom.LanguageModel(50, layers=1, **SMALL)
    assert headloom.trace(model, "3 4 5", tokenizer=Words()).tokens == ["3", "4", "5"]
    assert headloom.load(model, Words()).trace("7 8").tokens == ["7", "8"]
    with pytest.raises(headloom.InputError, match=r"trace\(module, text, tokenizer=...\)"):
        headloom.trace(model, "3 4 5")


@torch.no_grad()
def test_generation_of_a_module_alone() -> None:
    torch.manual_seed(2)
    model = headloom.LanguageModel(50, layers=1, **SMALL).eval()
    written = model.generate(IDS, max_new_tokens=3, temperature=0)
    assert torch.equal(written[:, :7], IDS) and written.shape == (2, 10)
    assert torch.equal(model(written)[:, 6:-1].argmax(-1), written[:, 7:])
    drawn = [model.generate(IDS, max_new_tokens=5, seed=seed).tolist() for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    pair = headloom.Transformer(50, layers=1, padding=0, **SMALL).eval()
    targets = pair.generate(IDS, start=1, end=2, max_new_tokens=4, beam=1)
    for source, target in zip(IDS, targets, strict=True):
        read = torch.tensor([[1, *target]])
        logits = pair(source[None], read)[0]
        logits[:, 0] = -torch.inf  # never writes padding
        assert logits.argmax(-1).tolist()[: len(target)] == target
