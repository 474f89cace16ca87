"""Whole inputs, ways to damage them, and what reads them; see scripts/damaged_inputs.py."""
