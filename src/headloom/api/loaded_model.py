"""A folder of Transformers as one of headloom's own models, with its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from headloom.errors import DataError, InputError
from headloom.models.decoding import WithoutTokens, beam_hypotheses, sample
from headloom.models.huggingface.conversion import load_transformers
from headloom.models.huggingface.folder import Settings, named_tokens, read_tokenizer
from headloom.models.language_model import LanguageModel
from headloom.models.predictor import Predictor
from headloom.models.transformer import Transformer

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """One of headloom's models with the weights of a folder.

    folder: where they came from.
    model: a `torch.nn.Module` of headloom's attention layers, in evaluation mode: it can be called,
        traced by `headloom.trace`, watched, trained.
    start: the id that a translation begins with; ends: the ids that end a text; padding: the id
        that fills short sequences.
    """

    folder: Path
    model: Predictor
    start: int | None
    ends: tuple[int, ...]
    padding: int | None

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Read from tokenizer.json when first asked for. Raises: DataError: missing or damaged."""
        return read_tokenizer(self.folder)

    def encode(self, text: str) -> Tensor:
        """The ids of a text as the model reads it, (1, positions)."""
        return torch.tensor([self.tokenizer.encode(text).ids], dtype=torch.long)

    def generate(
        self, prompt: str, *, length: int, temperature: float = 0.8, top: int | None = None,
        top_p: float | None = None, seed: int = 1,
    ) -> str:  # fmt: skip
        """What a language model writes after a prompt.

        Args:
            prompt: at least one token.
            length: tokens to draw, at most.
            temperature, top, top_p: see `headloom.models.decoding.sample`; temperature 0: the
                likeliest.
            seed: of the random numbers.

        Raises: InputError: the model continues no text.
        """
        if not isinstance(self.model, LanguageModel):
            raise InputError(
                f"{self.folder}: this model {self.model.purpose}; give a GPT-2 or Llama."
            )
        end = self.ends[0] if len(self.ends) == 1 else None
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            drawn = sample(
                self.model, self.model.start(), self.encode(prompt), length=length, top=top,
                temperature=temperature, top_p=top_p, end=end, generator=generator,
            )  # fmt: skip
        return self._text(drawn[0].tolist())

    def translate(
        self, lines: Sequence[str], *, beam: int = 1, length_penalty: float = 1.0,
        max_length: int = 256,
    ) -> list[str]:  # fmt: skip
        """The translations of some lines.

        Args:
            lines: of the source language.
            beam: hypotheses kept at every step; 1: greedy.
            length_penalty: see `headloom.models.decoding.beam_hypotheses`.
            max_length: tokens after which a translation is cut.

        Raises: InputError: the model is no translator.
        """
        if not isinstance(self.model, Transformer):
            raise InputError(f"{self.folder}: this model {self.model.purpose}; give a Marian.")
        if self.start is None or self.padding is None or not self.ends:
            raise DataError(
                f"{self.folder / 'config.json'}: a translator needs decoder_start_token_id, "
                "eos_token_id and pad_token_id. Get the model again."
            )
        if not lines:
            return []
        ids = [torch.tensor(e.ids, dtype=torch.long) for e in self.tokenizer.encode_batch([*lines])]
        source = pad_sequence(ids, batch_first=True, padding_value=self.padding)
        stepper = WithoutTokens(self.model, self.padding)
        with torch.no_grad():
            state = self.model.start(source)
        ranked = beam_hypotheses(
            stepper, state, len(lines), start=self.start, end=self.ends[0], max_length=max_length,
            beam=beam, length_penalty=length_penalty,
        )  # fmt: skip
        return [self._text(hypotheses[0].tokens) for hypotheses in ranked]

    def _text(self, ids: list[int]) -> str:
        end = next((place for place, each in enumerate(ids) if each in self.ends), len(ids))
        text: str = self.tokenizer.decode(ids[:end])
        return text


def from_huggingface(folder: Path | str) -> LoadedModel:
    """Load a folder of Transformers into one of headloom's own models.

    BERT becomes a `Encoder`, GPT-2 and Llama a `LanguageModel`, Marian a `Transformer`; their
    numbers are those of Transformers, to rounding. Nothing is unpickled, and Transformers is not
    needed.

    Args: folder: with config.json, model.safetensors (or several, with their index) and, for
        texts, tokenizer.json.

    Raises:
        InputError: an architecture, or a setting, that headloom's models do not have: it is named.
        DataError: a file is missing or damaged.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder. Give one with config.json and safetensors.")
    settings = Settings.read(folder)
    model = load_transformers(folder, settings)
    named = named_tokens(settings)
    return LoadedModel(folder, model, named.start, named.ends, named.padding)
