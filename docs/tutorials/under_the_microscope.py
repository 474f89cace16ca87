# %% [markdown]
# # 8,192 tokens under the microscope
#
# Attention of 8,192 tokens has 67 million weights a head. SmolLM2 has 270 heads: 18 billion weights
# for one text, 72 GB. Fused attention never stores them. In the same pass, headloom keeps the
# strongest edges of every query, and the exact totals of each row.

# %%
import time

import matplotlib.pyplot as plt
import numpy as np
import torch

import headloom

torch.manual_seed(0)
N, heads, depth = 8192, 4, 64
q, k, v = (torch.randn(heads, N, depth) for _ in range(3))

start = time.perf_counter()
torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)
fused = time.perf_counter() - start
start = time.perf_counter()
output, graph = headloom.attend(q, k, v, mask=headloom.causal(), keep=headloom.Top(32))
ours = time.perf_counter() - start
print(f"output alone, torch: {fused:.2f} s; output and graph, headloom: {ours:.2f} s")
print(graph)

# %% [markdown]
# The graph's size is linear in the length. `rest` is the exact mass of the edges that it leaves
# out.

# %%
held = sum(
    getattr(graph, name).nbytes for name in ("keys", "scores", "weights", "lse", "entropy", "rest")
)
print(
    f"{held / 2**20:.0f} MB for {heads * N * N:,} weights; mass that is not kept: "
    f"{graph.rest.mean():.1%} (random queries spread theirs)"
)

# %% [markdown]
# ## The whole matrix
#
# Any part of it can be computed from queries and keys: a tile, a product, column sums. The whole is
# never stored.

# %%
matrix = headloom.AttentionMatrix(q, k, mask=headloom.causal())
tile = matrix[0, 5000:5004, 100:104]
received = matrix.received()
print(tile, "\nreceived by the first keys of head 0:", received[0, :4])

# %% [markdown]
# ## A real model
#
# SmolLM2 on a text of about 2,700 tokens: how much of each row's mass do 32 edges leave out?

# %%
words = " ".join(
    f"On day {day} the {['king', 'queen', 'fool'][day % 3]} asked for {day * 7 % 100} ships."
    for day in range(1, 190)
)
trace = headloom.trace("smollm2", words)
layers = [float(layer.graph.rest.mean()) for layer in trace.layers]
length = trace.layers[0].graph.length
figure, axis = plt.subplots(figsize=(7, 3), constrained_layout=True)
axis.bar(range(len(layers)), layers)
_ = axis.set(xlabel="layer", ylabel="mass outside of 32 edges", title=f"SmolLM2, {length:,} tokens")

# %% [markdown]
# ## Zoom
#
# A matrix with thousands of rows does not fit on a screen, but sums of its blocks do. The studio
# shows such sums, and a click enlarges a block. Here is one level by hand.

# %%
layer, head = 5, 0
block = 32
whole = trace.layers[layer].matrix
edges = range(0, length, block)
sums = np.zeros((len(edges), len(edges)))
for row, first in enumerate(edges):
    tile = whole[head, first : first + block, :].numpy().sum(0)
    sums[row] = np.add.reduceat(tile, list(edges))
figure, axes = plt.subplots(1, 2, figsize=(10, 4.6), constrained_layout=True)
mass = axes[0].imshow(sums + 1e-4, norm="log", cmap="viridis")
figure.colorbar(mass, ax=axes[0], label="sum of the weights of a block", shrink=0.8)
axes[0].set(
    title=f"Layer {layer}, head {head}: blocks of {block} x {block}",
    xlabel="block of keys",
    ylabel="block of queries",
)
last = slice(length - 64, length)
sides = (length - 64.5, length - 0.5)  # positions, as the axes name them
weights = axes[1].imshow(whole[head, last, last], cmap="Blues", extent=(*sides, *sides[::-1]))
figure.colorbar(weights, ax=axes[1], label="weight", shrink=0.8)
_ = axes[1].set(title="its last 64 x 64 cells", xlabel="key", ylabel="query")

# %% [markdown]
# `headloom view` opens such a trace in the browser, down to every single cell. [Tracing
# models](../tracing.md#what-it-costs) says what a trace costs.
