# %% [markdown]
# # What does this head do?
#
# A real model has dozens to thousands of heads. Some look at the token before, some at a place
# where they park their weight, some find what followed the last time. This notebook asks two real
# models: MiniLM, an encoder, and SmolLM2, a language model of 135 million parameters.

# %%
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

import headloom

folder = Path(tempfile.mkdtemp())


def traced(model: str, text: str) -> headloom.Trace:
    """What `headloom trace MODEL --text TEXT -o FILE` writes, opened."""
    file = folder / f"{len(list(folder.iterdir()))}.loom"
    command = [sys.executable, "-m", "headloom", "trace", model, "--text", text, "-o", str(file)]
    subprocess.run(command, check=True, capture_output=True)
    return headloom.open(file)


text = (
    "When Mary and John went to the store, John gave a drink to Mary. "
    "When Mary and John went to the park, John gave a flower to"
)
trace = traced("smollm2", text)
print(trace)

# %% [markdown]
# The trace holds the strongest edges of every query of every head, exactly, and the totals of each
# row. A model that is open in Python is traced by `headloom.trace(model, text,
# tokenizer=tokenizer)`. # Every layer was verified: attention computed from the queries and keys
# that were recorded gave # what the model itself gave.
#
# ## One row a head

# %%
heads = trace.heads()
columns = ["layer", "head", "role", "score", "previous", "first", "induction", "entropy"]
heads[[column for column in columns if column in heads]].head(8)

# %% [markdown]
# `role` names what a head does most, where that is clearly more than chance.

# %%
heads["role"].value_counts()

# %% [markdown]
# ## Induction: what followed the last time?
#
# The text says the same thing twice. An induction head, at the second "John", looks at the token
# that followed the first one. That is how a language model copies from its context (Olsson et al.
# 2022).

# %%
best = heads.sort_values("induction", ascending=False).iloc[0]
layer, head = int(best["layer"]), int(best["head"])
weights = trace.layers[layer].matrix[head, :, :]
tokens = [token.replace("Ġ", "") for token in trace.layers[layer].key_tokens]  # Ġ: a space
figure, axis = plt.subplots(figsize=(7.5, 7), constrained_layout=True)
axis.imshow(weights, cmap="Blues", vmin=0, vmax=1)
axis.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=7)
axis.set_yticks(range(len(tokens)), tokens, fontsize=7)
_ = axis.set(
    xlabel="key: looked at",
    ylabel="query: looks",
    title=f"Layer {layer}, head {head}: induction {best['induction']:.2f}",
)

# %% [markdown]
# The dark line below the diagonal is the second sentence looking at the first, one token
# further.
#
# ## Sinks
#
# Many heads of a language model put most of their weight on the first token when they have nothing
# to do (Xiao et al. 2024).

# %%
figure, axis = plt.subplots(figsize=(7, 3), constrained_layout=True)
heads.groupby("layer")["first"].mean().plot.bar(ax=axis)
_ = axis.set(ylabel="weight on the first token", title="SmolLM2: mean over the heads of a layer")

# %% [markdown]
# ## An encoder looks both ways

# %%
encoder = traced("minilm", "The dog chased the cat because it was hungry.")
encoder.heads().sort_values("score", ascending=False)[["layer", "head", "role", "score"]].head(10)

# %% [markdown]
# `trace.view()` opens all of this in the studio. What the measures are, and how chance is
# reckoned: [Roles of heads](../heads.md).
