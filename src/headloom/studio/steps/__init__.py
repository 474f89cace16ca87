"""Six steps of attention, computed on a short sentence, for learners.

matrices    embeddings and W_Q, W_K, W_V, W_O: given, or drawn from a seed
worked      every number of attention and of its gradients, by the formulas
lesson, learning   the lesson as data: steps, each with sentences and tables
steps       `Steps`: the result of `headloom.steps`; the lesson as text
picture     the lesson as a picture
"""
