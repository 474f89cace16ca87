"""The roof: the command line, the only place where making and seeing meet."""

from weft.cli import analysis as analysis  # adds its verbs
from weft.cli.commands import app, main

__all__ = ["app", "main"]
