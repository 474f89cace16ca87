"""Transformers built from the attention layers of the ground floor."""
