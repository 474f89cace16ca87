"""Command line of headloom."""

from headloom.cli.commands import app, main

__all__ = ["app", "main"]
