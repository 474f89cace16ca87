"""timm without torchvision.

timm imports torchvision for data sets, transforms and a frozen norm, none of which a model's
attention uses. The wheels of torchvision on PyPI are built for CUDA and cannot be imported beside a
torch for the CPU. So while timm is imported, and where torchvision cannot be, modules that hold
nothing stand in its place.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest
from torch import nn

__all__ = ["timm"]


class _Names(type):
    """A class that has every constant in capital letters: its name."""

    def __getattr__(cls, name: str) -> str:
        if not name.isupper():
            raise AttributeError(name)
        return name


class _Empty(ModuleType):
    """A module in which every name is a class, or a function, that does nothing."""

    __path__: Sequence[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Names(name, (nn.Module,), {}) if name[0].isupper() else lambda *_, **__: None


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name.split(".")[0] == "torchvision" else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def timm() -> ModuleType:
    """The library; a test that asks for it is left out where it is not installed."""
    if find_spec("timm") is None:
        pytest.skip("timm is not installed")
    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError):
        finder = _Finder()
        sys.meta_path.insert(0, finder)
        try:
            return importlib.import_module("timm")
        finally:
            sys.meta_path.remove(finder)
            for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
                del sys.modules[name]
    return importlib.import_module("timm")
