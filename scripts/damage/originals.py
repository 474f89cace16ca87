"""Small whole inputs: traces with everything in them, a run, a model, a configuration."""

from __future__ import annotations

from pathlib import Path

import torch

import headloom
from headloom.api.model import TraceOptions
from headloom.api.run_model import RunModel
from headloom.api.trace import Trace
from headloom.formats.terms import Terms
from headloom.formats.trace import LayerInMemory, TraceLayer
from headloom.mechanism.masks import Window
from headloom.mechanism.packed import Ranges
from headloom.mechanism.positions import ALiBi, ByDistance, Shaw, alibi_slopes
from headloom.training.config import load_config
from headloom.training.inference import open_run
from headloom.training.loop import train
from headloom.training.progress import SilentListener

__all__ = ["CONFIG", "make_originals"]

CONFIG = """[task]
kind = "dates"
train_examples = 60
test_examples = 4

[model]
width = 8
heads = 2
feed_forward = 8
encoder_layers = 1
decoder_layers = 1
dropout = 0.0

[training]
max_steps = 3
batch_tokens = 256
warmup = 2
validate_every = 2
checkpoint_every = 2
average = 0.5
"""

HEADS, LENGTH, DEPTH = 2, 9, 4


def make_originals(folder: Path) -> None:
    """Make every original, each under its name."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config").mkdir()
    config = folder / "config" / "config.toml"
    config.write_text(CONFIG)
    train(load_config(config), folder / "run", SilentListener())
    run = open_run(folder / "run")
    model, options = RunModel(run, beam=1), TraceOptions(keep=4)
    model.trace(model.inputs("de: 17. März 2024", options), folder / "trace", options)
    _everything().save(folder / "terms")
    _pretrained(folder / "model")


def _everything() -> Trace:
    """A trace of layers that keep every kind of mask and term, with norms and offsets."""
    torch.manual_seed(0)
    positions = torch.arange(LENGTH)
    terms = [
        Terms(mask=Window(None, 0)),
        Terms(mask=Window(3, 1), relative=ALiBi(alibi_slopes(HEADS))),
        Terms(mask=Ranges((positions - 2).clamp(0), positions + 1), sinks=torch.zeros(HEADS)),
        Terms(relative=Shaw(torch.randn(1, 5, DEPTH), None)),
        Terms(relative=ByDistance(torch.randn(HEADS, 2 * LENGTH - 1), LENGTH - 1)),
        Terms(bias=torch.randn(1, 1, LENGTH)),
    ]
    tokens = [f"token {number}" for number in range(LENGTH)]
    layers = []
    for number, of in enumerate(terms):
        queries, keys, values = torch.randn(3, HEADS, LENGTH, DEPTH)
        _, graph = headloom.attend(
            queries, keys, values, mask=of.mask, relative=of.relative, bias=of.bias,
            sinks=of.sinks, keep=headloom.Top(3),
        )  # fmt: skip
        data = LayerInMemory(graph, (queries, keys), of, values.norm(dim=-1))
        layers.append(
            TraceLayer(
                f"layers.{number}", "encoder", number, (HEADS, LENGTH, LENGTH), "tokens", "tokens",
                tokens, tokens, DEPTH**-0.5, data, mask=of.rule, deviation=1e-7,
            )
        )  # fmt: skip
    known = {
        "offsets": [[number, number + 1] for number in range(LENGTH)],
        "special": [False] * LENGTH,
    }
    return Trace({"tokens": tokens}, tuple(layers), {"name": "made"}, {"tokens": known})


def _pretrained(folder: Path) -> None:
    """A random GPT-2 with a tokenizer of letters."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"[UNK]": 0, **{letter: number + 1 for number, letter in enumerate("abcdefghij")}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]"
    ).save_pretrained(folder)
    config = transformers.GPT2Config(
        vocab_size=11, n_embd=8, n_layer=1, n_head=2, n_positions=16,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
