"""A key of [model] is refused exactly where a change of it changes nothing of the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from headloom.errors import InputError
from headloom.models.configuration import PositionKind
from headloom.training.config import check_config, load_config
from headloom.training.data import DataDescription
from headloom.training.tasks import build_model
from headloom.training.text import Vocabulary

TOKENS = torch.arange(80).reshape(2, 40) % 9 + 4
#: Of a task: what [task] needs, what its model reads, and what a run knows of its data.
TASKS: dict[str, tuple[dict[str, Any], dict[str, torch.Tensor], dict[str, Any]]] = {
    "dates": ({}, {"source": TOKENS, "target": TOKENS.flip(1)}, {}),
    "language": ({"file": "a"}, {"tokens": TOKENS}, {}),
    "labels": ({"train": "a"}, {"tokens": TOKENS}, {"classes": ["a", "b"]}),
    "images": ({"train": "a"}, {"images": torch.randn(4, 1, 8, 8)},
               {"classes": ["a", "b"], "shape": [1, 8, 8]}),
    "nodes": ({"graph": "a"},
              {"features": torch.randn(4, 3), "edge_index": torch.tensor([[0, 1, 2], [1, 2, 3]])},
              {"classes": ["a", "b"], "features": 3}),
}  # fmt: skip
SIZES = {"width": 16, "heads": 2, "feed_forward": 16}
CONVOLUTIONS = {"kind": "convolutional", "channels": [4, 8]}
LAYERS = {"encoder_layers": 1, "decoder_layers": 1}
#: Another value of each key.
OF_BLOCKS = {
    "width": 32, "heads": 4, "kv_heads": 1, "feed_forward": 8, "norm": "post",
    "normalisation": "rms", "norm_epsilon": 0.1, "feed_forward_kind": "gated", "biases": False,
    "activation": "gelu", "dropout": 0.5, "attention_dropout": 0.5, "clip": 2, "buckets": 8,
    "max_distance": 32, "rotary_base": 9.0,
}  # fmt: skip
OF_TRANSFORMER = {**OF_BLOCKS, "encoder_layers": 2, "decoder_layers": 2, "tied": False}
OF_CLASSIFIER = {**OF_BLOCKS, "layers": 3, "pooling": "max", "embeddings": "frozen"}
OF_CONVOLUTIONS = {
    "channels": [8, 4], "halved": [2], "inner_channels": 3, "value_channels": 5, "pooled": True,
    "spectral_norm": False, "batch_norm": False, "region": [0, 0, 4, 4],
}  # fmt: skip
OF_GRAPH = {
    "width": 8, "heads": 4, "output_heads": 2, "version": 2, "dropout": 0.1, "residual": True,
    "attention_dropout": 0.1, "weights": "uniform",
}  # fmt: skip


def is_refused(file: Path, task: str, model: dict[str, Any], key: str) -> bool:
    """Whether `load_config` refuses a key of [model] because nothing reads it."""
    words = [f"task.kind={task}"]
    words += [f"task.{name}={json.dumps(value)}" for name, value in TASKS[task][0].items()]
    words += [f"model.{name}={json.dumps(value)}" for name, value in model.items()]
    try:
        load_config(file, words)
    except InputError as error:
        assert f": model.{key}: nothing reads it where" in str(error)
        return True
    return False


def computed(task: str, sizes: dict[str, Any]) -> list[Any]:
    """The shapes of a model, what of it learns, and what it computes, its matrices alike."""
    settings, inputs, facts = TASKS[task]
    config = check_config({"task": {"kind": task, **settings}, "model": sizes}, "test")
    data = DataDescription(Vocabulary.of_characters(["abcdefghijk"]), facts)
    model = build_model(config, data)
    torch.manual_seed(1)
    parameters = dict(model.named_parameters())
    for parameter in parameters.values():
        torch.nn.init.normal_(parameter, 0.0, 0.3)
    shapes = [(name, p.shape, p.requires_grad) for name, p in parameters.items()]
    return [*shapes, model(**inputs).tolist()]


@pytest.mark.parametrize(
    ("task", "base", "others"),
    [
        *(
            (task, {**SIZES, **layers, "positions": positions}, others)
            for task, layers, others in (
                ("dates", LAYERS, OF_TRANSFORMER),
                ("language", {"decoder_layers": 1}, OF_TRANSFORMER),
                ("labels", {"layers": 1}, OF_CLASSIFIER),
            )
            for positions in get_args(PositionKind)
        ),
        *(
            ("images", {**CONVOLUTIONS, "attention": number}, OF_CONVOLUTIONS)
            for number in (0, 1)
        ),
        *(("nodes", {"layers": n}, OF_GRAPH) for n in (1, 2, 3)),
    ],
)  # fmt: skip
def test_a_key_is_refused_where_nothing_reads_it(
    tmp_path: Path, task: str, base: dict[str, Any], others: dict[str, Any]
) -> None:
    file = tmp_path / "c.toml"
    file.touch()
    plain = computed(task, base)
    for key, value in others.items():
        changed = base | {key: value}
        assert is_refused(file, task, changed, key) is (computed(task, changed) == plain), key
