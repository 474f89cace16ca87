"""A model of Hugging Face as a model that commands ask."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from headloom.analysis.alignment.words import WordParts, parts_by_offsets
from headloom.analysis.effects.ablation import next_token_loss
from headloom.analysis.effects.prediction import masked_loss, output_change, target_loss
from headloom.api.model import (
    Inputs,
    Measure,
    Pairs,
    Prediction,
    Progress,
    TraceChoices,
    one_token,
)
from headloom.errors import InputError
from headloom.formats.files import JsonMapping
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

    def windows(self, text: str, window: int) -> list[dict[str, Tensor]]:
        """See Model."""
        return split_windows(self.network, self.tokenizer, text, window, None)

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

    def loss(self, text: str | None, target: str | None) -> Measure:
        """See Model; of an encoder that predicts no tokens, the change of its output."""
        if text is None:
            raise InputError("ablate: give the text that the model reads, by --text or --file.")
        inputs = dict(self.tokenizer(text, return_tensors="pt", verbose=False))
        network: Any = self.network
        if self._is_pair:
            if target is None:
                raise InputError("the loss of an encoder-decoder is of its --target. Give one.")
            labels = self.tokenizer(text_target=target, return_tensors="pt", verbose=False)
            loss = target_loss(self.network, inputs, labels["input_ids"])
            return Measure("loss of the target", loss)
        if target is not None:
            kind = self._config.model_type
            raise InputError(f"--target: a {kind} reads one text and has no target. Leave it out.")
        self._drop_unread(inputs)
        tokens = token_names(inputs["input_ids"][0].tolist(), self.tokenizer)
        if self._is_masked:
            loss = masked_loss(network, inputs, self.tokenizer)
            return Measure("loss of masked tokens", loss, tokens)
        if not self._predicts_tokens:
            change = output_change(network, inputs)
            return Measure("change of the output", change, differentiable=False)
        ids = inputs["input_ids"]
        if ids.shape[1] < 2:
            raise InputError("the text has one token; the loss needs two or more. Give more text.")
        return Measure("loss", lambda: next_token_loss(network(**inputs).logits, ids), tokens)

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
            labels: dict[int, str] = {n: str(name) for n, name in self._config.id2label.items()}

            def number(option: str, name: str) -> int:
                if name not in labels.values():
                    known = ", ".join(labels.values())
                    raise InputError(f"{option} {name}: no such label; there are {known}.")
                return next(n for n, label in labels.items() if label == name)

            return Prediction(
                self.network,
                given,
                tokens,
                [],
                number,
                lambda numbers: [labels[n] for n in numbers],
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
        mask = None
        if self._is_masked and position is None:
            if self.tokenizer.mask_token_id not in ids:
                raise InputError(f"put {self.tokenizer.mask_token} where the token is predicted.")
            mask = ids.index(self.tokenizer.mask_token_id)
        return Prediction(
            self.network, given, tokens, read, self._number,
            lambda numbers: token_names(numbers, self.tokenizer), mask,
        )  # fmt: skip

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

    def _drop_unread(self, inputs: dict[str, Any]) -> None:
        """Take out the types of the tokens, where the model does not read them."""
        if "token_type_ids" not in inspect.signature(self.network.forward).parameters:
            inputs.pop("token_type_ids", None)

    def _number(self, option: str, word: str) -> int:
        """The token that the word of an option names; the unknown one where it is asked for."""
        ids = self.tokenizer(word, add_special_tokens=False)["input_ids"]
        unknown = None if word == self.tokenizer.unk_token else self.tokenizer.unk_token_id
        return one_token(f"{option} {word}", ids, unknown)


def _text_pairs(
    model: nn.Module, tokenizer: Any, sources: Sequence[str], targets: Sequence[str]
) -> Pairs:
    """Sources and targets, padded on the right.

    Raises: InputError: a tokenizer that does not know where in a text its tokens stand.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise InputError("align: the tokenizer knows no offsets. Take one with a tokenizer.json.")
    config: Any = model.config
    start = config.decoder_start_token_id
    inputs: dict[str, Tensor] = {}
    words: list[list[WordParts]] = []
    for prefix, option, texts in (("", "text", sources), ("decoder_", "text_target", targets)):
        first = [start] if prefix and start is not None else []
        rows, parts = [], []
        for text in texts:
            encoded = tokenizer(**{option: text}, return_offsets_mapping=True, verbose=False)
            rows.append(torch.tensor([*first, *encoded["input_ids"]]))
            places = [[0, 0] for _ in first] + [list(place) for place in encoded["offset_mapping"]]
            parts.append(parts_by_offsets(text, places))
        pad = torch.nn.utils.rnn.pad_sequence
        inputs[f"{prefix}input_ids"] = pad(rows, True, config.pad_token_id or 0)
        inputs[f"{prefix}attention_mask"] = pad([torch.ones_like(row) for row in rows], True, 0)
        words.append(parts)
    return Pairs(inputs, *words)
