"""A training run of headloom as a model that commands ask."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from headloom.analysis.alignment.words import parts_by_offsets
from headloom.api.model import (
    Inputs,
    Measure,
    Pairs,
    Pooling,
    Prediction,
    Progress,
    TraceChoices,
    check_text,
    one_token,
)
from headloom.errors import InputError
from headloom.formats.files import JsonMapping
from headloom.formats.images import image_array
from headloom.formats.trace import TraceData
from headloom.models.classifier import Classifier
from headloom.models.images import ImageClassifier
from headloom.models.transformer import Transformer
from headloom.tracing.capture import trace_as
from headloom.tracing.capture import verify as verify_model
from headloom.tracing.names import token_names
from headloom.training.batches import Batch, padded
from headloom.training.data import classes_of
from headloom.training.inference import TrainedRun
from headloom.training.tasks.images import normalised, shape_of
from headloom.training.tasks.labels import longest_text, text_ids
from headloom.training.text import Vocabulary
from headloom.training.translation import Search, translate
from headloom.training.validation import mean_loss

if TYPE_CHECKING:
    from PIL.Image import Image

#: Tokens of the validation data on which a loss is taken, at least.
_VALIDATION = 4_096
#: No target of a batch of classes has it: every example has a class.
_NONE = -100


def model_of_run(run: TrainedRun) -> RunModel:
    """A run as commands ask it."""
    return ClassifierModel(run) if run.model.classifies_texts else RunModel(run)


@dataclass(frozen=True, eq=False)
class RunModel:
    """A run, as `headloom.api.model.Model`; beam: of its own translations.

    Whatever needs a text raises an InputError for one that reads images or a graph: see
    `TrainedRun.vocabulary`.
    """

    run: TrainedRun
    beam: int = 5

    @property
    def network(self) -> nn.Module:
        """See Model."""
        return self.run.model

    @property
    def tokenizer(self) -> Vocabulary | None:
        """See Model: places of an image have names of their own."""
        return self.run.data.vocabulary

    def unknown_parts(self, text: str) -> Sequence[str]:
        """See Model."""
        return self.run.vocabulary.unknown_parts(text)

    def inputs(self, text: str, options: TraceChoices) -> Inputs:
        """See Model. A translator without a target reads the translation that it writes itself."""
        if options.generate is not None and (
            self.run.translates or self.run.model.classifies_texts
        ):
            raise InputError(f"--generate: this run {self.run.model.purpose}. Leave it out.")
        return self._ids(text, options.target)

    def image_inputs(self, picture: Image, text: str | None) -> tuple[RunModel, Inputs]:
        """See Model. The picture is made grey where the run's images are, and scaled to their size
        where the run scales its own.

        Raises: InputError: a run that sees no images; a text beside it; a picture of another size.
        """
        if not isinstance(self.run.model, ImageClassifier):
            raise InputError(
                f"{self.run.folder.path}: this run {self.run.model.purpose}, and sees no picture."
            )
        if text is not None:
            _ = self.run.vocabulary
        shape = shape_of(self.run.data)
        picture = picture.convert("L" if shape.channels == 1 else "RGB")
        if getattr(self.run.config.task, "size", None) is not None:
            picture = picture.resize((shape.columns, shape.rows))
        if (picture.height, picture.width) != (shape.rows, shape.columns):
            raise InputError(
                f"the picture has {picture.height} x {picture.width} pixels; this run sees "
                f"{shape.rows} x {shape.columns}. Scale it to that size."
            )
        return self, {"images": normalised(image_array(picture)[None], self.run.data)}

    def pairs(self, sources: Sequence[str], targets: Sequence[str]) -> Pairs:
        """See Model."""
        if not self.run.translates:
            raise InputError(
                f"{self.run.folder.path}: this run {self.run.model.purpose}; only a translator "
                "looks from a target at its source. Give a run of one."
            )
        words = self.run.vocabulary
        read = [words.encode_with_offsets(text) for text in sources]
        written = [words.encode_with_offsets(text) for text in targets]
        inputs = {
            "source": padded([[*ids, words.end] for ids, _ in read], words.pad),
            "target": padded([[words.start, *ids] for ids, _ in written], words.pad),
        }
        source = [[*offsets, (0, 0)] for _, offsets in read]
        target = [[(0, 0), *offsets] for _, offsets in written]
        return Pairs(
            inputs,
            [parts_by_offsets(*pair) for pair in zip(sources, source, strict=True)],
            [parts_by_offsets(*pair) for pair in zip(targets, target, strict=True)],
        )

    def windows(self, text: str, window: int) -> list[dict[str, Tensor]]:
        """See Model."""
        if self.run.translates or self.run.model.classifies_texts:
            raise InputError(
                f"--window: {self.run.folder.path} {self.run.model.purpose}, a whole text at once. "
                "Give its texts a line each, as --corpus."
            )
        ids, offsets = self.run.vocabulary.encode_with_offsets(text)
        check_text(ids)
        shared = window // 4
        return [
            {
                "tokens": torch.tensor([ids[start : start + window]]),
                "offset_mapping": torch.tensor([offsets[start : start + window]]),
            }
            for start in range(0, max(len(ids) - shared, 1), window - shared)
        ]

    def verify(self, inputs: Inputs, options: TraceChoices) -> None:
        """See Model."""
        verify_model(self.run.model, _without_offsets(inputs), options.as_asked(self.tokenizer))

    def trace(
        self,
        inputs: Inputs,
        output: Path | None,
        options: TraceChoices,
        *,
        description: JsonMapping | None = None,
        progress: Progress | None = None,
        verification: JsonMapping | None = None,
    ) -> TraceData:
        """See Model."""
        made = trace_as(
            self.run.model, _without_offsets(inputs), options.as_asked(self.tokenizer),
            options.generate, verification=verification, about=description,
        )  # fmt: skip
        traced = cast(TraceData, made)
        if "offset_mapping" in inputs and not isinstance(inputs, str):
            offsets = inputs["offset_mapping"][0].tolist()
            known = {**traced.positions.get("tokens", {}), "offsets": offsets}
            traced = replace(traced, positions={**traced.positions, "tokens": known})
        if output is not None:
            traced.save(output, overwrite=options.overwrite)
        return traced

    def loss(self, text: str | None, target: str | None) -> Measure:
        """See Model. A token of an image is a pixel."""
        filler = _NONE if self.tokenizer is None else self.tokenizer.pad
        if text is not None:
            batches = [self._batch(text, target)]
        else:
            every = self.run.task("valid").validation(self.run.config.training.batch_tokens)
            before = itertools.accumulate((batch.tokens for batch in every), initial=0)
            batches = [b for b, done in zip(every, before, strict=False) if done < _VALIDATION]
        return Measure("loss", lambda: mean_loss(self.run.model, batches, filler))

    def _batch(self, text: str, target: str | None) -> Batch:
        """A text as the training reads it."""
        ids = self._ids(text, target)
        if self.run.translates:
            written = ids["target"]
            end = torch.tensor([[self.run.vocabulary.end]])
            count = ids["source"].shape[1] + written.shape[1] + 1
            return Batch(ids, torch.cat((written[:, 1:], end), 1), count)
        read = ids["tokens"]
        if read.shape[1] < 2:
            raise InputError("the text has one token; the loss needs two or more. Give more text.")
        return Batch({"tokens": read[:, :-1]}, read[:, 1:], read.shape[1])

    def prediction(self, text: str, target: str | None, position: int | None) -> Prediction:
        """See Model."""
        words = self.run.vocabulary
        inputs = self._ids(text, target)
        names = [token_names(ids[0].tolist(), words) for ids in inputs.values()]
        return Prediction(
            self.run.model, inputs, names[0], names[-1], self._number,
            lambda numbers: token_names(numbers, words),
        )  # fmt: skip

    def _number(self, option: str, word: str) -> int:
        """The token that the word of an option names."""
        words = self.run.vocabulary
        return one_token(f"{option} {word}", words.encode(word), words.unknown)

    def _ids(self, text: str, target: str | None) -> dict[str, Tensor]:
        """The token ids of a text; of a translator, and the target's without its end."""
        words = self.run.vocabulary
        ids = words.encode(text)
        check_text(ids)
        if not self.run.translates:
            if target is not None:
                raise InputError(f"--target: this run {self.run.model.purpose}. Leave it out.")
            return {"tokens": torch.tensor([ids])}
        room = None
        if target is None:
            search = Search(self.beam, self.run.length_penalty)
            (target,) = translate(self.run.model, words, [text], search)
            # The last token of one that was cut where the positions end has no place to be read.
            assert isinstance(self.run.model, Transformer)  # it has written the target
            room = self.run.model.architecture.room
        return {
            "source": torch.tensor([[*ids, words.end]]),
            "target": torch.tensor([[words.start, *words.encode(target)][:room]]),
        }


