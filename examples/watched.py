"""A training by `Trainer` of Transformers, watched: induction heads form, and the studio shows it.

    python examples/watched.py        # a minute; then: headloom view runs/watched

A small Llama learns texts whose first half comes again. Needs `pip install ".[monitor]"`.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

import headloom

TEXT = (
    "the a cat dog sat on mat in sun he she ran to big red house when it was cold and dark they "
    "saw one old man with no name by sea ."
)
WORDS = TEXT.split()
HALF = 12


def texts(number: int) -> list[dict[str, torch.Tensor]]:
    """Random halves, each twice."""
    generator = torch.Generator().manual_seed(1)
    halves = torch.randint(0, len(WORDS), (number, HALF), generator=generator)
    return [{"input_ids": text, "labels": text} for text in halves.repeat(1, 2)]


def main() -> None:
    """Train, and leave a run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", type=Path, default=Path("runs/watched"))
    parser.add_argument("--steps", type=int, default=1200)
    options = parser.parse_args()

    words = {word: number for number, word in enumerate(WORDS)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token=".")), pad_token="."
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(WORDS), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=64,
        )
    )  # fmt: skip
    data = texts(16 * options.steps + 64)
    # Measured often, for smooth curves: a step of so small a model takes hardly longer.
    callback = headloom.MonitorCallback(options.run, every=20, overwrite=True)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, max_steps=options.steps, per_device_train_batch_size=16,
            learning_rate=2e-3, logging_steps=20, eval_strategy="steps", eval_steps=100,
            save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
        )  # fmt: skip
        trainer = Trainer(
            model, arguments, train_dataset=data[:-64], eval_dataset=data[-64:],
            callbacks=[callback], processing_class=tokenizer,
        )  # fmt: skip
        trainer.train()
    if callback.monitor is not None:
        share = 100 * callback.monitor.overhead
        print(f"The monitor took {share:.1f} % of the time: every 20 steps.")
    print(f"headloom view {options.run}")


if __name__ == "__main__":
    main()
