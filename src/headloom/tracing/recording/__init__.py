"""Layers of a trace from the attention calls of a running model, verified."""
