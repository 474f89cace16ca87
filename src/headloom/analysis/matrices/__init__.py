"""The learned matrices W_Q, W_K, W_V, W_O, and the circuits they make."""
