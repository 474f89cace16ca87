"""Times of words in the cross-attention of a small Whisper that learned to write tones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import headloom

FRAMES, TONES, STEPS = 40, 8, 1_500
HEADS = [("cross", 0, 0), ("cross", 0, 1)]


def batch(size: int, random: torch.Generator) -> tuple[Tensor, Tensor, list[list[float]]]:
    """Sequences of 3 to 6 tones of 3 to 6 frames each, no tone twice in a row, with noise.

    Returns: spectra of two rows a frame, the tones with an end, and the frames where tones begin.
    """

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=random))

    spectra = torch.zeros(size, TONES, 2 * FRAMES)
    labels, starts = torch.full((size, 7), -100), []
    for row, spectrum in enumerate(spectra):
        at, last, own = 0, -1, []
        for place in range(number(3, 7)):
            tone = number(0, TONES)
            tone = (tone + 1) % TONES if tone == last else tone
            length = 2 * number(3, 7)
            spectrum[tone, at : at + length] = 1
            labels[row, place], last = tone + 3, tone
            own.append(at / 2)
            at += length
        labels[row, len(own)] = 2
        starts.append(own)
    return spectra + 0.1 * torch.randn(spectra.shape, generator=random), labels, starts


def learned() -> Any:
    torch.manual_seed(0)
    config = transformers.WhisperConfig(
        vocab_size=12, num_mel_bins=TONES, d_model=64, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=128,
        decoder_ffn_dim=128, max_source_positions=FRAMES, max_target_positions=12, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, suppress_tokens=None,
        begin_suppress_tokens=None, dropout=0.0,
    )  # fmt: skip
    model = transformers.WhisperForConditionalGeneration._from_config(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    random = torch.Generator().manual_seed(0)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = 2e-3 * min(1, (step + 1) / 30) * (1 - step / STEPS)
        spectra, labels, _ = batch(32, random)
        optimizer.zero_grad()
        model(input_features=spectra, labels=labels).loss.backward()
        optimizer.step()
    return model.eval()


@pytest.mark.slow
def test_tones_begin_within_a_frame() -> None:
    model = learned()
    spectra, labels, starts = batch(16, torch.Generator().manual_seed(9))
    with headloom.live(model, HEADS) as live:
        written = model.generate(input_features=spectra, max_new_tokens=8, do_sample=False)
    for sample, begins in enumerate(starts):
        count = len(begins)
        tones = labels[sample, :count]
        assert torch.equal(written[sample, :count], tones)
        history = [list(live.history[head])[: count + 1] for head in HEADS]
        table = headloom.rows.word_timestamps(
            history, [f" {tone}" for tone in tones.tolist()], seconds=1.0, median=1, sample=sample
        )
        off = [abs(found - right) for found, right in zip(table["start"], begins, strict=True)]
        assert max(off) <= 1
