"""A model of Hugging Face as a model that commands ask."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from headloom.analysis.alignment.words import WordParts, parts_by_offsets, parts_by_tokens
from headloom.analysis.effects.ablation import chosen_logit, next_token_loss
from headloom.analysis.effects.prediction import masked_loss, output_change, target_loss
from headloom.api.model import (
    Inputs,
    Measure,
    Pairs,
    Prediction,
    Progress,
    TraceChoices,
    logit_name,
    one_token,
)
from headloom.errors import InputError
from headloom.formats.files import JsonMapping
from headloom.formats.history import History
from headloom.formats.trace import TraceData
from headloom.tracing.capture import trace_as
from headloom.tracing.capture import verify as verify_model
from headloom.tracing.names import token_names
from headloom.tracing.pretrained import image_inputs, split_windows, text_inputs

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["PretrainedModel"]


@dataclass(frozen=True, eq=False)
class PretrainedModel:
    """A model of Transformers, as `headloom.api.model.Model`.

    name: its folder, or its name on the hub; tokenizer: None where it only sees images.
    """

    name: str
    network: nn.Module
    tokenizer: Any

    def unknown_parts(self, text: str) -> Sequence[str]:
        """None: what its tokenizer lacks, the tokens of a trace show."""
        return ()

    def history(self) -> History:
        """Raises an InputError: a model of Hugging Face has no snapshots."""
        raise InputError(
            f"{self.name}: --history needs a training run. Give a run's folder, or leave it out."
        )

    def inputs(self, text: str, options: TraceChoices) -> Inputs:
        """See Model."""
        generates = options.generate is not None
        return text_inputs(self.network, self.tokenizer, text, options.target, generates)

    def image_inputs(self, picture: Image, text: str | None) -> tuple[PretrainedModel, Inputs]:
        """See Model."""
        inputs, tokenizer = image_inputs(self.name, self.network, picture, text)
        return replace(self, tokenizer=tokenizer), inputs

    def pairs(self, sources: Sequence[str], targets: Sequence[str]) -> Pairs:
        """See Model."""
        if not self._is_pair:
            raise InputError(
                f"a {self._config.model_type} reads one text; only an encoder-decoder looks from a "
                "target at its source. Give one, as Marian, BART or T5."
            )
        return _text_pairs(self.network, self.tokenizer, sources, targets)

    def windows(self, text: str, window: int, overlap: int | None) -> list[dict[str, Any]]:
        """See Model."""
        return split_windows(self.network, self.tokenizer, text, window, overlap)

    def verify(self, inputs: Inputs, options: TraceChoices) -> None:
        """See Model."""
        generates = options.generate is not None
        verify_model(self.network, inputs, options.as_asked(self.tokenizer), generates=generates)

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
        traced = trace_as(
            self.network,
            inputs,
            options.as_asked(self.tokenizer, output),
            options.generate,
            verification=verification,
            about=description,
            progress=progress or (lambda path, number, expected: None),
        )
        return cast(TraceData, traced)

    def loss(self, text: str | None, target: str | None, tokens: int) -> Measure:
        """See Model; of an encoder that predicts no tokens, the change of its output."""
        text = self._required(text)
        inputs = dict(self.tokenizer(text, return_tensors="pt", verbose=False))
        network: Any = self.network
        if self._is_pair:
            if target is None:
                raise InputError(
                    "an encoder-decoder is measured by its loss. Give a --target, and no --logit."
                )
            labels = self.tokenizer(text_target=target, return_tensors="pt", verbose=False)
            loss = target_loss(self.network, inputs, labels["input_ids"])
            return Measure("loss of the target", loss)
        self._refuse_target(target)
        self._drop_unread(inputs)
        if self._is_masked:
            loss = masked_loss(network, inputs, self.tokenizer)
            return Measure("loss of masked tokens", loss, self._names(inputs))
        if not self._predicts_tokens:
            change = output_change(network, inputs)
            return Measure("change of the output", change, differentiable=False)
        ids = inputs["input_ids"]
        if ids.shape[1] < 2:
            raise InputError("the text has one token; the loss needs two or more. Give more text.")
        return Measure(
            "loss", lambda: next_token_loss(network(**inputs).logits, ids), self._names(inputs)
        )

    def logit_of(
        self, word: str, against: str | None, text: str | None, target: str | None
    ) -> Measure:
        """See Model."""
        text = self._required(text)
        if self._is_pair:
            raise InputError(
                "an encoder-decoder is measured by its loss. Give a --target, and no --logit."
            )
        self._refuse_target(target)
        if not self._predicts_tokens:
            raise InputError(
                f"--logit: {type(self.network).__name__} predicts no tokens. Leave it out."
            )
        inputs = dict(self.tokenizer(text, return_tensors="pt", verbose=False))
        self._drop_unread(inputs)
        ids = inputs["input_ids"][0].tolist()
        position = self._masked_place("--logit", ids) if self._is_masked else -1
        token = self._number("--logit", word)
        minus = None if against is None else self._number("--against", against)

        def run() -> Tensor:
            logits = self.network(**inputs).logits
            return chosen_logit(logits, token, minus=minus, position=position)

        return Measure(logit_name(word, against), run, self._names(inputs))

    def prediction(self, text: str, target: str | None, position: int | None) -> Prediction:
        """See Model."""
        given = text_inputs(self.network, self.tokenizer, text, target)
        if isinstance(given, str):
            given = dict(self.tokenizer(text, return_tensors="pt", verbose=False))
        self._drop_unread(given)
        ids = given["input_ids"][0].tolist()
        if not ids:
            raise InputError("the text is empty; give at least one token.")
        tokens = token_names(ids, self.tokenizer)
        kind = type(self.network).__name__
        if kind.endswith("ForSequenceClassification"):
            labels = self._config.id2label
            return Prediction(
                self.network, given, tokens, [], self._label, lambda n: [labels[i] for i in n]
            )
        if not self._predicts_tokens:
            saved = ", ".join(self._config.architectures or [])
            read_as = f"{saved}, read as {kind}," if saved and saved != kind else kind
            raise InputError(
                f"{read_as} predicts nothing that a token could be relevant for. Give a language "
                "model, or a classifier of whole texts (ForSequenceClassification)."
            )
        read = tokens
        if "decoder_input_ids" in given:
            read = token_names(given["decoder_input_ids"][0].tolist(), self.tokenizer)
        masked = self._is_masked and position is None
        return Prediction(
            self.network,
            given,
            tokens,
            read,
            self._number,
            lambda numbers: token_names(numbers, self.tokenizer),
            self._masked_place("relevance", ids) if masked else None,
        )

    def _names(self, inputs: Mapping[str, Any]) -> Sequence[str]:
        """The tokens of one input."""
        return token_names(inputs["input_ids"][0].tolist(), self.tokenizer)

    @property
    def _config(self) -> Any:
        return self.network.config

    @property
    def _is_pair(self) -> bool:
        """Whether it reads a source and writes a target."""
        return bool(getattr(self._config, "is_encoder_decoder", False))

    @property
    def _is_masked(self) -> bool:
        return type(self.network).__name__.endswith("MaskedLM")

    @property
    def _predicts_tokens(self) -> bool:
        network: Any = self.network
        return network.get_output_embeddings() is not None

    def _required(self, text: str | None) -> str:
        if text is None:
            raise InputError("ablate: give the text that the model reads, by --text or --file.")
        return text

    def _refuse_target(self, target: str | None) -> None:
        if target is not None:
            kind = self._config.model_type
            raise InputError(f"--target: a {kind} reads one text and has no target. Leave it out.")

    def _drop_unread(self, inputs: dict[str, Any]) -> None:
        """Take out the types of the tokens, where the model does not read them."""
        if "token_type_ids" not in inspect.signature(self.network.forward).parameters:
            inputs.pop("token_type_ids", None)

    def _number(self, option: str, word: str) -> int:
        """The token that the word of an option names; the unknown one where it is asked for."""
        ids = self.tokenizer(word, add_special_tokens=False)["input_ids"]
        unknown = None if word == self.tokenizer.unk_token else self.tokenizer.unk_token_id
        return one_token(f"{option} {word}", ids, unknown)

    def _label(self, option: str, name: str) -> int:
        """The number of a label of a classifier."""
        labels: dict[str, int] = {
            str(label): number for number, label in self._config.id2label.items()
        }
        if name not in labels:
            raise InputError(f"{option} {name}: no such label; there are {', '.join(labels)}.")
        return labels[name]

    def _masked_place(self, option: str, ids: list[int]) -> int:
        """The position of the first mask of a text."""
        if self.tokenizer.mask_token_id not in ids:
            raise InputError(
                f"{option}: put {self.tokenizer.mask_token} where the token is predicted."
            )
        return ids.index(self.tokenizer.mask_token_id)


def _text_pairs(
    model: nn.Module, tokenizer: Any, sources: Sequence[str], targets: Sequence[str]
) -> Pairs:
    """Sources and targets, padded on the right.

    Raises: InputError: tokens that cannot be joined to the words of a text.
    """
    config: Any = model.config
    start = config.decoder_start_token_id
    first = [] if start is None else [start]
    source = [_encoded(tokenizer, text, []) for text in sources]
    target = [_encoded(tokenizer, text, first, as_target=True) for text in targets]
    inputs: dict[str, Tensor] = {}
    filler = config.pad_token_id or 0
    for prefix, sides in (("", source), ("decoder_", target)):
        rows = [torch.tensor(ids) for ids, _ in sides]
        pad = torch.nn.utils.rnn.pad_sequence
        inputs[f"{prefix}input_ids"] = pad(rows, True, filler)
        inputs[f"{prefix}attention_mask"] = pad([torch.ones_like(row) for row in rows], True, 0)
    return Pairs(inputs, [parts for _, parts in source], [parts for _, parts in target])


def _encoded(
    tokenizer: Any, text: str, first: list[int], as_target: bool = False
) -> tuple[list[int], WordParts]:
    """The ids of a text, and its words."""
    fast = bool(getattr(tokenizer, "is_fast", False))
    given = {"text_target" if as_target else "text": text}
    encoded = tokenizer(**given, return_offsets_mapping=fast, verbose=False)
    ids = [*first, *encoded["input_ids"]]
    if fast:
        offsets = [*([[0, 0]] * len(first)), *map(list, encoded["offset_mapping"])]
        return ids, parts_by_offsets(text, offsets)
    special = set(tokenizer.all_special_ids) | set(first)
    parts = parts_by_tokens(token_names(ids, tokenizer), [number in special for number in ids])
    words = text.split()
    if len(parts.words) != len(words):
        raise InputError(
            f"align: the tokens of {text[:60]!r} make {len(parts.words)} words, and it has "
            f"{len(words)} between spaces. Use a tokenizer that knows its offsets (tokenizer.json)."
        )
    return ids, WordParts(words, parts.share)
