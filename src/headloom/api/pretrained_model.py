"""Model of Hugging Face Transformers with its tokenizer."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from headloom.analysis.alignment.words import WordParts, parts_by_offsets
from headloom.analysis.effects.prediction import masked_loss, next_token_loss, output_change
from headloom.api.model import Model
from headloom.api.questions import (
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
from headloom.errors import InputError
from headloom.formats.files import JsonObject, in_brief
from headloom.tracing.arguments import Tokenizer
from headloom.tracing.huggingface import token_limit
from headloom.tracing.model_state import evaluation_mode
from headloom.tracing.names import token_names
from headloom.tracing.pretrained import find_tokenizer, without_output
from headloom.tracing.sources.transformers import transformers
from headloom.training.inference import Classification
from headloom.training.user_data import user_columns

if TYPE_CHECKING:
    from PIL.Image import Image


#: Texts per batch of a translation, and the maximum of tokens of each.
_BATCH, _TRANSLATION = 32, 256


class PretrainedModel(Model):
    """Model of Transformers and its tokenizer, by default that of its `name_or_path`."""

    @property
    def tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            self._tokenizer = find_tokenizer(self._config)
        return self._tokenizer

    @property
    def _words(self) -> Tokenizer:
        """Tokenizer. Raises: InputError: there is none."""
        if self.tokenizer is None:
            raise InputError(
                f"{self.name}: this model has no tokenizer. Give one: headloom.load(model, "
                "tokenizer=...); models of images alone have none."
            )
        return self.tokenizer

    @property
    def _body(self) -> nn.Module:
        return cast(nn.Module, self._network if self._whole else self._network.base_model)

    def _inputs(self, text: str, target: str | None = None, *, generates: bool = False) -> Inputs:
        """Return the text itself; of an encoder-decoder the ids of text and target."""
        kind = self._config.model_type
        if target is not None and (generates or not self._is_pair):
            why = "generates its target" if generates else "reads one text and has no target"
            raise InputError(f"target: a {kind} {why}. Leave target out.")
        if generates or not self._is_pair:
            return text
        if target is None:
            raise InputError(
                f"a {kind} reads a source and writes a target: give the target's text, or let the "
                "model write it, such as with generate 40."
            )
        start = getattr(self._config, "decoder_start_token_id", None)
        ids = [] if start is None else [start]
        ids += self._words(text_target=target, verbose=False)["input_ids"]
        source = self._words(text, return_tensors="pt", verbose=False)
        return {**source, "decoder_input_ids": torch.tensor([ids])}

    def _image_inputs(self, picture: Image, text: str | None) -> tuple[PretrainedModel, Inputs]:
        """Return inputs with the image at the text's image token, else before the text."""
        library, kind = transformers(), self._config.model_type
        takes = inspect.signature(self.module.forward).parameters
        if "pixel_values" not in takes:
            raise InputError(f"a {kind} reads no images (pixel_values). Give it a text.")
        if ("input_ids" in takes) != (text is not None):
            needs = "reads a text too: give it" if text is None else "reads no text: leave it out"
            raise InputError(f"text: a {kind} {needs}.")
        names: Any = None

        def processor(kind: str) -> Any:
            return getattr(library, kind).from_pretrained(self.name, trust_remote_code=False)

        try:
            with without_output(library):
                if text is not None and getattr(self._config, "image_token_id", None) is not None:
                    names = processor("AutoProcessor")
                    token = str(names.image_token)
                    text = text if token in text else token + text
                    inputs = dict(names(images=picture, text=text, return_tensors="pt"))
                    inputs.pop("labels", None)
                else:
                    inputs = dict(processor("AutoImageProcessor")(picture, return_tensors="pt"))
                    if text is not None:
                        names = processor("AutoTokenizer")
                        inputs.update(names(text, return_tensors="pt", verbose=False))
        except Exception as error:
            raise InputError(
                f"{self.name}: no image processor ({in_brief(error)}). Save it in the model's "
                "folder, as preprocessor_config.json: processor.save_pretrained(folder)."
            ) from error
        return PretrainedModel(self.name, self.module, names), inputs

    def _pairs(self, sources: Sequence[str], targets: Sequence[str]) -> Pairs:
        if not self._is_pair:
            raise InputError(
                f"a {self._config.model_type} reads one text; only an encoder-decoder attends from "
                "a target to its source. Use one, such as Marian, BART or T5."
            )
        if not getattr(self._words, "is_fast", False):
            raise InputError("align: the tokenizer has no offsets. Use one with a tokenizer.json.")
        start = self._config.decoder_start_token_id
        inputs: dict[str, Tensor] = {}
        words: list[list[WordParts]] = []
        for prefix, option, texts in (("", "text", sources), ("decoder_", "text_target", targets)):
            first = [start] if prefix and start is not None else []
            rows, parts = [], []
            for text in texts:
                encoded = self._words(**{option: text}, return_offsets_mapping=True, verbose=False)
                rows.append(torch.tensor([*first, *encoded["input_ids"]]))
                places = [[0, 0] for _ in first] + [
                    list(span) for span in encoded["offset_mapping"]
                ]
                parts.append(parts_by_offsets(text, places))
            pad = torch.nn.utils.rnn.pad_sequence
            inputs[f"{prefix}input_ids"] = pad(rows, True, self._config.pad_token_id or 0)
            inputs[f"{prefix}attention_mask"] = pad([torch.ones_like(row) for row in rows], True, 0)
            words.append(parts)
        return Pairs(inputs, *words)

    def _windows(self, text: str, window: int) -> list[dict[str, Tensor]]:
        """Return the windows of a text, each with its own special tokens and offsets."""
        if self._is_pair:
            kind = self._config.model_type
            raise InputError(f"window: a {kind} writes a target for the whole source.")
        if not getattr(self._words, "is_fast", False):
            raise InputError("window needs a tokenizer of the tokenizers library (tokenizer.json).")
        limit = token_limit(self.module)
        special = len(self._words("", verbose=False)["input_ids"])
        shared = (window - special) // 4
        if window > (limit or window) or window - special - shared < 1:
            raise InputError(
                f"window {window}: expected {special + 1} to {limit or 'any'}, the limit of "
                f"{type(self.module).__name__}; {special} are special tokens."
            )
        check_text(text)
        encoded = self._words(
            text, truncation=True, max_length=window, stride=shared, verbose=False,
            return_overflowing_tokens=True, return_offsets_mapping=True,
        )  # fmt: skip
        names = [name for name in encoded if name != "overflow_to_sample_mapping"]
        return [
            {name: torch.tensor([encoded[name][number]]) for name in names}
            for number in range(len(encoded["input_ids"]))
        ]

    def _loss(self, text: object, target: str | None) -> Measure:
        """Return the loss on a text; of an encoder alone, the change of its output."""
        if text is None:
            raise InputError("ablate: text is missing. Give the model's input.")
        if not isinstance(text, str):
            (texts,) = user_columns(text, {"text": None})
            losses = [self._loss(text, target) for text in texts]
            return Measure(
                losses[0].name, lambda: torch.stack([loss.run() for loss in losses]).mean(),
                differentiable=losses[0].differentiable,
            )  # fmt: skip
        self._inputs(text, target)  # checks whether a target fits
        network = self._network
        inputs = dict(self._words(text, return_tensors="pt", verbose=False))
        if target is not None:
            labels = self._words(text_target=target, return_tensors="pt", verbose=False)
            inputs.pop("token_type_ids", None)
            read = {**inputs, "labels": labels["input_ids"], "use_cache": False}
            return Measure("loss of the target", lambda: network(**read).loss)
        self._drop_unread(inputs)
        tokens = token_names(inputs["input_ids"][0].tolist(), self._words)
        if self._is_masked:
            masked = masked_loss(network, inputs, self._words)
            return Measure("loss of masked tokens", masked, tokens)
        if not self._predicts_tokens:
            change = output_change(self._body, inputs)
            return Measure("change of the output", change, differentiable=False)
        ids = inputs["input_ids"]
        if ids.shape[1] < 2:
            raise InputError("the text has one token; the loss needs two or more. Give more text.")
        return Measure("loss", lambda: next_token_loss(network(**inputs).logits, ids), tokens)

    def _prediction(self, text: str, target: str | None, position: int | None) -> Prediction:
        read = self._inputs(text, target)
        if isinstance(read, str):
            read = self._words(text, return_tensors="pt", verbose=False)
        inputs = dict(read)
        self._drop_unread(inputs)
        ids = inputs["input_ids"][0].tolist()
        if not ids:
            raise InputError("the text is empty; give at least one token.")
        tokens = token_names(ids, self._words)
        if self._classifies:
            labels = [str(name) for _, name in sorted(self._config.id2label.items())]
            return Prediction(
                self.module, inputs, tokens, [], partial(one_label, labels),
                lambda numbers: [labels[n] for n in numbers],
            )  # fmt: skip
        if not self._predicts_tokens:
            raise InputError(
                f"{type(self.module).__name__} makes no predictions. Use a language model, or a "
                "classifier of whole texts (ForSequenceClassification)."
            )
        after = tokens
        if "decoder_input_ids" in inputs:
            after = token_names(inputs["decoder_input_ids"][0].tolist(), self._words)
        mask = None
        if self._is_masked and position is None:
            if self._words.mask_token_id not in ids:
                raise InputError(f"put {self._words.mask_token} where the token is predicted.")
            mask = ids.index(self._words.mask_token_id)
        return Prediction(
            self.module, inputs, tokens, after, self._number,
            lambda numbers: token_names(numbers, self._words), mask,
        )  # fmt: skip

    @property
    def _predicts(self) -> Kind | None:
        if self._classifies:
            return "label"
        if self._is_masked or not self._predicts_tokens:
            return None
        return "translation" if self._is_pair else "text"

    def _generate(
        self, texts: Sequence[str], options: PredictOptions, limit: int, **settings: object
    ) -> tuple[Tensor, Tensor]:
        """Return the ids of texts, and the output of the model's own `generate`."""
        module = self._network
        batch = self._words(list(texts), return_tensors="pt", padding=len(texts) > 1, verbose=False)
        inputs = {name: value.to(module.device) for name, value in batch.items()}
        self._drop_unread(inputs)
        room = token_limit(module)
        if room is not None and not self._is_pair and inputs["input_ids"].shape[1] + limit > room:
            raise InputError(
                f"a prompt of {inputs['input_ids'].shape[1]:,} tokens and {limit:,} more: "
                f"{self.name} reads {room:,}. Give a shorter prompt, or fewer new tokens."
            )
        devices = [module.device] if module.device.type == "cuda" else []
        with (
            evaluation_mode(module), torch.no_grad(), without_output(transformers()),
            torch.random.fork_rng(devices),
        ):  # fmt: skip
            torch.manual_seed(options.seed)
            written: Tensor = module.generate(**inputs, max_new_tokens=limit, **settings)
        return inputs["input_ids"], written

    def _continuation(self, prompt: str, options: PredictOptions) -> str:
        settings: JsonObject = {"do_sample": False}
        if options.temperature:
            settings = {"do_sample": True, "temperature": options.temperature,
                   "top_k": options.top_k or 0, "top_p": options.top_p or 1.0}  # fmt: skip
        ids, written = self._generate([prompt], options, options.max_new_tokens, **settings)
        # Decoded whole: some tokenizers drop the first space of a part.
        before, whole = (self._words.decode(i[0], skip_special_tokens=True) for i in (ids, written))
        return str(whole[len(before) :])

    def _translations(
        self, lines: Iterator[str], options: PredictOptions, described: bool
    ) -> Iterator[JsonObject]:
        settings: JsonObject = {"num_beams": options.beam, "num_return_sequences": options.n_best}
        if options.length_penalty is not None:
            settings["length_penalty"] = options.length_penalty
        limit = min(_TRANSLATION, (token_limit(self.module) or _TRANSLATION + 1) - 1)
        while window := list(islice(lines, _BATCH)):
            full = [line for line in window if line.strip()]
            texts: Iterator[str] = iter(())
            if full:
                _, written = self._generate(full, options, limit, do_sample=False, **settings)
                texts = iter(self._words.batch_decode(written, skip_special_tokens=True))
            for line in window:
                best = list(islice(texts, options.n_best)) if line.strip() else []
                yield {"source": line, "hypotheses": [{"text": text} for text in best]}

    @torch.no_grad()
    def _classes(self, texts: Sequence[str]) -> list[Classification]:
        module = self._network
        results: list[Classification] = []
        for text in texts:
            if not text.strip():
                results.append(Classification({}))
                continue
            batch = self._words(text, return_tensors="pt", truncation=True, verbose=False)
            self._drop_unread(inputs := {n: ids.to(module.device) for n, ids in batch.items()})
            with evaluation_mode(module):
                shares = module(**inputs).logits[0].double().softmax(-1)
            order = shares.argsort(descending=True, stable=True).tolist()
            names = self._config.id2label
            results.append(Classification({str(names[n]): float(shares[n]) for n in order}))
        return results

    @property
    def _network(self) -> Any:
        return self.module

    @property
    def _config(self) -> Any:
        return self._network.config

    @property
    def _is_pair(self) -> bool:
        """Whether the model is an encoder-decoder."""
        return bool(getattr(self._config, "is_encoder_decoder", False))

    @property
    def _classifies(self) -> bool:
        return type(self.module).__name__.endswith("ForSequenceClassification")

    @property
    def _is_masked(self) -> bool:
        return type(self.module).__name__.endswith("MaskedLM")

    @property
    def _predicts_tokens(self) -> bool:
        return self._network.get_output_embeddings() is not None

    def _drop_unread(self, inputs: JsonObject) -> None:
        """Remove token types where the model does not read them."""
        if "token_type_ids" not in inspect.signature(self.module.forward).parameters:
            inputs.pop("token_type_ids", None)

    def _number(self, option: str, word: str) -> int:
        """Return the token of an option's word; the unknown token only where requested."""
        ids = self._words(word, add_special_tokens=False)["input_ids"]
        unknown = None if word == self._words.unk_token else self._words.unk_token_id
        return one_token(f"{option} {word}", ids, unknown)
