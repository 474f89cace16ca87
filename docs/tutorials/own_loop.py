# %% [markdown]
# # A training loop of your own
#
# headloom's models are modules of PyTorch. This trains one in a loop of 20 lines with torch's
# AdamW; `headloom.monitor` records what its heads do meanwhile. It takes about 15 seconds.
#
# The task: random letters, repeated once. The first half cannot be predicted. The second half can,
# by a head that attends to the letter after the last copy of the current one. Such heads are called
# induction heads (Olsson et al. 2022).

# %%
import tempfile
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

import headloom

# %% [markdown]
# Sizes are keyword arguments with the names of the section `[model]` of a configuration; names of
# other libraries (`vocab_size`, `d_model`, `n_heads`) work too.

# %%
torch.manual_seed(0)
model = headloom.LanguageModel(
    vocabulary=26, width=64, heads=4, layers=2, feed_forward=128, positions="rotary", dropout=0.0
)
optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
folder = Path(tempfile.mkdtemp()) / "twice"


def draw(count: int, half: int = 16) -> torch.Tensor:
    """Sequences of random letters, each twice."""
    letters = torch.randint(26, (count, half))
    return torch.cat((letters, letters), 1)


# %% [markdown]
# The loop. Only `monitor.step` is for headloom; the training has the same results without it.

# %%
with headloom.monitor(model, folder, every=20) as monitor:
    for step in range(200):
        ids = draw(32)
        logits = model(ids[:, :-1])
        # Only the second half can be predicted.
        loss = cross_entropy(logits[:, 15:].flatten(0, 1), ids[:, 16:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        monitor.step(loss)
        if step % 40 == 0:
            print(f"step {step:3}  loss {loss.item():.3f}")
model.eval()
print(f"at the end {loss.item():.3f}")

# %% [markdown]
# ## What the heads do
#
# One trace of a sequence that the model has not seen, and the measures of each head.

# %%
letters = [chr(ord("a") + place) for place in range(26)]


class Letters:
    """Names of the ids in the trace: the only method of a tokenizer that headloom needs."""

    def token_strings(self, ids: list[int]) -> list[str]:
        return [letters[number] for number in ids]


trace = headloom.trace(model, draw(1), tokenizer=Letters())
heads = trace.heads()
heads[["layer", "head", "role", "previous", "induction"]]

# %% [markdown]
# In the strongest induction head, each letter of the second half attends to the letter that
# followed it in the first: a line parallel to the diagonal.

# %%
best = heads.loc[heads["induction"].idxmax()]
axes = trace[best["layer"], best["head"]].plot(width=120)
_ = axes.set_title(f"layer {best['layer']}, head {best['head']}: {best['induction']:.2f}")

# %% [markdown]
# ## How the heads formed
#
# The monitor saved a snapshot at steps 0, 1, 2, 4, 8, ... Each is a row; each head is a column.

# %%
grown = headloom.heads(folder, measure="induction")
axes = grown.drop(columns="loss").plot(x="step", logx="sym", figsize=(6, 3.5))
_ = axes.set_ylabel("weight on the token that followed")
grown

# %% [markdown]
# ## Keep it
#
# This writes a folder with the arguments and the weights, without pickle.
# `model.push_to_hub("name/of-it")` uploads the same to the Hub.

# %%
model.save_pretrained(folder / "model")
again = headloom.LanguageModel.from_pretrained(folder / "model")
prompt = draw(1)[:, :20]
written = again.generate(prompt, max_new_tokens=12, temperature=0)
right = float((written[:, 20:] == prompt[:, 4:16]).float().mean())
print("".join(letters[number] for number in written[0].tolist()), f"{right:.0%} right")

# %% [markdown]
# The model wrote the last 12 letters.
#
# **Next**: `headloom view FOLDER` shows the whole training in the browser. [Watching a
# training](../monitor.md) describes the monitor's warnings, [Training](../training.md) headloom's
# own loop.
