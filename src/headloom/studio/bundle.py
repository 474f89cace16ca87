"""The front end as it was built from `studio/`: one script, one style sheet."""

from __future__ import annotations

from importlib import resources

from headloom.errors import InputError

__all__ = ["script", "style"]


def script() -> str:
    """The script, a JavaScript module whose default export is an anywidget."""
    return _built("studio.js")


def style() -> str:
    """The style sheet."""
    return _built("studio.css")


def _built(name: str) -> str:
    try:
        return resources.files("headloom.studio").joinpath("static", name).read_text("utf-8")
    except FileNotFoundError:
        raise InputError(
            "the studio's front end is not built here. In a clone of the repository, run "
            "scripts/studio (make setup does)."
        ) from None
