"""The verbs of the command `headloom`: a module each, found by `headloom.cli.commands`."""
