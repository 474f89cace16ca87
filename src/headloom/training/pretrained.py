"""Runs that start from a pretrained model of Transformers: its weights, sizes and tokenizer.

The run's data.json has the sizes of the model, and the start and end tokens; vocabulary.json is
its tokenizer. So the run can be used and resumed without the folder.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import Tensor

from headloom.errors import DataError, InputError
from headloom.formats.files import JsonObject
from headloom.models.configuration import Architecture
from headloom.models.encoder import Encoder
from headloom.models.huggingface.conversion import load_transformers
from headloom.models.huggingface.folder import Settings, named_tokens, read_tokenizer
from headloom.models.language_model import LanguageModel
from headloom.models.predictor import Predictor
from headloom.models.transformer import Transformer
from headloom.training.config import RunConfig
from headloom.training.data import DataDescription, classes_of
from headloom.training.model_sections import PretrainedConfig
from headloom.training.text import NO_TOKEN, PretrainedVocabulary


def read_pretrained(folder: Path) -> DataDescription:
    """Read a folder's tokenizer, and the sizes that a run saves in data.json.

    Raises: HeadloomError: see `headloom.LanguageModel.from_pretrained`; or its tokenizer is wrong.
    """
    settings = Settings.read(folder)
    model, named = load_transformers(folder, settings), named_tokens(settings)
    writes = isinstance(model, LanguageModel)
    # A language model's padding token may occur in a text.
    named = replace(named, padding=None) if writes else named
    vocabulary = PretrainedVocabulary.of_folder(read_tokenizer(folder), named)
    embedding = model.source_embedding if isinstance(model, Transformer) else model.embedding
    count = embedding.tokens.num_embeddings
    if len(vocabulary) > count:
        raise InputError(
            f"{folder}: tokenizer.json has {len(vocabulary)} tokens, the model embeds {count}. "
            "Give the tokenizer that the model was trained with."
        )
    needed = () if writes else ("pad", "start", "end")
    lacking = [name for name in needed if getattr(vocabulary, name) == NO_TOKEN]
    if lacking:
        raise InputError(
            f"{folder}: its files name no token for {', '.join(lacking)}, which this model needs. "
            "Add pad_token_id, decoder_start_token_id (of a translator) or bos_token_id, and "
            "eos_token_id to config.json."
        )
    segments = embedding.segments
    sizes: JsonObject = {
        "family": settings.get("model_type", ""),
        "vocabulary": count,
        "padding": model.padding,
        "architecture": asdict(model.architecture),
        "segments": 0 if segments is None else segments.num_embeddings,
    }
    return DataDescription(vocabulary, {"pretrained": sizes, "special_tokens": vocabulary.ids()})


def build_pretrained(config: RunConfig, data: DataDescription) -> Predictor:
    """Build the model of a run that started from a folder, with random weights.

    Raises: InputError: the task is not learned by such a model; DataError: data.json is damaged.
    """
    assert isinstance(config.model, PretrainedConfig)
    kinds = {"language": ["gpt2", "llama"], "labels": ["bert"]}
    wanted = kinds.get(config.task.kind, ["marian"])
    try:
        sizes = data.facts["pretrained"]
        family = sizes["family"]
        architecture = Architecture(**sizes["architecture"])
        count, padding = int(sizes["vocabulary"]), int(sizes["padding"])
        segments = int(sizes.get("segments", 0))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            "data.json of this run lacks the sizes of its pretrained model. Put a copy back, or "
            "train again."
        ) from error
    if family not in wanted:
        raise InputError(
            f"model.folder {config.model.folder} holds a {family}; task.kind {config.task.kind!r} "
            f"is learned by {' or '.join(wanted)}. Choose such a folder, or another task."
        )
    changes = config.model.model_dump(include={"dropout", "attention_dropout"}, exclude_none=True)
    architecture = replace(architecture, **changes)
    if family == "bert":
        return Encoder(
            vocabulary=count, segments=segments, head="classes", classes=len(classes_of(data)),
            padding=padding, **architecture.arguments("encoder"),
        )  # fmt: skip
    if family == "marian":
        return Transformer(vocabulary=count, padding=padding, **architecture.arguments())
    return LanguageModel(vocabulary=count, padding=padding, **architecture.arguments("decoder"))


@torch.no_grad()
def fill_pretrained(model: Predictor, folder: Path, data: DataDescription) -> None:
    """Copy the weights of a folder into a new model.

    A classification head stays random, unless the folder's model scores the same classes, by their
    names in its config.json; so does a pooler that the folder lacks.
    """
    settings = Settings.read(folder)
    read = load_transformers(folder, settings)
    loaded: dict[str, Tensor] = dict(read.named_parameters())
    if isinstance(model, Encoder):
        names = settings.raw("id2label")
        classes = {str(place): name for place, name in enumerate(classes_of(data))}
        scores = isinstance(read, Encoder) and read.head == "classes"
        left = ("transform",) if names == classes and scores else ("transform", "output")
        loaded = {name: value for name, value in loaded.items() if not name.startswith(left)}
    parameters = dict(model.named_parameters())
    new = {name.split(".")[0] for name in parameters if name not in loaded}
    shapes = {name: parameters[name].shape for name in loaded if name in parameters}
    if not new <= {"pooler", "output"} or shapes != {n: v.shape for n, v in loaded.items()}:
        raise DataError(f"{folder}: the model has changed since the run started.")
    for name, value in loaded.items():
        parameters[name].copy_(value)
