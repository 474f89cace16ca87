"""benchmarks/evidence/alignment.py: the verses and their links, from a small copy of its data."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
from tests.scripts.test_evidence import program as program

GREEK = """id\taltId\ttext
n40001001001\ta\tΒίβλος
n40001001002\tb\tγενέσεως
n40001002001\tc\tἈβραὰμ
"""
ENGLISH = """id\tsource_verse\ttext\tskip_space_after\texclude
40001001001\t40001001\tThis\t\t
40001001002\t40001001\t,\t\ty
40001001003\t40001001\tgenealogy\t\t
40001002001\t40001002\tAbraham\t\t
"""


@pytest.mark.parametrize("program", ["alignment"], indirect=True)
def test_verses_are_words_in_lower_case_with_the_links_that_people_drew(
    program: ModuleType, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    for name, text in (("sources/SBLGNT.tsv", GREEK), ("eng/targets/BSB/nt_BSB.tsv", ENGLISH)):
        (data / name).parent.mkdir(parents=True)
        (data / name).write_text(text, "utf-8")
    records = [
        {"source": ["n40001001001"], "target": ["40001001001", "40001001002"]},
        {"source": ["n40001001001", "n40001001002"], "target": ["40001001003"]},
    ]
    path = data / "eng/alignments/BSB/SBLGNT-BSB-manual.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"records": records}), "utf-8")
    corpus, gold = program.verses(tmp_path)
    # The second verse has no links; the comma is no word.
    assert corpus.sources == ["βίβλος γενέσεως"]
    assert corpus.targets == ["this genealogy"]
    assert [sorted(links.sure) for links in gold] == [[(0, 0), (0, 1), (1, 1)]]
    assert gold[0].possible == gold[0].sure
    assert corpus.tested == 1
