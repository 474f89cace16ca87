# %% [markdown]
# # What does this head do?
#
# A real model has dozens to thousands of heads. Some attend to the token before, some put their
# weight on a fixed token, some find what followed an earlier copy. This notebook looks at two
# models: MiniLM, an encoder, and SmolLM2, a language model of 135 million parameters.

# %%
import matplotlib.pyplot as plt

import headloom

text = (
    "When Mary and John went to the store, John gave a drink to Mary. "
    "When Mary and John went to the park, John gave a flower to"
)
trace = headloom.trace("smollm2", text)
print(trace)

# %% [markdown]
# The trace holds the strongest edges of every query of every head, exactly, and the totals of each
# row. Each layer was checked against the model's own attention.
#
# ## A row for each head

# %%
heads = trace.heads()
columns = ["layer", "head", "role", "score", "previous", "first", "induction", "entropy"]
heads[[column for column in columns if column in heads]].head(8)

# %% [markdown]
# `role` is what a head does most, if that is clearly more than chance.

# %%
heads["role"].value_counts()

# %% [markdown]
# ## Induction: what followed the earlier copy?
#
# The two sentences of the text are nearly the same. At a word of the second sentence, an induction
# head attends to the word that followed the same word in the first: at the second "went", to the
# "to" after the first "went". This is how a language model copies from its context (Olsson et al.
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
# Along the dark line below the diagonal, tokens of the second sentence attend to the token after
# their copy in the first.
#
# ## Sinks
#
# Many heads of a language model put most of their weight on the first token (Xiao et al. 2024).

# %%
figure, axis = plt.subplots(figsize=(7, 3), constrained_layout=True)
heads.groupby("layer")["first"].mean().plot.bar(ax=axis)
_ = axis.set(ylabel="weight on the first token", title="SmolLM2: mean over the heads of a layer")

# %% [markdown]
# ## An encoder attends in both directions

# %%
encoder = headloom.trace("minilm", "The dog chased the cat because it was hungry.")
encoder.heads().sort_values("score", ascending=False)[["layer", "head", "role", "score"]].head(10)

# %% [markdown]
# `trace.view()` opens all of this in the studio. [Roles of heads](../heads.md) defines the measures
# and chance.
