# %% [markdown]
# # Where do W_Q, W_K and W_V come from?
#
# They are drawn at random, and back-propagation changes them until the model does its task. This
# notebook trains them for a minute or two on dates in 48 languages, and shows how they changed.

# %%
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import headloom

folder = Path(tempfile.mkdtemp())


def run(*words: str) -> str:
    """What `headloom ...` prints."""
    command = [sys.executable, "-m", "headloom", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.run(command, check=True, text=True, cwd=folder, **pipes).stdout


# %% [markdown]
# A Transformer of 2 + 2 layers: the encoder reads "17. März 2024" letter by letter, the decoder
# writes "2024-03-17". Every attention layer has 4 heads, and every head its own three matrices.
#
# The run's folder keeps the history of each matrix: many steps at the beginning, fewer later.

# %%
(folder / "dates.toml").write_text("""
[task]
kind = "dates"
train_examples = 20000

[model]
width = 96
encoder_layers = 2
decoder_layers = 2

[training]
max_steps = 400
optimiser = "muon"
peak_learning_rate = 4e-3
warmup = 80
schedule = "cosine"
validate_every = 100
""")
print(run("train", "dates.toml", "--run", "run", "--threads", "1"))

# %%
history = headloom.History(folder / "run")
history.steps

# %% [markdown]
# ## Before: noise
#
# The matrices of one head at step 0, drawn from a normal or uniform distribution whose width keeps
# the variance of the activations. They show no pattern.

# %%
layer = "decoder.1.cross_attention"
first, last = history[0].layer(layer), history[-1].layer(layer)
{name: tuple(matrix.shape) for name, matrix in first.matrices.items()}

# %%
figure, axes = plt.subplots(2, 3, figsize=(9, 6.5), constrained_layout=True)
for column, name in enumerate(["W_Q", "W_K", "W_V"]):
    size = max(float(step.matrices[name][0].abs().max()) for step in (first, last))
    for row, (when, step) in enumerate([("at random", first), ("trained", last)]):
        axis = axes[row, column]
        image = axis.imshow(
            step.matrices[name][0].numpy(), cmap="RdBu", vmin=-size, vmax=size, aspect="auto"
        )
        axis.set(title=f"{name}, head 0, {when}", xlabel="depth", ylabel="width of the model")
    figure.colorbar(image, ax=axes[:, column], location="bottom")

# %% [markdown]
# A single matrix is hard to read, since a rotation of both W_Q and W_K changes no score. Scores
# depend only on the product of the two:
#
# $$\mathrm{score}(x, y) = (x W_Q) \cdot (y W_K) / \sqrt{d} = x (W_Q W_K^\top) y^\top / \sqrt{d}$$
#
# ## What is learned is a product
#
# The singular values of `W_Q W_K^T` say in how many directions a head compares, and how strongly.
# In random matrices they fall in the same way in all heads. Training raises the first ones most,
# and more in some heads than in others.

# %%
figure, axis = plt.subplots(figsize=(6, 3.5), constrained_layout=True)
for head in range(4):
    for step, style in ((first, ":"), (last, "-")):
        product = step.matrices["W_Q"][head] @ step.matrices["W_K"][head].T
        values = torch.linalg.svdvals(product)[: step.matrices["W_Q"].shape[-1]]
        axis.plot(range(1, len(values) + 1), values, style, color=f"C{head}")
_ = axis.set(
    xlabel="singular value, the largest first",
    ylabel="size",
    title="W_Q W_K^T of four heads: at random (dotted) and trained",
)

# %% [markdown]
# ## Every step
#
# `history.measures()` has a row for each step, layer and head: norms, gradients, rank, symmetry.

# %%
measures = history.measures()
measures.head()

# %% [markdown]
# ## What the model can do now
#
# Trace the trained model: which letters does each digit attend to?

# %%
text, target = "de: Sonntag, 17. März 2024", "2024-03-17"
run("trace", "run", "--text", text, "--target", target, "-o", "t.loom")
cross = headloom.open(folder / "t.loom").layers[-1]
weights = sum(cross.matrix[head, :, :] for head in range(cross.heads)) / cross.heads
figure, axis = plt.subplots(figsize=(9, 4), constrained_layout=True)
axis.imshow(weights.numpy(), cmap="Blues", aspect="auto")
axis.set_xticks(range(len(cross.key_tokens)), cross.key_tokens, fontsize=8)
axis.set_yticks(range(len(cross.query_tokens)), cross.query_tokens)
_ = axis.set(
    xlabel="letters of the source (keys)",
    ylabel="written so far (queries)",
    title="Last cross-attention, mean of its heads",
)

# %% [markdown]
# Four hundred updates of random matrices found where the month is.
#
# **Next**: `make demo` trains longer and writes a page that shows the weights while they form.
# [Training](../training.md) uses your own data.
