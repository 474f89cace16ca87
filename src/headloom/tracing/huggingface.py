"""Reader of models of Hugging Face's Transformers: inputs, and options of generation."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headloom.errors import InputError
from headloom.mechanism.shapes import whole_number
from headloom.tracing.arguments import BESIDE, Arguments, Inputs, Tokenizer, batch_of, prefix_of
from headloom.tracing.model_state import unwrapped
from headloom.tracing.readers import HeadloomReader, ModuleReader, Reader
from headloom.tracing.recording.layer_call import LayerCall
from headloom.tracing.recording.sequences import NamesOfSequences, Sequences, on_device_of
from headloom.tracing.sources.functions import Functions
from headloom.tracing.sources.transformers import (
    is_transformers_model,
    routes,
    transformers,
    without_peft,
)


class TransformersReader(Reader):
    """Reader of a model of Transformers.

    offsets: start and end of each input token in the text; None: unknown.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.config: Any = model.config
        self.offsets: list[list[int]] | None = None

    @property
    def is_pair(self) -> bool:
        """Whether the model is an encoder-decoder."""
        return bool(getattr(self.config, "is_encoder_decoder", False))

    def arguments(self, inputs: object, tokenizer: Tokenizer, generates: bool) -> Arguments:
        """Return the inputs by name: a text, ids, or the output of the tokenizer or processor."""
        if isinstance(inputs, str):
            if tokenizer is None:
                raise InputError(
                    "trace: the input is a text, and there is no tokenizer. Give tokenizer=, or "
                    "ids."
                )
            fast = bool(getattr(tokenizer, "is_fast", False))
            # Not verbose: a text that is too long is refused below.
            inputs = tokenizer(
                inputs, return_tensors="pt", return_offsets_mapping=fast, verbose=False
            )
        if isinstance(inputs, Tensor):
            inputs = {getattr(self.model, "main_input_name", "input_ids"): inputs}
        if not isinstance(inputs, Mapping):
            raise InputError(
                f"trace: the inputs are {type(inputs).__name__}; expected a text, a tensor of "
                "token ids, or a dict with a tensor for each argument of the model. For several "
                'texts, give tokenizer(texts, padding=True, return_tensors="pt").'
            )
        inputs = dict(inputs)
        if "offset_mapping" in inputs:
            self.offsets = [list(pair) for pair in inputs.pop("offset_mapping")[0].tolist()]
        arguments = on_device_of(self.model, inputs)
        takes = inspect.signature(self.model.forward).parameters
        if "token_type_ids" not in takes:
            arguments.pop("token_type_ids", None)
        if "use_cache" in takes or any(p.kind is p.VAR_KEYWORD for p in takes.values()):
            arguments.setdefault("use_cache", False)
        self._check(arguments, takes, generates)
        return arguments

    def _check(self, arguments: Inputs, takes: Collection[str], generates: bool) -> None:
        """Raise an InputError for inputs that the model cannot read."""
        tensors = {name: value for name, value in arguments.items() if isinstance(value, Tensor)}
        if not tensors:
            raise InputError(
                "trace: the inputs hold no tensor; expected input_ids, pixel_values or "
                'input_features, as in tokenizer(text, return_tensors="pt").'
            )
        targets = {"decoder_input_ids", "decoder_inputs_embeds", "labels"}
        pair = self.is_pair and "decoder_input_ids" in takes
        if pair and not generates and not targets & tensors.keys():
            raise InputError(
                f"trace: {self.name} reads a source and writes a target. Give "
                "decoder_input_ids too: the target's tokens, as in {'input_ids': ..., "
                "'decoder_input_ids': ...}, or generate= to let the model write it."
            )
        # With a cache, or beside images, a mask may have more places than there are ids.
        alone = not any(argument.startswith((*BESIDE, "past")) for argument in tensors)
        limit = token_limit(self.model)
        for name in ("input_ids", "decoder_input_ids"):
            ids, mask_name = tensors.get(name), name.replace("input_ids", "attention_mask")
            mask = tensors.get(mask_name)
            if ids is not None and mask is not None and ids.ndim == mask.ndim == 2:
                other = len(mask) != len(ids) or (alone and mask.shape[1] != ids.shape[1])
                if other or not bool(mask.bool().any(1).all()):
                    raise InputError(
                        f"trace: {mask_name} has the shape {tuple(mask.shape)}, {name} "
                        f"{tuple(ids.shape)}. Give a 1 for each token and a 0 for padding; every "
                        "input needs at least one token."
                    )
            if ids is not None and (ids.ndim != 2 or not ids.shape[1]):
                raise InputError(
                    f"trace: {name} has the shape {tuple(ids.shape)}; expected (batch, length) "
                    "with at least one token."
                )
            if ids is not None and limit is not None and ids.shape[1] > limit:
                raise InputError(
                    f"trace: {ids.shape[1]} tokens in {name}; {self.name} reads "
                    f"{limit} at most. Shorten the text, or split it (headloom trace --window)."
                )

    def called(self, args: tuple[object, ...], keywords: Inputs) -> Arguments:
        arguments = dict(keywords)
        if args and isinstance(args[0], Tensor):
            arguments.setdefault(getattr(self.model, "main_input_name", "input_ids"), args[0])
        return arguments

    def prefix(self, arguments: Inputs, tokens: int | None) -> tuple[Arguments, int]:
        return prefix_of(arguments, tokens)

    def names(
        self, arguments: Inputs, tokenizer: Tokenizer, calls: Sequence[LayerCall] | None,
        prompt: int | None = None,
    ) -> tuple[NamesOfSequences, int]:  # fmt: skip
        """Return the names. prompt: number of prompt tokens; the ones after it were generated."""
        names = Sequences(self.model, arguments, tokenizer, self.offsets, prompt)
        return names, batch_of(arguments)

    def nothing(self, functions: Functions) -> str:
        name = self.name
        if not functions.named and not functions.computed:
            return (
                f"no attention ran in {name}: no module has the class of an attention layer or "
                "multiplies values by a softmax. There is nothing to trace."
            )
        if functions.refused:
            return functions.nothing_recorded()
        current = getattr(self.config, "_attn_implementation", None)
        remedy = "docs/tracing.md lists models that can be traced."
        if current != "sdpa" and getattr(self.model, "_supports_sdpa", False):
            remedy = 'Load it with attn_implementation="sdpa": torch\'s own function can be traced.'
        return (
            f"{name} neither uses the attention interface of Transformers "
            f"{transformers().__version__} nor returns its attention weights. {remedy}"
        )

    @property
    def expected(self) -> int | None:
        """Number of attention layers by the model's configuration; None: unknown."""
        config = self.config
        if self.is_pair:
            encoder = getattr(config, "encoder_layers", None) or getattr(config, "num_layers", None)
            decoder = getattr(config, "decoder_layers", None)
            decoder = decoder or getattr(config, "num_decoder_layers", None) or encoder
            return encoder + 2 * decoder if encoder and decoder else None
        layers = getattr(config, "num_hidden_layers", None)
        return layers if isinstance(layers, int) else None

    def generation(self, arguments: Arguments, generate: int | Inputs) -> Arguments:
        """Return the options of the model's `generate`, so that it reads every requested token."""
        name = self.name
        requested = generate if isinstance(generate, Mapping) else {"max_new_tokens": generate}
        if "max_length" in requested:
            raise InputError(
                "trace: generate has max_length, which counts the prompt too. Give "
                "max_new_tokens, the number of tokens to generate."
            )
        options = {"do_sample": False, "num_beams": 1, "max_new_tokens": 20, **requested}
        new = whole_number("trace", "generate", options["max_new_tokens"], 1)
        if not hasattr(self.model, "generate"):
            raise InputError(
                f"trace: {name} does not generate. Load the model with its head, for example by "
                "AutoModelForCausalLM, or leave generate= out."
            )
        if not routes(self.model):
            raise InputError(
                f"trace: {name} does not use the attention interface of Transformers, so its "
                "generation cannot be traced. Leave generate= out, and trace the text that "
                "model.generate wrote."
            )
        ids = arguments.get("decoder_input_ids" if self.is_pair else "input_ids")
        before = 1 if ids is None else ids.shape[1]
        limit = token_limit(self.model)
        if limit is not None and before + new > limit:
            raise InputError(
                f"trace: {before} tokens and {new} to generate; {name} reads {limit} at most. "
                "Shorten the text, or generate fewer."
            )
        arguments.pop("use_cache", None)
        if options["num_beams"] != 1:
            raise InputError(
                "trace: a beam search reorders its rows between passes and cannot be traced. Trace "
                "the text that model.generate wrote."
            )
        # One more than requested: the last generated token is not read, and has no row.
        return {**options, "use_cache": True, "max_new_tokens": new + 1}

    def as_prompt(self, arguments: Inputs) -> Arguments:
        """Return the arguments of the first pass of generation."""
        prompt = {**arguments, "use_cache": False}
        targets = ("decoder_input_ids", "decoder_inputs_embeds")
        if self.is_pair and not any(name in prompt for name in targets):
            start = getattr(self.config, "decoder_start_token_id", None)
            start = getattr(self.config, "bos_token_id", None) if start is None else start
            batch = next(value for value in arguments.values() if isinstance(value, Tensor))
            prompt["decoder_input_ids"] = batch.new_full((len(batch), 1), start or 0).long()
        return prompt


