"""Where a model is: a folder or file, a package, the cache of Hugging Face, or its hub.

The disk is asked first.
"""

from __future__ import annotations

import os
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path

from headloom.errors import DataError
from headloom.formats.files import is_there, open_file
from headloom.tracing.packaged import PACKAGED, packaged_model

__all__ = ["Located", "check_model_path", "is_gguf", "locate", "why_unreachable"]

#: Seconds in which the hub must answer, to be asked for a model.
_PATIENCE = 5.0


@dataclass(frozen=True)
class Located:
    """A model as Transformers is asked for it.

    source: a folder, a file, or a name.
    folder: whether it is a folder, or a file, of the user's.
    cached: the folder in the cache of Hugging Face that holds it, or None.
    """

    source: str
    folder: bool
    cached: Path | None = None

    @property
    def gguf(self) -> bool:
        """Whether it is a GGUF file."""
        return self.folder and is_gguf(Path(self.source))


def is_gguf(path: Path) -> bool:
    """Whether a file is one of GGUF, by its first bytes or by its name."""
    if not path.is_file():
        return False
    if path.suffix.lower() == ".gguf":
        return True
    with open_file(path, "model") as file:
        return file.read(4) == b"GGUF"


def check_model_path(source: str) -> bool:
    """Whether a folder or file is at a path that is given as a model; False: it may be a name.

    Raises: DataError: nothing is there, and a name cannot look like that.
    """
    if not source:
        raise DataError("the name of the model is empty; give a run, a folder, or a name.")
    if is_there(source, "model"):
        return True
    if source.lower().endswith(".gguf"):
        raise DataError(f"{source}: no such file. Check the path of the GGUF file.")
    if Path(source).is_absolute() or source.startswith(".") or source.count("/") > 1:
        raise DataError(
            f"{source}: no such run or model. Check the path, or train a run: headloom train."
        )
    return False


def locate(model: Path | str) -> Located:
    """Find a model by its folder or its name.

    Raises: DataError: it is nowhere; one line says where it was looked for.
    """
    source = str(model)
    if check_model_path(source):
        return Located(source, folder=True)
    if source in PACKAGED:
        return Located(str(packaged_model(source)), folder=True)
    if find_spec("huggingface_hub") is None:
        from headloom.tracing.sources.transformers import transformers

        transformers()  # says what to install
    # Not yet Transformers itself, whose import takes seconds.
    from huggingface_hub import constants
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    tried = f"{model}: no such run, trace or folder here"
    try:
        validate_repo_id(source)
    except HFValidationError:
        raise DataError(f"{tried}, and no name that a model of Hugging Face can have.") from None
    cached = _cached(source)
    if cached is not None:
        return Located(source, folder=False, cached=cached)
    tried += f"; as a model's name, not in the cache of Hugging Face ({constants.HF_HUB_CACHE})"
    reason = why_unreachable()
    if reason is not None:
        meant = get_close_matches(source, PACKAGED, 1)
        remedy = (
            f"Did you mean {meant[0]}?" if meant else "Check the name, or give a run or a folder."
        )
        raise DataError(f"{tried}, and {constants.ENDPOINT} cannot be asked: {reason}. {remedy}")
    return Located(source, folder=False)


def _cached(name: str) -> Path | None:
    """The folder of a model in the cache of Hugging Face, where it has weights."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(name, "config.json")
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    return folder if any(folder.glob("*.safetensors")) else None


def why_unreachable() -> str | None:
    """Why the hub of Hugging Face cannot be asked; None: it answers.

    In a thread, since the look-up of an address may take longer than any limit on it.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or os.environ.get("TRANSFORMERS_OFFLINE", "").upper() in (
        *("1", "ON", "YES", "TRUE"),
    ):
        return "HF_HUB_OFFLINE forbids it"
    answer: list[str | None] = [f"no answer in {_PATIENCE:.0f} s"]

    def ask() -> None:
        request = urllib.request.Request(constants.ENDPOINT, method="HEAD")
        try:
            with urllib.request.urlopen(request, timeout=_PATIENCE):
                answer[0] = None
        except urllib.error.HTTPError as error:
            error.close()
            # A hub of one's own may answer its front page with an error; a proxy that forbids
            # the way says so by 403 or 407, and one that finds no way by 502 to 504.
            if error.code in (407, 502, 503, 504):
                answer[0] = f"{error.code} {error.reason}"
            else:
                answer[0] = None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            answer[0] = str(getattr(reason, "strerror", None) or reason).lower()

    thread = threading.Thread(target=ask, name="headloom-hub", daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    return answer[0]