class ClassifierModel(RunModel):
    """A run of a classifier of texts, whose predictions are labels."""

    def _batch(self, text: str, target: str | None) -> Batch:
        """A text, with the label that is given as its target."""
        if target is None:
            raise InputError(
                "the loss of a text needs its label. Give it as --target, or ask for a --logit."
            )
        ids = self._ids(text, None)
        return Batch(ids, torch.tensor([self._number("--target", target)]), 1)

    def prediction(self, text: str, target: str | None, position: int | None) -> Prediction:
        """See Model."""
        inputs, model = self._ids(text, target), self.run.model
        labels = classes_of(self.run.data)
        names = token_names(inputs["tokens"][0].tolist(), self.run.vocabulary)
        pooling = None
        if isinstance(model, Classifier):  # others read the class from one token
            pooling = Pooling(model.pooling, lambda: model.contributions(**inputs)[0])
        return Prediction(
            model, inputs, names, [], self._number,
            lambda numbers: [labels[number] for number in numbers], pooling=pooling,
        )  # fmt: skip

    def _number(self, option: str, word: str) -> int:
        """The number of a class."""
        labels = classes_of(self.run.data)
        if word not in labels:
            known = ", ".join([*labels[:20], *["..."][: len(labels) > 20]])
            raise InputError(f"{option} {word}: no such label; there are {known}.")
        return labels.index(word)

    def _ids(self, text: str, target: str | None) -> dict[str, Tensor]:
        """What the classifier reads."""
        if target is not None:
            raise InputError(f"--target: this run {self.run.model.purpose}. Leave it out.")
        check_text(text)
        ids = text_ids(self.run.vocabulary, text, longest_text(self.run.data))
        return {"tokens": torch.tensor([ids])}


def _without_offsets(inputs: Inputs) -> dict[str, Tensor]:
    assert not isinstance(inputs, str)  # of models of Hugging Face alone
    return {name: ids for name, ids in inputs.items() if name != "offset_mapping"}
