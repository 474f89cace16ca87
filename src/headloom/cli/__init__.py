"""The command line, the only place where making and seeing meet what a person types."""

from headloom.cli.commands import app, main

__all__ = ["app", "main"]
