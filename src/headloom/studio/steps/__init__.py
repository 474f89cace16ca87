"""The six steps of attention, worked through on a short sentence, for a person who is learning.

matrices    embeddings and W_Q, W_K, W_V, W_O: as they are given, or drawn from a seed
worked      every number of attention and of its gradients, by the formulas
lesson, learning   what is said and shown, as data: steps, each with sentences and tables
steps       `Steps`: what a user holds of a walk; the lesson as text
picture     the lesson as a picture
"""
