"""What can be learned: the kinds of tasks, each with its data and its models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headloom.errors import InputError
from headloom.models.classifier import Classifier
from headloom.models.configuration import Architecture
from headloom.models.convolutional import ConvolutionalClassifier
from headloom.models.graph_attention import GraphAttentionNetwork
from headloom.models.image_classifier import ImageClassifier
from headloom.models.language_model import LanguageModel
from headloom.models.predictor import Predictor
from headloom.models.transformer import Transformer
from headloom.models.vision_transformer import VisionTransformer
from headloom.training.config import RunConfig
from headloom.training.data import DataDescription, classes_of
from headloom.training.pretrained import (
    build_pretrained,
    check_room,
    fill_pretrained,
    read_pretrained,
)
from headloom.training.sections import (
    ClassifierConfig,
    ConvolutionalConfig,
    GraphConfig,
    ModelConfig,
    PretrainedConfig,
    TransformerConfig,
    VisionTransformerConfig,
)
from headloom.training.tasks.dates import dates_task
from headloom.training.tasks.images import images_task, shape_of
from headloom.training.tasks.labels import labels_task
from headloom.training.tasks.language import language_task, repeats_task
from headloom.training.tasks.nodes import nodes_task
from headloom.training.tasks.pairs import translation_task
from headloom.training.tasks.task import Task

__all__ = ["begin_model", "build_model", "make_task"]


@dataclass(frozen=True)
class _Kind:
    """A kind of task.

    make: reads or draws its data, from its section of the configuration, the seed, and what a run
        that goes on knows of the data.
    build: the model, its matrices drawn at random, from the section of the model and the data's
        description.
    """

    make: Callable[[Any, int, DataDescription | None], Task]
    build: Callable[[ModelConfig, DataDescription], Predictor]


def _transformer(config: ModelConfig, data: DataDescription) -> Transformer:
    """A model that reads one text and writes another."""
    return Transformer(*_sizes(config, data))


def _language_model(config: ModelConfig, data: DataDescription) -> LanguageModel:
    """A model that continues a text."""
    return LanguageModel(*_sizes(config, data))


def _graph_network(config: ModelConfig, data: DataDescription) -> GraphAttentionNetwork:
    """A model that classifies the nodes of a graph."""
    features, classes = data.facts.get("features"), data.facts.get("classes")
    if not isinstance(config, GraphConfig) or not isinstance(classes, list):
        raise InputError(f"model.kind {config.kind!r}: this task needs a model that reads graphs.")
    if not isinstance(features, int):
        raise InputError("data.json does not say how many features a node has. Put a copy back.")
    if config.width % config.heads:
        raise InputError(
            f"model.width {config.width} does not split into {config.heads} heads. Choose a "
            "multiple."
        )
    sizes = config.model_dump(exclude={"kind", "width"})
    depth = config.width // config.heads
    return GraphAttentionNetwork(features, len(classes), depth=depth, **sizes)


def _sizes(config: ModelConfig, data: DataDescription) -> tuple[int, Architecture, int]:
    if not isinstance(config, TransformerConfig) or data.vocabulary is None:
        raise InputError(f"model.kind {config.kind!r}: this task needs a model that reads tokens.")
    return len(data.vocabulary), config.architecture(), data.vocabulary.pad


def _classifier(config: ModelConfig, data: DataDescription) -> Classifier:
    """A model that reads a text and scores each class."""
    if not isinstance(config, ClassifierConfig) or data.vocabulary is None:
        raise InputError(f"model.kind {config.kind!r}: this task needs a classifier.")
    return Classifier(
        len(data.vocabulary),
        len(classes_of(data)),
        config.architecture(),
        pooling=config.pooling,
        padding=data.vocabulary.pad,
    )


def _image_classifier(config: ModelConfig, data: DataDescription) -> ImageClassifier:
    """A model that sees an image and scores each class."""
    shape, classes = shape_of(data), len(classes_of(data))
    if isinstance(config, ConvolutionalConfig):
        return ConvolutionalClassifier(shape, classes, config.convolutions())
    if isinstance(config, VisionTransformerConfig):
        return VisionTransformer(
            shape, classes, config.architecture(), patch=config.patch, read=config.read
        )
    raise InputError(f"model.kind {config.kind!r}: this task needs a model that sees images.")


_KINDS = {
    "dates": _Kind(dates_task, _transformer),
    "translation": _Kind(translation_task, _transformer),
    "language": _Kind(language_task, _language_model),
    "repeats": _Kind(repeats_task, _language_model),
    "labels": _Kind(labels_task, _classifier),
    "nodes": _Kind(nodes_task, _graph_network),
    "images": _Kind(images_task, _image_classifier),
}


def _check_vocabulary(config: RunConfig, data: DataDescription) -> None:
    """Raise a DataError where a run of a model that reads tokens does not know them."""
    reads = isinstance(config.model, TransformerConfig | ClassifierConfig | PretrainedConfig)
    if reads and data.vocabulary is None:
        raise data.fault("this run lacks its vocabulary.json")


def make_task(config: RunConfig, data: DataDescription | None = None) -> Task:
    """The task of a run with its data, ready to be learned.

    Args:
        config: which, with which data, and the seed of everything drawn.
        data: of a run that goes on or is used; None: found in the training data.
    """
    make = _KINDS[config.task.kind].make
    if data is not None:
        _check_vocabulary(config, data)
    if not isinstance(config.model, PretrainedConfig):
        return make(config.task, config.training.seed, data)
    if data is None:
        read = read_pretrained(Path(config.model.folder))
        data = DataDescription(read.vocabulary, read.facts())
    task = make(config.task, config.training.seed, data)
    task.description = replace(task.description, facts={**data.facts, **task.description.facts})
    return task


def build_model(config: RunConfig, data: DataDescription) -> Predictor:
    """The model that a configuration describes, its matrices drawn at random.

    Raises: InputError: there is not enough memory for it. DataError: the run lacks a file.
    """
    _check_vocabulary(config, data)
    try:
        if isinstance(config.model, PretrainedConfig):
            return build_pretrained(config, data)
        return _KINDS[config.task.kind].build(config.model, data)
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        raise InputError(
            f"a model of kind {config.model.kind!r}: not enough memory. Choose smaller sizes."
        ) from None


def begin_model(config: RunConfig, task: Task, model: Predictor) -> None:
    """Give a new model what it begins with beside matrices drawn at random.

    Raises: HeadloomError: the folder that it begins from cannot be used.
    """
    if isinstance(config.model, PretrainedConfig):
        check_room(config, model)
        fill_pretrained(model, Path(config.model.folder), task.description)
