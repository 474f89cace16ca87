"""Eviction from a smaller key cache, and its loss, measured on a trace."""
