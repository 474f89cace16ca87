"""Opens a model by its name, whoever made it."""

from __future__ import annotations

from headloom.api.model import Model
from headloom.formats.run import is_run

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
        from headloom.api.classifier_model import ClassifierModel
        from headloom.api.run_model import ImageRunModel, RunModel
        from headloom.models.image_classifier import ImageClassifier
        from headloom.training.inference import open_run

        run = open_run(name)
        if run.model.classifies_texts:
            return ClassifierModel(run)
        return ImageRunModel(run) if isinstance(run.model, ImageClassifier) else RunModel(run)
    from headloom.api.notices import tell_quantized
    from headloom.api.pretrained_model import PretrainedModel
    from headloom.tracing.description import describe
    from headloom.tracing.pretrained import load_pretrained

    network, tokenizer = load_pretrained(
        name, predicting=predicting, labelling=labelling, text=reads_text
    )
    if not quiet:
        bits = describe(network).get("quantization")
        tell_quantized(name, bits if isinstance(bits, str) else None)
    return PretrainedModel(name, network, tokenizer)
