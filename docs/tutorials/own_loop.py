# %% [markdown]
# # A training loop of your own
#
# headloom's models are modules of PyTorch. Here one is trained in a loop of 20 lines with torch's
# AdamW, and `headloom.monitor` keeps what its heads do on the way. It takes a quarter of a minute.
#
# The task: a sequence of random letters comes twice. The first time nothing can be predicted; the
# second time everything can, by a head that looks for the last place of the same letter, and reads
# what followed there. Such heads are called induction heads (Olsson et al. 2022).

# %%
import tempfile
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

import headloom

# %% [markdown]
# Every size is a keyword argument, called as in the section `[model]` of a configuration; names of
# other libraries (`vocab_size`, `d_model`, `n_heads`) are taken too.

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
# The loop. `monitor.step` is its only line that headloom needs; the training ends with the same
# numbers with it and without.

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
    """Names the ids in the trace: all that headloom asks of a tokenizer."""

    def token_strings(self, ids: list[int]) -> list[str]:
        return [letters[number] for number in ids]


trace = headloom.trace(model, draw(1), tokenizer=Letters())
heads = trace.heads()
heads[["layer", "head", "role", "previous", "induction"]]

# %% [markdown]
# The strongest induction head: in the second half, each letter looks at what followed it in the
# first, a line parallel to the diagonal.

# %%
best = heads.loc[heads["induction"].idxmax()]
axes = trace[best["layer"], best["head"]].plot(width=120)
_ = axes.set_title(f"layer {best['layer']}, head {best['head']}: {best['induction']:.2f}")

# %% [markdown]
# ## How it came about
#
# The monitor kept a snapshot at steps 0, 1, 2, 4, 8, ...: a row for each, a column for each head.

# %%
grown = headloom.heads(folder, measure="induction")
axes = grown.drop(columns="loss").plot(x="step", logx="sym", figsize=(6, 3.5))
_ = axes.set_ylabel("weight on the token that followed")
grown

# %% [markdown]
# ## Keep it
#
# A folder with the arguments and the weights; `model.push_to_hub("name/of-it")` sends the same to
# the Hub. Nothing is pickled.

# %%
model.save_pretrained(folder / "model")
again = headloom.LanguageModel.from_pretrained(folder / "model")
prompt = draw(1)[:, :20]
written = again.generate(prompt, max_new_tokens=12, temperature=0)
right = float((written[:, 20:] == prompt[:, 4:16]).float().mean())
print("".join(letters[number] for number in written[0].tolist()), f"{right:.0%} right")

# %% [markdown]
# The last 12 letters are the model's own.
#
# **Go on**: `headloom view FOLDER` shows the whole training in the browser; [Watching a
# training](../monitor.md) has the monitor's warnings; [Training](../training.md) has the loop for
# those who need none of their own.
