"""The six steps of attention, worked through on a short sentence, for a person who is learning.

matrices    embeddings and W_Q, W_K, W_V, W_O: as they are given, or drawn from a seed
lesson      `Steps`: every matrix of a sentence; and `AllKinds`: the three kinds side by side
explain     what is said and shown, step by step
text, html  the same for a terminal, and for a notebook or a browser
"""
