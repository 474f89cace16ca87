"""Model of a training run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headloom.analysis.alignment.links import mutual, pairs_of
from headloom.analysis.alignment.words import parts_by_offsets
from headloom.api.evaluation import HeldOut, held_out_of_run
from headloom.api.model import Model
from headloom.api.questions import (
    WINDOW,
    Inputs,
    Kind,
    Measure,
    Pairs,
    Prediction,
    PredictOptions,
    check_text,
    one_label,
    one_token,
)
from headloom.api.word_weights import word_weights_of
from headloom.errors import InputError
from headloom.formats.files import JsonObject
from headloom.formats.images import image_array
from headloom.formats.pharaoh import pharaoh_line
from headloom.formats.trace import TraceData
from headloom.models.classifier import Classifier
from headloom.models.images import ImageClassifier
from headloom.models.language_model import LanguageModel
from headloom.models.transformer import Transformer
from headloom.tracing.capture import trace_nodes
from headloom.tracing.names import token_names
from headloom.tracing.options import TraceOptions
from headloom.training.batches import Batch, padded
from headloom.training.data import classes_of
from headloom.training.inference import (
    Classification,
    TrainedRun,
    classify,
    generate_text,
    open_run,
)
from headloom.training.sections import NodesConfig
from headloom.training.tasks.images import normalised, shape_of
from headloom.training.tasks.labels import longest_text, text_ids
from headloom.training.tasks.nodes import NodesTask
from headloom.training.text import Vocabulary
from headloom.training.translation import Search, TranslatedLine, translate, translated_windows
from headloom.training.user_data import user_task
from headloom.training.validation import mean_loss

if TYPE_CHECKING:
    from PIL.Image import Image

#: Minimum of validation tokens for a loss.
_VALIDATION = 4_096
#: Digits of weights and of log-probabilities.
_DIGITS = 6
#: Ignored target of batches of classes; none has it.
_NONE = -100


class RunModel(Model):
    """Model of a run; its weights are read on first use.

    beam: of its own translations. A run of images or a graph, which has no vocabulary
    (`TrainedRun.vocabulary`), raises an InputError where a text is needed.
    """

    def __init__(
        self, run: TrainedRun | Path | str, *, data: Path | None = None, beam: int = 5
    ) -> None:
        self.path = run.folder.path if isinstance(run, TrainedRun) else Path(run)
        self.name, self._beam, self._data = str(self.path), beam, data
        if isinstance(run, TrainedRun):
            self._run = run

    @cached_property
    def _run(self) -> TrainedRun:
        """Opened run with its best weights."""
        return open_run(self.path, self._data)

    @property
    def module(self) -> nn.Module:
        """Network with the best weights of the run, in evaluation mode."""
        return self._run.model

    @property
    def tokenizer(self) -> Vocabulary | None:
        """Vocabulary of the run; None: it reads no text."""
        return self._run.data.vocabulary

    def _unknown_parts(self, text: str) -> Sequence[str]:
        return self._run.vocabulary.unknown_parts(text)

    def _inputs(
        self, text: str, target: str | None = None, *, generates: bool = False
    ) -> dict[str, Tensor]:
        """Return the ids of a text and a target, by default the model's own translation."""
        if isinstance(self._run.config.task, NodesConfig):
            raise InputError(f"{self.path} reads its graph alone. Leave the inputs out.")
        if generates and (self._run.translates or self._run.model.classifies_texts):
            raise InputError(f"generate: this run {self._run.model.purpose}. Leave generate out.")
        return self._ids(text, target)

    def _image_inputs(self, picture: Image, text: str | None) -> tuple[RunModel, Inputs]:
        """Return the image, converted to grey or resized as the run's own images."""
        if not isinstance(self._run.model, ImageClassifier):
            raise InputError(
                f"{self.path}: this run {self._run.model.purpose}, and reads no images."
            )
        if text is not None:
            _ = self._run.vocabulary
        shape = shape_of(self._run.data)
        picture = picture.convert("L" if shape.channels == 1 else "RGB")
        if getattr(self._run.config.task, "size", None) is not None:
            picture = picture.resize((shape.columns, shape.rows))
        if (picture.height, picture.width) != (shape.rows, shape.columns):
            raise InputError(
                f"the picture has {picture.height} x {picture.width} pixels; this run reads "
                f"{shape.rows} x {shape.columns}. Resize it to that."
            )
        return self, {"images": normalised(image_array(picture)[None], self._run.data)}

    @property
    def _predicts(self) -> Kind | None:
        if self._run.translates:
            return "translation"
        if self._run.model.classifies_texts:
            return "label"
        return "text" if isinstance(self._run.model, LanguageModel) else None

    def _continuation(self, prompt: str, options: PredictOptions) -> str:
        return generate_text(
            self._run, prompt, length=options.max_new_tokens, temperature=options.temperature,
            top=options.top_k, top_p=options.top_p, seed=options.seed,
        )  # fmt: skip

    def _classes(self, texts: Sequence[str]) -> list[Classification]:
        return classify(self._run.model, self._run.data, texts)

    def _translations(
        self, lines: Iterator[str], options: PredictOptions, described: bool
    ) -> Iterator[JsonObject]:
        run, n_best, penalty = self._run, options.n_best, options.length_penalty
        penalty = run.length_penalty if penalty is None else penalty
        search = Search(options.beam, penalty, products=options.products)
        for window in translated_windows(run.model, run.vocabulary, lines, search, WINDOW):
            aligned = self._alignments(window, n_best) if described else iter(())
            for line in window:
                best: list[JsonObject] = [
                    {
                        "text": run.vocabulary.decode(hypothesis.tokens),
                        "log_probability": round(hypothesis.log_probability, _DIGITS),
                        "score": round(hypothesis.score(penalty), _DIGITS),
                        "ended": hypothesis.ended,
                        "tokens": run.vocabulary.token_strings(hypothesis.tokens),
                        **(next(aligned) if described and hypothesis.ended else {}),
                    }
                    for hypothesis in line.hypotheses[:n_best]
                ]
                yield {
                    "line": line.number, "source": line.source,
                    "source_tokens": run.vocabulary.token_strings(line.ids), "hypotheses": best,
                }  # fmt: skip

    def _alignments(self, window: list[TranslatedLine], n_best: int) -> Iterator[JsonObject]:
        """Align the words of each hypothesis that ended, by the mean of all heads.

        By the rows that write a word: those that read it are diffuse (docs/howto/alignment.md).
        """
        pairs = [
            (line.source, self._run.vocabulary.decode(hypothesis.tokens))
            for line in window
            for hypothesis in line.hypotheses[:n_best]
            if hypothesis.ended
        ]
        if not any(source.strip() and target.strip() for source, target in pairs):
            yield from ({"alignment": "", "weights": []} for _ in pairs)
            return
        sources, targets = zip(*pairs, strict=True)
        for read in word_weights_of(self, sources, targets, steps=("write",)):
            mean = read.weights.mean(0, keepdim=True)
            yield {
                "alignment": pharaoh_line(pairs_of(mutual(mean)[0])),
                "weights": [[round(weight, _DIGITS) for weight in row] for row in mean[0].tolist()],
            }

    def _pairs(self, sources: Sequence[str], targets: Sequence[str]) -> Pairs:
        if not self._run.translates:
            raise InputError(
                f"{self.path}: this run {self._run.model.purpose}; only a translator "
                "attends from a target to its source. Use a run of one."
            )
        words = self._run.vocabulary
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

    def _windows(self, text: str, window: int) -> list[dict[str, Tensor]]:
        if self._run.translates or self._run.model.classifies_texts:
            raise InputError(
                f"window: {self.path} {self._run.model.purpose}, a whole text at once. "
                "Give its texts as a corpus, one a line."
            )
        ids, offsets = self._run.vocabulary.encode_with_offsets(text)
        check_text(ids)
        shared = window // 4
        return [
            {
                "tokens": torch.tensor([ids[start : start + window]]),
                "offset_mapping": torch.tensor([offsets[start : start + window]]),
            }
            for start in range(0, max(len(ids) - shared, 1), window - shared)
        ]

    def _verify(self, inputs: Inputs, options: TraceOptions, *, generates: bool = False) -> None:
        super()._verify(_without_offsets(inputs), options, generates=generates)

    def _traced(
        self, inputs: object, options: TraceOptions,
        generate: int | Mapping[str, object] | None = None,
        **known: Any,
    ) -> TraceData | list[TraceData]:  # fmt: skip
        """Trace inputs; windows of a text keep their offsets in it; a graph is traced whole."""
        task = self._run.task() if inputs is None else None
        if isinstance(task, NodesTask):
            made = trace_nodes(self.module, task.inputs(), task.names)
        elif not isinstance(inputs, Mapping) or "offset_mapping" not in inputs:
            return super()._traced(inputs, options, generate, **known)
        else:
            unsaved = replace(options, save=None)
            window = super()._traced(_without_offsets(inputs), unsaved, generate, **known)
            assert isinstance(window, TraceData)
            offsets = {"offsets": inputs["offset_mapping"][0].tolist()}
            tokens = {**window.positions.get("tokens", {}), **offsets}
            made = replace(window, positions={**window.positions, "tokens": tokens})
        if options.save is not None:
            made.save(options.save, overwrite=options.overwrite)
        return made

    def _like(self, other: object) -> Model:
        """Return the other model of a comparison, also by its folder."""
        return type(self)(other) if isinstance(other, str | Path) else super()._like(other)

    def _held_out(self, data: object, split: str | None) -> HeldOut:
        return held_out_of_run(self._run, data, split)

    def _loss(self, text: object, target: str | None) -> Measure:
        """Return the loss; a token of an image is a pixel."""
        filler = _NONE if self.tokenizer is None else self.tokenizer.pad
        size = self._run.config.training.batch_tokens
        if isinstance(text, str):
            batches = [self._batch(text, target)]
        elif text is not None:
            batches = user_task(self._run, text).validation(size)
        else:
            every = self._run.task("valid").validation(size)
            before = itertools.accumulate((batch.tokens for batch in every), initial=0)
            batches = [b for b, done in zip(every, before, strict=False) if done < _VALIDATION]
        return Measure("loss", lambda: mean_loss(self._run.model, batches, filler))

    def _batch(self, text: str, target: str | None) -> Batch:
        """Return a text as a training batch; of a classifier, the target is its label."""
        if self._run.model.classifies_texts:
            if target is None:
                raise InputError(
                    "the loss of a text needs its label. Give it as target, or give a logit."
                )
            ids = self._ids(text, None)
            return Batch(ids, torch.tensor([self._number("target", target)]), 1)
        ids = self._ids(text, target)
        if self._run.translates:
            written = ids["target"]
            end = torch.tensor([[self._run.vocabulary.end]])
            count = ids["source"].shape[1] + written.shape[1] + 1
            return Batch(ids, torch.cat((written[:, 1:], end), 1), count)
        read = ids["tokens"]
        if read.shape[1] < 2:
            raise InputError("the text has one token; the loss needs two or more. Give more text.")
        return Batch({"tokens": read[:, :-1]}, read[:, 1:], read.shape[1])

    def _prediction(self, text: str, target: str | None, position: int | None) -> Prediction:
        words = self._run.vocabulary
        inputs = self._ids(text, target)
        names = [token_names(ids[0].tolist(), words) for ids in inputs.values()]
        if (model := self._run.model).classifies_texts:
            labels = classes_of(self._run.data)
            prediction = Prediction(
                model, inputs, names[0], [], self._number,
                lambda numbers: [labels[number] for number in numbers],
            )  # fmt: skip
            if not isinstance(model, Classifier):  # others read the class from one token
                return prediction
            pooling, parts = model.pooling, model.contributions
            return replace(prediction, pooling=pooling, parts=lambda: parts(**inputs)[0])
        return Prediction(
            model, inputs, names[0], names[-1], self._number,
            lambda numbers: token_names(numbers, words),
        )  # fmt: skip

    def _number(self, option: str, word: str) -> int:
        """Return the token of an option's word; of a classifier, the number of a class."""
        if self._run.model.classifies_texts:
            return one_label(classes_of(self._run.data), option, word)
        words = self._run.vocabulary
        return one_token(f"{option} {word}", words.encode(word), words.unknown)

    def _ids(self, text: str, target: str | None) -> dict[str, Tensor]:
        """Return the token ids of a text; of a translator also the target's, without its end."""
        words = self._run.vocabulary
        classifies = self._run.model.classifies_texts
        if target is not None and not self._run.translates:
            raise InputError(f"target: this run {self._run.model.purpose}. Leave target out.")
        ids = [] if classifies else words.encode(text)
        check_text(text if classifies else ids)
        if classifies:
            ids = text_ids(words, text, longest_text(self._run.data))
        if not self._run.translates:
            return {"tokens": torch.tensor([ids])}
        room = None
        if target is None:
            search = Search(self._beam, self._run.length_penalty)
            (target,) = translate(self._run.model, words, [text], search)
            # A translation cut at the last position has no position for its last token.
            assert isinstance(self._run.model, Transformer)  # it has generated the target
            room = self._run.model.architecture.room
        return {
            "source": torch.tensor([[*ids, words.end]]),
            "target": torch.tensor([[words.start, *words.encode(target)][:room]]),
        }


def _without_offsets(inputs: Inputs) -> dict[str, Tensor]:
    assert not isinstance(inputs, str)  # of models of Hugging Face alone
    return {name: ids for name, ids in inputs.items() if name != "offset_mapping"}
