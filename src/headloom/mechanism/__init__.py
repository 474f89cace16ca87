"""Attention mechanism: pure functions of queries, keys and values; the package's lowest layer."""
