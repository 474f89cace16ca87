"""Kinds of training tasks, each with its data and its models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headloom.errors import InputError, is_out_of_memory
from headloom.models.classifier import Classifier
from headloom.models.graph_attention import GraphAttentionNetwork
from headloom.models.images import ConvolutionalClassifier, ImageClassifier, VisionTransformer
from headloom.models.language_model import LanguageModel
from headloom.models.predictor import Predictor
from headloom.models.transformer import Transformer
from headloom.training.config import RunConfig
from headloom.training.data import DataDescription, classes_of
from headloom.training.model_sections import (
    ClassifierConfig,
    ConvolutionalConfig,
    GraphConfig,
    PretrainedConfig,
    TransformerConfig,
    VisionTransformerConfig,
)
from headloom.training.pretrained import build_pretrained, fill_pretrained, read_pretrained
from headloom.training.tasks.dates import dates_task
from headloom.training.tasks.images import images_task, shape_of
from headloom.training.tasks.labels import labels_task
from headloom.training.tasks.language import language_task, repeats_task
from headloom.training.tasks.nodes import nodes_task
from headloom.training.tasks.pairs import translation_task
from headloom.training.tasks.task import Task


@dataclass(frozen=True)
class _Kind:
    """Functions that make a kind of task and its model."""

    make: Callable[[Any, int, DataDescription | None], Task]
    build: Callable[[Any, DataDescription], Predictor]


def _transformer(config: TransformerConfig, data: DataDescription) -> Transformer:
    vocabulary, choices = data.words, config.model_dump(exclude={"kind"})
    return Transformer(vocabulary=len(vocabulary), padding=vocabulary.pad, **choices)


def _language_model(config: TransformerConfig, data: DataDescription) -> LanguageModel:
    vocabulary, choices = data.words, config.architecture().arguments("decoder")
    return LanguageModel(vocabulary=len(vocabulary), padding=vocabulary.pad, **choices)


def _graph_network(config: GraphConfig, data: DataDescription) -> GraphAttentionNetwork:
    features = data.facts.get("features")
    if not isinstance(features, int):
        raise data.fault("data.json does not say how many features a node has")
    choices = config.model_dump(exclude={"kind"})
    return GraphAttentionNetwork(features=features, classes=len(classes_of(data)), **choices)


def _classifier(config: ClassifierConfig, data: DataDescription) -> Classifier:
    return Classifier(
        vocabulary=len(data.words), classes=len(classes_of(data)), padding=data.words.pad,
        **config.model_dump(exclude={"kind"}),
    )  # fmt: skip


def _image_classifier(
    config: ConvolutionalConfig | VisionTransformerConfig, data: DataDescription
) -> ImageClassifier:
    convolutional = isinstance(config, ConvolutionalConfig)
    kind = ConvolutionalClassifier if convolutional else VisionTransformer
    choices = config.model_dump(exclude={"kind"})
    return kind(image=shape_of(data), classes=len(classes_of(data)), **choices)


_KINDS = {
    "dates": _Kind(dates_task, _transformer),
    "translation": _Kind(translation_task, _transformer),
    "language": _Kind(language_task, _language_model),
    "repeats": _Kind(repeats_task, _language_model),
    "labels": _Kind(labels_task, _classifier),
    "nodes": _Kind(nodes_task, _graph_network),
    "images": _Kind(images_task, _image_classifier),
}


def make_task(config: RunConfig, data: DataDescription | None = None) -> Task:
    """Make the task of a run and read its data.

    Args:
        config: kind, data and seed of the task.
        data: description saved by the run; None: a new run, computed from the training data.
    """
    make = _KINDS[config.task.kind].make
    reads = isinstance(config.model, TransformerConfig | ClassifierConfig | PretrainedConfig)
    if data is not None and reads:
        _ = data.words
    if not isinstance(config.model, PretrainedConfig):
        return make(config.task, config.training.seed, data)
    if data is None:
        data = read_pretrained(Path(config.model.folder))
    task = make(config.task, config.training.seed, data)
    task.description = replace(task.description, facts={**data.facts, **task.description.facts})
    return task


def build_model(config: RunConfig, data: DataDescription) -> Predictor:
    """Build the model of a configuration with random weights.

    Raises: InputError: there is not enough memory for it. DataError: the run lacks a file.
    """
    try:
        if isinstance(config.model, PretrainedConfig):
            return build_pretrained(config, data)
        return _KINDS[config.task.kind].build(config.model, data)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise InputError(
            f"a model of kind {config.model.kind!r}: not enough memory. Choose smaller sizes."
        ) from None


def begin_model(config: RunConfig, task: Task, model: Predictor) -> None:
    """Load pretrained weights into a new model where the configuration names a folder.

    Raises: HeadloomError: the folder of the pretrained model cannot be used.
    """
    if isinstance(config.model, PretrainedConfig):
        fill_pretrained(model, Path(config.model.folder), task.description)
