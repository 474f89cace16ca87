# %% [markdown]
# # Self-attention by hand
#
# Three words, vectors of four numbers, one head of depth 2: every number of
#
# $$\mathrm{softmax}(Q K^\top / \sqrt{d})\, V$$
#
# with NumPy, and then the same by headloom.

# %%
import numpy as np

import headloom

np.set_printoptions(precision=3, suppress=True)
words = ["the", "cat", "sat"]
X = np.array([[1.0, 0.0, 0.5, 0.0], [0.0, 1.0, 0.0, 0.5], [0.5, 0.0, 1.0, 1.0]])

# %% [markdown]
# ## 1. Three matrices make a query, a key and a value of each word
#
# In a model they are learned. Here we choose small ones.

# %%
W_Q = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
W_K = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
W_V = np.array([[1.0, 0.0], [0.0, 2.0], [0.0, 1.0], [1.0, 0.0]])
Q, K, V = X @ W_Q, X @ W_K, X @ W_V
print("Q\n", Q, "\nK\n", K, "\nV\n", V, sep="")

# %% [markdown]
# ## 2. and 3. Scores, scaled
#
# A score is the dot product of a query and a key. The sum of d products of numbers of variance 1
# has variance d. Division by `sqrt(d)` makes it 1, so that the softmax does not saturate.

# %%
d = Q.shape[1]
scores = Q @ K.T / np.sqrt(d)
print(scores)

# %% [markdown]
# ## 4. Mask: a decoder does not look ahead
#
# A hidden score is minus infinity: its exponential is 0.

# %%
hidden = np.triu(np.ones((3, 3), dtype=bool), 1)
masked = np.where(hidden, -np.inf, scores)
print(masked)

# %% [markdown]
# ## 5. Softmax, row by row
#
# `A_ij = e^S_ij / sum_k e^S_ik`: each row becomes weights that add up to 1. This is the attention
# weight matrix.

# %%
exponentials = np.exp(masked)
A = exponentials / exponentials.sum(axis=1, keepdims=True)
print(A, "\nsums of the rows:", A.sum(axis=1))

# %% [markdown]
# "sat" is the last word, so it attends to all three. Its weights:

# %%
print(dict(zip(words, A[2].round(3).tolist(), strict=True)))

# %% [markdown]
# ## 6. Each word takes a weighted sum of the values

# %%
Z = A @ V
print(Z)

# %% [markdown]
# ## The same, by headloom
#
# `attend` gives the output and the graph of the strongest edges of each query.

# %%
import torch

q, k, v = (torch.tensor(part)[None] for part in (Q, K, V))  # one head
output, graph = headloom.attend(q, k, v, mask=headloom.causal(), keep=headloom.Top(3))
assert np.allclose(output[0], Z)
assert np.allclose(graph.adjacency(head=0).toarray(), A)
for query, key in zip(*np.nonzero(A), strict=True):
    print(f"{words[query]} -> {words[key]}: {A[query, key]:.3f}")

# %% [markdown]
# ## One word alone
#
# No matrix is needed: take the keys one after the other.

# %%
z, total = np.zeros(2), 0.0
for key, value in zip(K, V, strict=True):
    weight = np.exp(Q[2] @ key / np.sqrt(d))
    z, total = z + weight * value, total + weight
print(z / total, "=", Z[2])

# %% [markdown]
# `headloom steps` prints all of this for your words, your matrices or a trained head;
# `headloom.steps(...)` shows it in a notebook ([Six steps](../steps.md)).
