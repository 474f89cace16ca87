"""Export of a trained model to formats of other programs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from headloom.api.huggingface_model import (
    huggingface_loader,
    logits_of_huggingface,
    scores_of_ctranslate2,
    write_ctranslate2,
    write_huggingface,
)
from headloom.api.onnx_model import logits_of_onnx, write_onnx
from headloom.errors import InputError, VerificationError
from headloom.formats.folders import atomic_folder
from headloom.formats.verification import outward
from headloom.models.language_model import LanguageModel
from headloom.models.transformer import Transformer
from headloom.training.inference import TrainedRun, open_run
from headloom.training.text import SPECIALS, PretrainedVocabulary

#: Tolerance of outputs, relative to the largest; float32 sums in another order differ.
TOLERANCE = 1e-4
#: Tokens of the compared texts, if the model has as many positions.
COMPARED = 96


@dataclass(frozen=True)
class ExportedModel:
    """Exported model.

    folder: with configuration, weights and vocabulary.
    kind: its class in the other program; or its files.
    loading: a line of Python that opens it.
    numbers: the compared outputs: logits, or log-probabilities.
    difference: the largest from the run's, on random tokens.
    """

    folder: Path
    kind: str
    loading: str
    numbers: str
    difference: float

    def __str__(self) -> str:
        within = outward(self.difference, ".1e", upper=True)
        return (
            f"{self.folder}\n{self.kind}: {self.numbers} within {within} of the run's.\n"
            f"Open it in Python: {self.loading}"
        )


def export_model(
    path: Path, folder: Path, to: Literal["huggingface", "ctranslate2", "onnx"]
) -> ExportedModel:
    """Write a run's best weights as a folder that another program opens: see `headloom.export`."""
    run = open_run(path)
    if isinstance(run.data.vocabulary, PretrainedVocabulary) and to != "huggingface":
        raise InputError(
            f"{path}: this run started from a model of Transformers, and can be exported to "
            "huggingface only. Use to huggingface."
        )
    with atomic_folder(folder) as new:
        if to == "onnx":
            kind, numbers = ", ".join(write_onnx(run, new)), "logits"
            ours, theirs = logits_of_onnx(run, new)
            loading = f"onnxruntime.InferenceSession({str(folder / kind.split(', ')[0])!r})"
        elif to == "huggingface":
            kind, numbers = write_huggingface(run, new), "logits"
            ours, theirs = logits_of_huggingface(run, new, *_texts(run))
            loading = f"transformers.{huggingface_loader(run)}.from_pretrained({str(folder)!r})"
        else:
            kind, numbers = f"ctranslate2.{write_ctranslate2(run, new)}", "log-probabilities"
            ours, theirs = scores_of_ctranslate2(run, new, *_texts(run))
            loading = f"{kind}({str(folder)!r})"
        difference, largest = float((ours - theirs).abs().max()), float(ours.abs().max())
        if not difference <= TOLERANCE * max(largest, 1.0):
            raise VerificationError(
                f"export: {numbers} of the exported model differ from the run's by "
                f"{difference:.2g} (the largest is {largest:.2g}). Nothing was written; report it."
            )
    return ExportedModel(folder, kind, loading, numbers, difference)


def _texts(run: TrainedRun) -> tuple[Tensor, Tensor]:
    """Draw random sources of several lengths, padded, and as many targets."""
    longest = COMPARED
    if isinstance(run.model, (Transformer, LanguageModel)):
        longest = min(longest, run.model.architecture.max_length - 1)  # the start comes before
    generator = torch.Generator().manual_seed(1)
    source, target = torch.randint(
        len(SPECIALS), len(run.vocabulary), (2, 4, max(longest, 1)), generator=generator
    )
    for row in range(1, len(source)):
        source[row, max(1, longest * row // len(source)) :] = run.vocabulary.pad
    return source, target
