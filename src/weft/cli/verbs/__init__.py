"""The verbs of the command `weft`: a module each, found by `weft.cli.commands`."""
