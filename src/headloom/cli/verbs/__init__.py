"""Verbs of the command `headloom`, one module each, loaded by `headloom.cli.commands`."""
