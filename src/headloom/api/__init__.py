"""The work of the commands, below the command line: here making and seeing a model meet."""
