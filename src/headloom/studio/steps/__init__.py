"""The six steps of attention, worked through on a short sentence, for a person who is learning.

matrices    embeddings and W_Q, W_K, W_V, W_O: as they are given, or drawn from a seed
worked, worked_back   every number of attention and of its gradients, by the formulas
walk        `Walk`: every matrix of attention on a sentence
lesson      `Lesson`: what is said and shown, as data: steps, each with sentences and tables
explain, learning   the lesson of a walk, forward and backward
text, picture   a lesson for a terminal, and as a picture
steps       `Steps`: what a user holds of a walk
"""
