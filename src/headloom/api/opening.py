"""A model of Hugging Face as a model that commands ask; and any model, opened by its name."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from headloom.analysis.alignment.words import WordParts, parts_by_offsets
from headloom.analysis.effects.prediction import masked_loss, next_token_loss, output_change
from headloom.api.model import (
    Inputs,
    Measure,
    Model,
    Pairs,
    Prediction,
    Progress,
    TraceChoices,
    check_text,
    one_token,
)
from headloom.api.run_model import model_of_run
from headloom.errors import InputError
from headloom.formats.files import JsonMapping, in_brief
from headloom.formats.run import is_run
from headloom.formats.trace import TraceData
from headloom.tracing.arguments import token_limit
from headloom.tracing.capture import trace_as
from headloom.tracing.capture import verify as verify_model
from headloom.tracing.model_state import describe
from headloom.tracing.names import token_names
from headloom.tracing.pretrained import load_pretrained, without_output
from headloom.tracing.sources.transformers import transformers
from headloom.training.inference import open_run

if TYPE_CHECKING:
    from PIL.Image import Image


def open_model(
    name: str,
    *,
    predicting: bool = False,
    labelling: bool = False,
    reads_text: bool = True,
    quiet: bool = False,
) -> Model:
    """Open a training run by its folder, or a model of Hugging Face by its folder, file or name.

    Args:
        name: of the folder, of the GGUF file, or of the model.
        predicting, labelling: see `headloom.tracing.pretrained.load_pretrained`.
        reads_text: whether a model of Hugging Face needs its tokenizer.
        quiet: say nothing of quantised weights, as a process beside the one that said it.

    Raises: DataError: no such run or model, or damaged; InputError: Transformers is missing.
    """
    if is_run(name):
        return model_of_run(open_run(name))
    network, tokenizer = load_pretrained(
        name, predicting=predicting, labelling=labelling, text=reads_text
    )
    if not quiet and (bits := describe(network).get("quantization")):
        print(
            f"headloom: {name}: quantised weights, {bits}; they are read as float32",
            file=sys.stderr,
        )
    return PretrainedModel(name, network, tokenizer)


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
        return self._read(text, options.target, generates=options.generate is not None)

    def _read(self, text: str, target: str | None, *, generates: bool = False) -> Inputs:
        """The text itself; of an encoder-decoder its ids and those of the target."""
        kind = self._config.model_type
        if target is not None and (generates or not self._is_pair):
            why = (
                "writes its own, by --generate" if generates else "reads one text and has no target"
            )
            raise InputError(f"--target: a {kind} {why}. Leave it out.")
        if generates or not self._is_pair:
            return text
        if target is None:
            raise InputError(
                f"a {kind} reads a source and writes a target: give its text as --target, or let "
                "the model write it, as with --generate 40."
            )
        start = getattr(self._config, "decoder_start_token_id", None)
        ids = [] if start is None else [start]
        ids += self.tokenizer(text_target=target, verbose=False)["input_ids"]
        source = self.tokenizer(text, return_tensors="pt", verbose=False)
        return {**source, "decoder_input_ids": torch.tensor([ids])}

    def image_inputs(self, picture: Image, text: str | None) -> tuple[PretrainedModel, Inputs]:
        """See Model. An image stands where the text has the image token, else before the text."""
        library, kind = transformers(), self._config.model_type
        takes = inspect.signature(self.network.forward).parameters
        if "pixel_values" not in takes:
            raise InputError(f"a {kind} reads no images (pixel_values). Give it a --text.")
        if ("input_ids" in takes) != (text is not None):
            needs = "reads a text too: give it" if text is None else "reads no text: leave it out"
            raise InputError(f"--text: a {kind} {needs}.")
        names: Any = None
        try:
            with without_output(library):
                if text is not None and getattr(self._config, "image_token_id", None) is not None:
                    names = library.AutoProcessor.from_pretrained(
                        self.name, trust_remote_code=False
                    )
                    token = str(names.image_token)
                    text = text if token in text else token + text
                    inputs = dict(names(images=picture, text=text, return_tensors="pt"))
                    inputs.pop("labels", None)
                else:
                    processor = library.AutoImageProcessor.from_pretrained(
                        self.name, trust_remote_code=False
                    )
                    inputs = dict(processor(picture, return_tensors="pt"))
                    if text is not None:
                        names = library.AutoTokenizer.from_pretrained(
                            self.name, trust_remote_code=False
                        )
                        inputs.update(names(text, return_tensors="pt", verbose=False))
        except Exception as error:
            raise InputError(
                f"{self.name}: no processor that makes inputs of an image ({in_brief(error)}). It "
                "is in preprocessor_config.json; save it beside the model: "
                "processor.save_pretrained(folder)."
            ) from error
        return replace(self, tokenizer=names), inputs

    def pairs(self, sources: Sequence[str], targets: Sequence[str]) -> Pairs:
        """See Model."""
        if not self._is_pair:
            raise InputError(
                f"a {self._config.model_type} reads one text; only an encoder-decoder looks from a "
                "target at its source. Give one, as Marian, BART or T5."
            )
        if not getattr(self.tokenizer, "is_fast", False):
            raise InputError(
                "align: the tokenizer knows no offsets. Take one with a tokenizer.json."
            )
        start = self._config.decoder_start_token_id
        inputs: dict[str, Tensor] = {}
        words: list[list[WordParts]] = []
        for prefix, option, texts in (("", "text", sources), ("decoder_", "text_target", targets)):
            first = [start] if prefix and start is not None else []
            rows, parts = [], []
            for text in texts:
                encoded = self.tokenizer(
                    **{option: text}, return_offsets_mapping=True, verbose=False
                )
                rows.append(torch.tensor([*first, *encoded["input_ids"]]))
                places = [[0, 0] for _ in first] + [list(own) for own in encoded["offset_mapping"]]
                parts.append(parts_by_offsets(text, places))
            pad = torch.nn.utils.rnn.pad_sequence
            inputs[f"{prefix}input_ids"] = pad(rows, True, self._config.pad_token_id or 0)
            inputs[f"{prefix}attention_mask"] = pad([torch.ones_like(row) for row in rows], True, 0)
            words.append(parts)
        return Pairs(inputs, *words)

    def windows(self, text: str, window: int) -> list[dict[str, Tensor]]:
        """See Model. Special tokens and offsets are those of each window."""
        if self._is_pair:
            kind = self._config.model_type
            raise InputError(f"--window: a {kind} writes a target for the whole source.")
        if not getattr(self.tokenizer, "is_fast", False):
            raise InputError(
                "--window needs a tokenizer of the tokenizers library (tokenizer.json)."
            )
        limit = token_limit(self.network)
        special = len(self.tokenizer("", verbose=False)["input_ids"])
        shared = (window - special) // 4
        if window > (limit or window) or window - special - shared < 1:
            raise InputError(
                f"--window {window}: give one of {special + 1} to {limit or 'any'}: "
                f"{type(self.network).__name__} reads no more, and {special} are special tokens."
            )
        check_text(text)
        encoded = self.tokenizer(
            text, truncation=True, max_length=window, stride=shared, verbose=False,
            return_overflowing_tokens=True, return_offsets_mapping=True,
        )  # fmt: skip
        names = [name for name in encoded if name != "overflow_to_sample_mapping"]
        return [
            {name: torch.tensor([encoded[name][number]]) for name in names}
            for number in range(len(encoded["input_ids"]))
        ]

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
        self._read(text, target)  # refuses a target of a model that has none, or the lack of one
        network: Any = self.network
        inputs = dict(self.tokenizer(text, return_tensors="pt", verbose=False))
        if target is not None:
            labels = self.tokenizer(text_target=target, return_tensors="pt", verbose=False)
            inputs.pop("token_type_ids", None)
            read = {**inputs, "labels": labels["input_ids"], "use_cache": False}
            return Measure("loss of the target", lambda: network(**read).loss)
        self._drop_unread(inputs)
        tokens = token_names(inputs["input_ids"][0].tolist(), self.tokenizer)
        if self._is_masked:
            masked = masked_loss(network, inputs, self.tokenizer)
            return Measure("loss of masked tokens", masked, tokens)
        if not self._predicts_tokens:
            change = output_change(network, inputs)
            return Measure("change of the output", change, differentiable=False)
        ids = inputs["input_ids"]
        if ids.shape[1] < 2:
            raise InputError("the text has one token; the loss needs two or more. Give more text.")
        return Measure("loss", lambda: next_token_loss(network(**inputs).logits, ids), tokens)

    def prediction(self, text: str, target: str | None, position: int | None) -> Prediction:
        """See Model."""
        read = self._read(text, target)
        if isinstance(read, str):
            read = self.tokenizer(text, return_tensors="pt", verbose=False)
        given = dict(read)
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
                self.network, given, tokens, [], number,
                lambda numbers: [labels[n] for n in numbers],
            )  # fmt: skip
        if not self._predicts_tokens:
            raise InputError(
                f"{kind} predicts nothing that a token could be relevant for. Give a language "
                "model, or a classifier of whole texts (ForSequenceClassification)."
            )
        after = tokens
        if "decoder_input_ids" in given:
            after = token_names(given["decoder_input_ids"][0].tolist(), self.tokenizer)
        mask = None
        if self._is_masked and position is None:
            if self.tokenizer.mask_token_id not in ids:
                raise InputError(f"put {self.tokenizer.mask_token} where the token is predicted.")
            mask = ids.index(self.tokenizer.mask_token_id)
        return Prediction(
            self.network, given, tokens, after, self._number,
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
