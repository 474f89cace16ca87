"""Attention as a weighted, directed graph: its measures."""
