"""A run of a classifier as a model that commands ask: its predictions are labels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headloom.api.model import Measure, Pooling, Prediction, TraceChoices, check_text, logit_name
from headloom.api.run_model import RunModel
from headloom.errors import InputError
from headloom.models.classifier import Classifier
from headloom.tracing.names import token_names
from headloom.training.batches import Batch
from headloom.training.data import classes_of
from headloom.training.tasks.labels import longest_text, text_ids
from headloom.training.validation import mean_loss

__all__ = ["ClassifierModel"]

#: No target of a batch has it: every text has a class.
_NONE = -100


class ClassifierModel(RunModel):
    """A run of a classifier, as `headloom.api.model.Model`."""

    @property
    def _classifier(self) -> Classifier:
        model = self.run.model
        if not isinstance(model, Classifier):
            raise InputError(
                f"{self.run.folder.path}: this run reads a class from one token through a "
                "non-linear layer, so no position adds a part of its own to the score. Take a run "
                "of headloom's classifier."
            )
        return model

    @property
    def _labels(self) -> list[str]:
        return classes_of(self.run.data)

    def inputs(self, text: str, options: TraceChoices) -> dict[str, Tensor]:
        """See Model."""
        if options.generate is not None:
            raise InputError("--generate: a classifier writes nothing. Leave it out.")
        return self._ids(text, options.target)

    def windows(self, text: str, window: int, overlap: int | None) -> list[dict[str, Any]]:
        """Raises an InputError: the class is that of the whole text."""
        raise InputError(
            f"--window: {self.run.folder.path} is a run of a classifier, which reads its first "
            f"{longest_text(self.run.data)} tokens. Give texts a line each, as --corpus."
        )

    def loss(self, text: str | None, target: str | None, tokens: int) -> Measure:
        """See Model; of a text, the loss of the label that is given as its target."""
        if text is None:
            if target is not None:
                raise InputError("--logit and --target need --text.")
            batches = self.validation(tokens)
        elif target is None:
            raise InputError(
                "the loss of a text needs its label. Give it as --target, or ask for a --logit."
            )
        else:
            ids = self._ids(text, None)
            batches = [Batch(ids, torch.tensor([self._number("--target", target)]), 1)]
        return Measure("loss", lambda: mean_loss(self.run.model, batches, _NONE))

    def logit_of(
        self, word: str, against: str | None, text: str | None, target: str | None
    ) -> Measure:
        """See Model; the words are labels."""
        if text is None:
            raise InputError("--logit and --target need --text.")
        inputs = self._ids(text, target)
        number = self._number("--logit", word)
        other = None if against is None else self._number("--against", against)

        def run() -> Tensor:
            logits: Tensor = self.run.model(**inputs)[0]
            return logits[number] if other is None else logits[number] - logits[other]

        names = token_names(inputs["tokens"][0].tolist(), self.run.vocabulary)
        return Measure(logit_name(word, against), run, names)

    def prediction(self, text: str, target: str | None, position: int | None) -> Prediction:
        """See Model."""
        inputs, model = self._ids(text, target), self._classifier
        return Prediction(
            model,
            inputs,
            token_names(inputs["tokens"][0].tolist(), self.run.vocabulary),
            [],
            self._number,
            lambda numbers: [self._labels[number] for number in numbers],
            pooling=Pooling(model.pooling, lambda: model.contributions(**inputs)[0]),
        )

    def _number(self, option: str, label: str) -> int:
        """The number of a class."""
        if label not in self._labels:
            labels = ", ".join([*self._labels[:20], *["..."][: len(self._labels) > 20]])
            raise InputError(f"{option} {label}: no such label; there are {labels}.")
        return self._labels.index(label)

    def _ids(self, text: str, target: str | None) -> dict[str, Tensor]:
        """What the classifier reads."""
        if target is not None:
            raise InputError(
                "--target: this run is a classifier, which has no target here. Leave it out."
            )
        check_text(text.strip())
        longest = longest_text(self.run.data)
        return {"tokens": torch.tensor([text_ids(self.run.vocabulary, text, longest)])}
