"""Learned matrices W_Q, W_K, W_V, W_O, and their circuits."""
