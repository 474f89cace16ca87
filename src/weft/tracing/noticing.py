"""Notices the attention modules that run, so that none is missing from a trace without a word."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from torch import nn

__all__ = ["noticing", "takes_attention", "untraced"]

#: Words in the names of classes that take attention, in small letters.
_WORDS = ("attention", "attn")
_OWN = "it takes attention by itself, not by the interface of Transformers"


def takes_attention(module: nn.Module) -> bool:
    """Whether the name of a module's class says that it takes attention."""
    name = type(module).__name__.lower()
    return any(word in name for word in _WORDS)


@contextmanager
def noticing(model: nn.Module) -> Iterator[dict[str, str]]:
    """Notice every attention module that runs, in the order of the run.

    Yields: the classes of their modules, by their paths; it grows while the model runs.
    """
    ran: dict[str, str] = {}
    with ExitStack() as stack:
        for path, module in model.named_modules():
            if takes_attention(module):
                name = type(module).__name__
                hook = module.register_forward_hook(_noting(ran, path, name))
                stack.callback(hook.remove)
        yield ran


def _noting(ran: dict[str, str], path: str, name: str) -> object:
    def hook(*_: object) -> None:
        ran[path] = name

    return hook


def untraced(
    model: nn.Module,
    ran: Mapping[str, str],
    caught: Collection[str],
    refused: Mapping[str, str],
) -> list[dict[str, str]]:
    """The attention modules that ran and are in no trace, with a warning that names them.

    A module around one that was caught, or inside of one, is part of it. Of modules around one
    another that were not caught, the innermost is named.

    Args:
        model: what ran.
        ran: from `noticing`.
        caught: paths of the modules whose calls were caught.
        refused: why a call was caught and not kept, by the paths of modules.

    Returns: for each its "name" (path), its "class" and the "reason".
    """
    missing = [
        path
        for path in ran
        if not any(_is_inside(path, known) or _is_inside(known, path) for known in caught)
    ]
    found = [
        {"name": path, "class": ran[path], "reason": _OWN}
        for path in missing
        if not any(other != path and _is_inside(other, path) for other in missing)
    ]
    classes = {path: type(module).__name__ for path, module in model.named_modules()}
    found += [
        {"name": path, "class": classes.get(path, path), "reason": reason}
        for path, reason in refused.items()
    ]
    if found:
        shown = ", ".join(f"{entry['name']} ({entry['class']})" for entry in found[:3])
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        reasons = "; ".join(dict.fromkeys(entry["reason"] for entry in found))
        count = f"{len(found)} attention modules" if len(found) > 1 else "an attention module"
        warnings.warn(
            f"{type(model).__name__}: {count} ran and cannot be traced: {shown}{more}: {reasons}. "
            "The trace names them in not_traced.",
            stacklevel=4,
        )
    return found


def _is_inside(path: str, outer: str) -> bool:
    """Whether the path of a module is another's, or lies in it."""
    return not outer or path == outer or path.startswith(f"{outer}.")
