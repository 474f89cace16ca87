"""A training that begins from a model of Transformers: its weights, and what the run keeps of it.

The run's data.json has the sizes of the model, and which tokens begin and end a text;
vocabulary.json is its tokenizer. So a run can be used, and gone on with, where the folder is gone.
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
    """The tokens of a folder, and what a run keeps in its data.json beside them.

    Raises: HeadloomError: see `headloom.LanguageModel.from_pretrained`; or its tokens are others.
    """
    settings = Settings.read(folder)
    model, named = load_transformers(folder, settings), named_tokens(settings)
    writes = isinstance(model, LanguageModel)
    # Of a language model, the token that pads may stand in a text.
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
    """The model of a run that began from a folder, its matrices drawn at random.

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
            "data.json of this run does not say what model it began from. Put a copy back, or "
            "train again."
        ) from error
    if family not in wanted:
        raise InputError(
            f"model.folder {config.model.folder} holds a {family}; task.kind "
            f"{config.task.kind!r} is learned by {' or '.join(wanted)}. Give such a folder, or "
            "another task."
        )
    given = config.model.model_dump(include={"dropout", "attention_dropout"}, exclude_none=True)
    architecture = replace(architecture, **given)
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
    """Give a new model the weights of a folder.

    What scores the classes of texts stays drawn at random, unless the folder scores these classes,
    by their names in its config.json; likewise a pooler that the folder lacks.
    """
    settings = Settings.read(folder)
    read = load_transformers(folder, settings)
    given: dict[str, Tensor] = dict(read.named_parameters())
    if isinstance(model, Encoder):
        names = settings.raw("id2label")
        classes = {str(place): name for place, name in enumerate(classes_of(data))}
        scores = isinstance(read, Encoder) and read.head == "classes"
        left = ("transform",) if names == classes and scores else ("transform", "output")
        given = {name: value for name, value in given.items() if not name.startswith(left)}
    own = dict(model.named_parameters())
    new = {name.split(".")[0] for name in own if name not in given}
    shapes = {name: own[name].shape for name in given if name in own}
    if not new <= {"pooler", "output"} or shapes != {n: v.shape for n, v in given.items()}:
        raise DataError(f"{folder}: this is not the model that the run began from any more.")
    for name, value in given.items():
        own[name].copy_(value)
