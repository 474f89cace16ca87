"""A training run of headloom as a model that commands ask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch
from torch import Tensor, nn

from headloom.analysis.alignment.words import parts_by_offsets
from headloom.analysis.effects.ablation import chosen_logit
from headloom.api.model import (
    Inputs,
    Measure,
    Pairs,
    Prediction,
    Progress,
    TraceChoices,
    check_text,
    logit_name,
    one_token,
)
from headloom.errors import InputError
from headloom.formats.files import JsonMapping
from headloom.formats.history import History
from headloom.formats.images import image_array
from headloom.formats.trace import TraceData
from headloom.models.transformer import Transformer
from headloom.tracing.capture import trace_as
from headloom.tracing.capture import verify as verify_model
from headloom.tracing.names import token_names
from headloom.training.batches import Batch, padded
from headloom.training.inference import TrainedRun
from headloom.training.sections import ClassifierConfig, GraphConfig, TransformerConfig
from headloom.training.tasks.images import normalised, shape_of
from headloom.training.text import Vocabulary
from headloom.training.translation import translate
from headloom.training.validation import mean_loss

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["ImageRunModel", "RunModel"]


@dataclass(frozen=True, eq=False)
class RunModel:
    """A run, as `headloom.api.model.Model`; beam: of its own translations."""

    run: TrainedRun
    beam: int = 5

    @property
    def network(self) -> nn.Module:
        """See Model."""
        return self.run.model

    @property
    def tokenizer(self) -> Vocabulary | None:
        """See Model."""
        return self.run.vocabulary

    def unknown_parts(self, text: str) -> Sequence[str]:
        """See Model."""
        return self.run.vocabulary.unknown_parts(text)

    def history(self) -> History:
        """See Model."""
        return History(self.run.folder.history)

    def inputs(self, text: str, options: TraceChoices) -> Inputs:
        """See Model. A translator without a target reads the translation that it writes itself."""
        if self.run.translates and options.generate is not None:
            raise InputError(
                "--generate: a translator writes its translation anyway. Leave it out."
            )
        return self._ids(text, options.target)

    def image_inputs(self, picture: Image, text: str | None) -> tuple[RunModel, Inputs]:
        """Raises an InputError: it reads text."""
        if isinstance(self.run.config.model, GraphConfig):
            raise InputError(
                f"--image: {self.run.folder.path} reads its graph alone. Leave it out."
            )
        raise InputError(
            f"--image: {self.run.folder.path} is a run that reads text. Give it a --text, or "
            "choose a run that sees images, or an image model of Hugging Face."
        )

    def pairs(self, sources: Sequence[str], targets: Sequence[str]) -> Pairs:
        """See Model."""
        if not self.run.translates:
            raise InputError(
                f"{self.run.folder.path}: this run {self.run.model.purpose}; only a translator "
                "looks from a target at its source. Give a run of one."
            )
        words = self.run.vocabulary
        source, target = (
            [words.encode_with_offsets(text) for text in texts] for texts in (sources, targets)
        )
        inputs = {
            "source": padded([[*ids, words.end] for ids, _ in source], words.pad),
            "target": padded([[words.start, *ids] for ids, _ in target], words.pad),
        }
        return Pairs(
            inputs,
            [
                parts_by_offsets(text, [*offsets, (0, 0)])
                for text, (_, offsets) in zip(sources, source, strict=True)
            ],
            [
                parts_by_offsets(text, [(0, 0), *offsets])
                for text, (_, offsets) in zip(targets, target, strict=True)
            ],
        )

    def windows(self, text: str, window: int, overlap: int | None) -> list[dict[str, Any]]:
        """See Model."""
        if self.run.translates:
            raise InputError(
                f"--window: {self.run.folder.path} is a run that translates: it writes a target "
                "for the whole source. Give its texts a line each, as --corpus."
            )
        sizes = self.run.config.model
        if isinstance(sizes, GraphConfig):
            raise InputError(f"--window: {self.run.folder.path} reads a graph, which has none.")
        if (
            isinstance(sizes, TransformerConfig | ClassifierConfig)
            and sizes.positions == "learned"
            and window > sizes.max_length
        ):
            raise InputError(
                f"--window {window}: this run reads {sizes.max_length} at most. Give --window "
                f"{sizes.max_length} or less."
            )
        shared = window // 4 if overlap is None else overlap
        if shared >= window:
            raise InputError(
                f"--window {window}: with {shared} of overlap there is no room for new tokens. "
                "Give a larger --window or a smaller --overlap."
            )
        ids, offsets = self.run.vocabulary.encode_with_offsets(text)
        check_text(ids)
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
        asked = options.as_asked(self.tokenizer)
        ids = _without_offsets(inputs)
        made = trace_as(
            self.run.model, ids, asked, options.generate, verification=verification,
            about=description,
        )  # fmt: skip
        traced = cast(TraceData, made)
        if isinstance(inputs, Mapping) and "offset_mapping" in inputs:
            offsets = inputs["offset_mapping"][0].tolist()
            known = {**traced.positions.get("tokens", {}), "offsets": offsets}
            traced = replace(traced, positions={**traced.positions, "tokens": known})
        if output is not None:
            traced.save(output, dtype=options.stored_dtype, overwrite=options.overwrite)
        return traced

    def loss(self, text: str | None, target: str | None, tokens: int) -> Measure:
        """See Model."""
        if text is None:
            if target is not None:
                raise InputError("--logit and --target need --text.")
            batches = self.validation(tokens)
        elif self.run.translates:
            ids = self._ids(text, target)
            written = ids["target"]
            end = torch.tensor([[self.run.vocabulary.end]])
            targets = torch.cat((written[:, 1:], end), 1)
            count = ids["source"].shape[1] + written.shape[1] + 1
            batches = [Batch(ids, targets, count)]
        else:
            read = self._ids(text, target)["tokens"]
            if read.shape[1] < 2:
                raise InputError(
                    "the text has one token; the loss needs two or more. Give more text."
                )
            batches = [Batch({"tokens": read[:, :-1]}, read[:, 1:], read.shape[1])]
        filler = self.run.vocabulary.pad
        return Measure("loss", lambda: mean_loss(self.run.model, batches, filler))

    def logit_of(
        self, word: str, against: str | None, text: str | None, target: str | None
    ) -> Measure:
        """See Model."""
        if text is None:
            raise InputError("--logit and --target need --text.")
        if self.run.translates:
            raise InputError(
                "--logit is for language models; this run is a translator. Leave it out."
            )
        inputs = self._ids(text, target)
        token = self._number("--logit", word)
        minus = None if against is None else self._number("--against", against)
        return Measure(
            logit_name(word, against),
            lambda: chosen_logit(self.run.model(**inputs), token, minus=minus),
            token_names(inputs["tokens"][0].tolist(), self.run.vocabulary),
        )

    def prediction(self, text: str, target: str | None, position: int | None) -> Prediction:
        """See Model."""
        words = self.run.vocabulary
        inputs = self._ids(text, target)
        names = [token_names(ids[0].tolist(), words) for ids in inputs.values()]
        return Prediction(
            self.run.model,
            inputs,
            names[0],
            names[-1],
            self._number,
            lambda numbers: token_names(numbers, words),
        )

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
                raise InputError(
                    "--target: this run is a language model, which has no target. Leave it out."
                )
            return {"tokens": torch.tensor([ids])}
        room = None
        if target is None:
            (target,) = translate(
                self.run.model, words, [text], beam=self.beam,
                length_penalty=self.run.length_penalty,
            )  # fmt: skip
            # The last token of one that was cut where the positions end has no place to be read.
            assert isinstance(self.run.model, Transformer)  # it has written the target
            room = self.run.model.architecture.room
        return {
            "source": torch.tensor([[*ids, words.end]]),
            "target": torch.tensor([[words.start, *words.encode(target)][:room]]),
        }

    def validation(self, tokens: int) -> list[Batch]:
        """Batches of the validation data, of so many tokens at least."""
        batches = []
        size = self.run.config.training.batch_tokens
        for batch in self.run.task("valid").validation(size):
            batches.append(batch)
            tokens -= batch.tokens
            if tokens <= 0:
                break
        return batches


def _without_offsets(inputs: Inputs) -> dict[str, Tensor]:
    if isinstance(inputs, str):
        raise InputError(
            "the inputs are a text; a model of headloom reads token ids. Encode it first."
        )
    return {name: ids for name, ids in inputs.items() if name != "offset_mapping"}


@dataclass(frozen=True, eq=False)
class ImageRunModel(RunModel):
    """A run whose model sees images, and reads no text."""

    @property
    def tokenizer(self) -> None:
        """See Model: places of an image have names of their own."""
        return None

    def _no_text(self, option: str) -> NoReturn:
        raise InputError(
            f"{option}: {self.run.folder.path} is a run that sees images and reads no text. Give "
            "it an --image."
        )

    def unknown_parts(self, text: str) -> Sequence[str]:
        """See Model."""
        self._no_text("--text")

    def inputs(self, text: str, options: TraceChoices) -> Inputs:
        """Raises an InputError: it reads no text."""
        self._no_text("--text")

    def pairs(self, sources: Sequence[str], targets: Sequence[str]) -> NoReturn:
        """Raises an InputError: it reads no text."""
        self._no_text("--source-file")

    def image_inputs(self, picture: Image, text: str | None) -> tuple[RunModel, Inputs]:
        """See Model. The picture is made grey where the run's images are, and scaled to their size
        where the run scales its own.

        Raises: InputError: a text beside it, or a picture of another size.
        """
        if text is not None:
            self._no_text("--text")
        shape = shape_of(self.run.data)
        picture = picture.convert("L" if shape.channels == 1 else "RGB")
        task = self.run.config.task
        if getattr(task, "size", None) is not None:
            picture = picture.resize((shape.columns, shape.rows))
        if (picture.height, picture.width) != (shape.rows, shape.columns):
            raise InputError(
                f"--image: the picture has {picture.height} x {picture.width} pixels; this run "
                f"sees {shape.rows} x {shape.columns}. Scale it to that size."
            )
        return self, {"images": normalised(image_array(picture)[None], self.run.data)}

    def windows(self, text: str, window: int, overlap: int | None) -> list[dict[str, Any]]:
        """Raises an InputError: it reads no text."""
        self._no_text("--window")

    def loss(self, text: str | None, target: str | None, tokens: int) -> Measure:
        """See Model. A token of an image is a pixel."""
        if text is not None or target is not None:
            self._no_text("--text" if text is not None else "--target")
        batches = self.validation(tokens)
        # -100: see Task.ignored; every image has a class.
        return Measure("loss", lambda: mean_loss(self.run.model, batches, -100))

    def logit_of(
        self, word: str, against: str | None, text: str | None, target: str | None
    ) -> Measure:
        """Raises an InputError: it reads no text."""
        self._no_text("--text" if text is not None else "--logit")

    def prediction(self, text: str, target: str | None, position: int | None) -> Prediction:
        """Raises an InputError: it reads no text."""
        self._no_text("--text")
