"""Processes that are killed, and the files that they leave."""
