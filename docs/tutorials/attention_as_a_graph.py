# %% [markdown]
# # Attention as a graph
#
# A row of attention weights says which tokens a token attends to, and how much. So the weights are
# a directed graph: tokens are nodes, and each edge has a weight.

# %%
import networkx as nx
import numpy as np
import pandas as pd
import torch

import headloom

trace = headloom.trace("minilm", "The dog chased the cat because it was hungry.")
layer = trace.layers[3]
graph, tokens = layer.graph, layer.key_tokens
print(graph)

# %% [markdown]
# ## Adjacency matrix
#
# The kept edges of a head as a sparse matrix. Rows sum to 1 where all edges are kept.

# %%
adjacency = graph.adjacency(head=5)
print(
    adjacency.shape,
    adjacency.nnz,
    "edges; sums of rows:",
    np.asarray(adjacency.sum(1)).ravel().round(3),
)

# %% [markdown]
# ## Which tokens receive attention?
#
# A column sum is what a token receives. In PageRank, attention from a token counts more if that
# token itself receives much.

# %%
network = graph.to_networkx(head=5)
pd.DataFrame(
    {
        "token": tokens,
        "received": np.asarray(adjacency.sum(0)).ravel(),
        "PageRank": list(nx.pagerank(network, weight="weight").values()),
    }
).round(3)

# %% [markdown]
# ## Symmetry
#
# `q_i . k_j` and `q_j . k_i` can differ. With one symmetric matrix instead of two, scores are
# symmetric. The *weights* are still not, since each row is divided by its own sum.

# %%
x = torch.randn(1, 6, 8, dtype=torch.float64)
A = torch.randn(8, 8, dtype=torch.float64)
_, one = headloom.attend(x, x, x, score=headloom.Bilinear(A), keep=headloom.Top(6))
_, other = headloom.attend(
    x, x, x, score=headloom.Bilinear(A, symmetric=True), keep=headloom.Top(6)
)


def scores_of(graph: headloom.AttentionGraph) -> np.ndarray:
    full = np.zeros(graph.shape[1:])
    np.put_along_axis(full, graph.keys[0].numpy(), graph.scores[0].numpy(), 1)
    return full


for name, found in (("A", one), ("symmetric", other)):
    S, W = scores_of(found), found.adjacency(head=0).toarray()
    print(f"{name:10} scores {np.abs(S - S.T).max():.1e}   weights {np.abs(W - W.T).max():.2f}")

# %% [markdown]
# ## A causal mask is a directed graph without cycles
#
# Each token attends to itself and to tokens before it, so the only cycles are loops.

# %%
_, causal = headloom.attend(x, x, x, mask=headloom.causal(), keep=headloom.Top(6))
network = causal.to_networkx(head=0)
network.remove_edges_from(nx.selfloop_edges(network))
nx.is_directed_acyclic_graph(network)

# %% [markdown]
# ## The other way: attention on a given graph
#
# In a graph attention network (Velickovic et al. 2018) a node attends to its neighbours only.
# Attention over all tokens is the case of the complete graph.

# %%
ring = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])  # edges: sources, targets
mask = headloom.neighbours(ring, nodes=6)
output, on_ring = headloom.attend(x, x, x, mask=mask, keep=headloom.Top(6))
complete = headloom.neighbours(torch.ones(6, 6))
assert torch.allclose(headloom.attention(x, x, x, mask=complete), headloom.attention(x, x, x))
on_ring.adjacency(head=0).toarray().round(2)

# %% [markdown]
# ## Paths
#
# Through all layers, how much of a token's last state can come from each input token? Attention
# flow (Abnar and Zuidema 2020) is the largest flow through the graph of all layers.

# %%
from headloom.analysis.graphs.flow import attention_flow
from headloom.analysis.graphs.rollout import rollout

it = tokens.index("it")
flow = attention_flow(trace, it, range(len(tokens)), exact=True)
rolled = rollout(trace, exact=True)[it]
pd.DataFrame({"token": tokens, "flow to 'it'": flow, "rollout": rolled}).round(3)

# %% [markdown]
# [Measures of attention](../analysis.md) lists every measure. [Graph attention
# networks](../graphs.md) trains one on Cora.
