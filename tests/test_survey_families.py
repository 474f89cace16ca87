"""The survey of families, on a sample of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "survey_families.py"
SAMPLE = {
    "bert": "exact", "llama": "exact", "t5": "exact", "pixtral": "exact", "segformer": "exact",
    "splinter": "exact", "nllb-moe": "exact", "longt5": "exact", "pvt": "dense", "xlnet": "dense",
    "openai-gpt": "dense", "bloom": "dense", "fnet": "refused", "convnext": "refused",
}  # fmt: skip


@pytest.mark.slow
def test_a_sample_of_families_is_as_the_page_says(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    done = subprocess.run(
        [sys.executable, SCRIPT, "--only", ",".join(SAMPLE), "--json", tmp_path / "found.json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = {r["family"]: r for r in json.loads((tmp_path / "found.json").read_text("utf-8"))}
    assert {family: results[family]["outcome"] for family in SAMPLE} == SAMPLE
    assert results["longt5"]["not_traced"]
    for result in results.values():
        if result["outcome"] in ("exact", "dense"):
            assert result["difference"] <= 2e-5
            assert result["layers"] > 0
