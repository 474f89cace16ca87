"""Base class of headloom's models: outputs, and scores of the predictions from them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Self

from huggingface_hub import PyTorchModelHubMixin, snapshot_download
from safetensors import SafetensorError
from safetensors.torch import load_model
from torch import Tensor, nn

from headloom.errors import DataError, InputError
from headloom.formats.run import is_run
from headloom.models.huggingface.folder import Settings
from headloom.models.huggingface.reading import read_transformers


class Predictor(nn.Module, PyTorchModelHubMixin, library_name="headloom"):
    """Model that predicts one of several choices at each of its outputs.

    The two steps are separate so that only outputs with a target are scored.
    purpose: for errors; last: name of the last layer, which gives the scores.
    """

    purpose: ClassVar[str] = "predicts"
    last: ClassVar[str] = ""
    classifies_texts: bool = False
    __signature__: ClassVar[inspect.Signature]
    #: Outputs of the model, (..., width); `forward` scores them by `logits`.
    outputs: Callable[..., Tensor]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        signature = inspect.signature(cls.__init__)  # inspect would take __new__, of the mixin
        cls.__signature__ = signature.replace(parameters=[*signature.parameters.values()][1:])

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **download: Any) -> Self:
        """Load a module in evaluation mode. Nothing is unpickled, and Transformers is not needed.

        Args:
            pretrained_model_name_or_path: a folder that `save_pretrained` wrote; one of
                Transformers, with config.json and model.safetensors (GPT-2 and Llama are a
                `LanguageModel`, BERT an `Encoder`, Marian a `Transformer`); or a name on the Hub.
            download: from the Hub, as `revision` or `token`: see huggingface_hub's
                `snapshot_download`.

        Raises:
            InputError: another class reads this folder, or headloom lacks one of its settings.
            DataError: a file is missing or damaged, or the download failed.

        Example: `headloom.LanguageModel.from_pretrained("openai-community/gpt2")`
        """
        folder = Path(pretrained_model_name_or_path)
        if not folder.is_dir():
            try:
                files = ["config.json", "*.safetensors", "*.safetensors.index.json"]
                folder = Path(snapshot_download(str(folder), allow_patterns=files, **download))
            except (OSError, ValueError) as error:
                reason = str(error).partition("\n")[0]
                raise DataError(
                    f"{folder}: no such folder, and the Hub gives no model of this name: {reason}"
                ) from error
        settings = Settings.read(folder)
        if settings.raw("model_type") is not None:
            return read_transformers(cls, folder, settings)
        if is_run(folder):
            raise InputError(
                f"{folder} is a run; headloom.load({str(folder)!r}).module is its module."
            )
        name = settings.content.pop("headloom", cls.__name__)
        if name != cls.__name__:
            raise InputError(f"{folder} holds a {name}. Use headloom.{name}.from_pretrained.")
        model, path = cls(**settings.content), folder / "model.safetensors"
        try:
            load_model(model, path)
        except (OSError, RuntimeError, SafetensorError) as error:
            raise DataError(f"{path}: not the weights of this {name}: {error}") from error
        return model.train(False)

    def logits(self, outputs: Tensor) -> Tensor:
        """Score all choices, (..., choices), from outputs (..., width)."""
        assert self.last_map is not None
        result: Tensor = self.last_map(outputs)
        return result

    @property
    def last_map(self) -> nn.Linear | None:
        """Linear map computed by `logits`; None if it is another function."""
        layer: nn.Linear | None = getattr(self, self.last, None)
        return layer


def other_kind(model: object, action: str, kind: str) -> InputError:
    """Return the error for an action that another kind of model has.

    >>> print(other_kind(None, "translate", "a translator"))
    this run predicts; it does not translate. Give a run of a translator.
    """
    purpose = getattr(model, "purpose", Predictor.purpose)
    return InputError(f"this run {purpose}; it does not {action}. Give a run of {kind}.")
