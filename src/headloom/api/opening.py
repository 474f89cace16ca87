"""Opens a model by its name, whoever made it."""

from __future__ import annotations

import sys

from headloom.api.model import Model
from headloom.api.pretrained_model import PretrainedModel
from headloom.api.run_model import model_of_run
from headloom.formats.run import is_run
from headloom.tracing.description import describe
from headloom.tracing.pretrained import load_pretrained
from headloom.training.inference import open_run

__all__ = ["open_model"]


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
