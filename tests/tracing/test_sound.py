"""The time axis of models of sound: a tone that starts at a known time is where the axis says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import headloom

transformers = pytest.importorskip("transformers")

RATE = 16_000


def tone(start: float, seconds: float) -> np.ndarray:
    """Silence, and from a time on 440 Hz."""
    times = np.arange(round(seconds * RATE)) / RATE
    return np.where(times >= start, np.sin(2 * np.pi * 440 * times), 0).astype(np.float32)


def whisper(frames: int) -> torch.nn.Module:
    torch.manual_seed(2)
    config = transformers.WhisperConfig(
        vocab_size=60, d_model=32, encoder_layers=2, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, num_mel_bins=80,
        max_source_positions=frames // 2, max_target_positions=16, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    return transformers.WhisperModel(config).eval()


CONVOLUTIONS = {
    "feat_extract_norm": "layer",
    "conv_dim": (32, 32, 32, 32, 32, 32, 32),
    "conv_kernel": (10, 3, 3, 3, 3, 2, 2),
    "conv_stride": (5, 2, 2, 2, 2, 2, 2),
}


@pytest.mark.parametrize("family", ["Wav2Vec2", "Hubert", "UniSpeech"])
def test_the_first_position_that_a_tone_changes_is_that_which_reaches_its_start(family) -> None:
    torch.manual_seed(2)
    config = getattr(transformers, f"{family}Config")(
        vocab_size=30, hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
        intermediate_size=48, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=2,
        **CONVOLUTIONS,
    )  # fmt: skip
    model = getattr(transformers, f"{family}Model")(config).eval()
    # What the convolutions give, before positions are mixed in by another one.
    features = []
    model.feature_projection.register_forward_pre_hook(lambda _, args: features.append(args[0]))
    start = 0.5
    for began in (start, 9.0):
        wave = torch.from_numpy(tone(began, 1.0)) + 0.01
        trace = headloom.trace(model, {"input_values": wave[None]}, verify=False)
    differs = (features[0] - features[-1]).abs().amax((0, 2)) > 1e-6
    seconds = np.array(trace.positions["tokens"]["seconds"])
    assert len(seconds) == 49
    # 400 samples to a position, 320 from one to the next: the middle of the first is at 199.5.
    assert seconds[0] == pytest.approx(199.5 / RATE, abs=1e-6)
    np.testing.assert_allclose(np.diff(seconds), 0.02, atol=2e-6)
    assert trace.tokens[:2] == ["0.012 s", "0.032 s"]
    reaches = seconds + 199.5 / RATE >= start - 1e-6
    assert differs.tolist() == reaches.tolist()


def test_seconds_are_saved_and_asked(tmp_path: Path) -> None:
    inputs = {"input_features": torch.randn(1, 80, 20), "decoder_input_ids": torch.tensor([[1]])}
    headloom.trace(whisper(20), inputs).save(tmp_path / "t")
    trace = headloom.open(tmp_path / "t")
    assert trace.positions["source"]["seconds"] == pytest.approx([i * 0.02 for i in range(10)])
    found = trace.query("select seconds from tokens where sequence = 'source' order by position")
    assert found["seconds"].tolist() == trace.positions["source"]["seconds"]
