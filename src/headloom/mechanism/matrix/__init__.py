"""Attention weight matrix as an exact linear operator that is never formed."""