def reader_of(model: object, operation: str) -> Reader:
    """Return the reader of a model, without its wrappers.

    Raises: InputError: not a model, compiled by torch.jit, or on the meta device.
    """
    inner = without_peft(unwrapped(model, operation))
    of_transformers, name = is_transformers_model(inner), type(inner).__name__
    if any(parameter.is_meta for parameter in inner.parameters()):
        raise InputError(
            f"{operation}: {name} is on the meta device, where tensors have no "
            "data. Load its weights: from_pretrained without device_map='meta'."
        )
    for path, module in inner.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise InputError(
                f"{operation}: {path or 'the model'} is compiled by torch.jit and cannot be "
                f"traced. Give {name} as it was before torch.jit.script or trace."
            )
    if of_transformers:
        return TransformersReader(inner)
    return HeadloomReader(inner) if HeadloomReader.reads(inner) else ModuleReader(inner)


def token_limit(model: nn.Module) -> int | None:
    """Return the maximal number of tokens of a model; None: no known limit."""
    config: Any = model.config
    config = getattr(config, "text_config", None) or config
    limit: int | None = getattr(config, "max_position_embeddings", None)
    for name, module in model.named_modules():
        learned = name.rpartition(".")[2] in ("position_embeddings", "embed_positions", "wpe")
        if learned and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            # RoBERTa counts positions from the one after padding.
            limit = min(limit or module.num_embeddings, module.num_embeddings) - (
                module.padding_idx + 1
            )
            break
    return limit if isinstance(limit, int) and limit > 0 else None
