"""Catching the attention graphs of models, and handing them to other tools."""
