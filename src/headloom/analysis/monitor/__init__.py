"""Watching the attention of any model while somebody's own program trains it."""
