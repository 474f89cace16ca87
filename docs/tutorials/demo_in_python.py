# %% [markdown]
# # The demo in Python
#
# What `headloom demo` does, in Python: from random matrices, a Transformer learns to read dates in
# 48 languages, in less than a minute. `examples/dates.toml` is the same configuration as a file.

# %%
import headloom

run = headloom.train(
    task="dates", width=128, heads=4, feed_forward=256, layers=2, dropout=0.0, positions="rotary",
    max_steps=600, batch_tokens=2048, products="bfloat16", optimiser="muon", lr=4e-3, warmup=60,
    schedule="cosine", label_smoothing=0.0, validate_every=200, checkpoint_every=200,
    run="runs/demo",
)  # fmt: skip
scores = run.evaluate(beam=1)
scores["exact_match"]  # of 1,000 dates that occur in no language of the training

# %%
run.translate(["de: Sonntag, 17. März 2024", "ja: 2031年10月5日日曜日", "en: 12/31/99"])

# %% [markdown]
# The letters that each written letter attends to, in the last layer of cross-attention:

# %%
trace = run.trace("de: Sonntag, 17. März 2024", keep=64)
trace["cross", 1].plot()

# %% [markdown]
# The W_Q of the same layer at every snapshot of the training, from random to learned:

# %%
history = run.history
history["W_Q", trace["cross", 1].name].shape  # (steps, heads, width, depth)

# %%
history.plot()
