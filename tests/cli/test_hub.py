"""`weft push` and `weft pull` against a stand-in of the Hub on this machine."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from tests.cli.conftest import Command
from tests.cli.hub_stand_in import TOKEN, Hub, stand_in
from tests.forked import Loaded

import weft
from weft.formats.trace_writer import manifest_digest
from weft.jobs.hub_cards import run_card
from weft.training.config import PretrainedConfig
from weft.training.inference import open_run

pytest.importorskip("huggingface_hub")

#: Prints the names of the tables of a data set; loads each as the card says where it is, and prints
#: its rows and columns.
READER = """
import sys, datasets
print(*datasets.get_dataset_config_names(sys.argv[1]))
for name in sys.argv[2:]:
    table = datasets.load_dataset(sys.argv[1], name, split="train")
    print(table.num_rows, *table.column_names)
"""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with stand_in() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        for name in ("HF_HUB_OFFLINE",):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        yield hub


@pytest.fixture
def made(tmp_path: Path) -> Path:
    path = tmp_path / "made.weft"
    generator = torch.Generator().manual_seed(1)
    queries, keys = torch.randn(2, 2, 3, 6, 4, generator=generator)
    weft.from_queries_keys(
        queries, keys, tokens=["a", "ü", "`|", "<b>", "", "\ud800"], mask=weft.causal(), save=path
    )
    return path


def content(folder: Path) -> dict[str, bytes]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def test_a_trace_goes_and_comes_back(
    weft_main: Command, hub: Hub, made: Path, tmp_path: Path
) -> None:
    sent = weft_main("push", made, "me/traces", "--json")
    assert sent.code == 0, sent.err
    report = json.loads(sent.out.splitlines()[-1])
    assert report["kind"] == "dataset"
    assert report["url"] == f"{hub.url}/datasets/me/traces"
    files = hub.repositories["datasets/me/traces"]
    own = {name: data for name, data in files.items() if name.startswith("made.weft/")}
    assert (report["files"], report["bytes"]) == (len(own), sum(map(len, own.values())))
    assert set(content(made)) <= {name.removeprefix("made.weft/") for name in files}
    # Nothing that would have to be unpickled.
    assert {Path(name).suffix for name in files} <= {".json", ".parquet", ".safetensors", ".md", ""}
    for data in files.values():
        with pytest.raises((pickle.UnpicklingError, EOFError, ValueError, KeyError, IndexError)):
            pickle.loads(data)
    fetched = weft_main("pull", "me/traces", "-o", tmp_path / "back.weft")
    assert fetched.code == 0, fetched.err
    assert fetched.out == f"{tmp_path / 'back.weft'}: trace\n"
    assert content(tmp_path / "back.weft") == content(made)
    one, other = weft.open(made).layers[1].graph, weft.open(tmp_path / "back.weft").layers[1].graph
    assert torch.equal(one.weights, other.weights)
    assert not list(tmp_path.glob(".back*"))


def test_the_viewer_reads_every_table_that_the_card_names(
    loaded: Loaded, weft_main: Command, hub: Hub, made: Path, tmp_path: Path
) -> None:
    pytest.importorskip("datasets", reason="needs datasets, of Hugging Face")
    assert weft_main("push", made, "me/traces").code == 0
    for name, data in hub.repositories["datasets/me/traces"].items():
        file = tmp_path / "clone" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    rows = {
        name: pq.read_table(tmp_path / "clone" / "made.weft" / f"{name}.parquet")
        for name in ("edges", "rows", "layers", "tokens")
    }
    with loaded.start(tmp_path / "clone", *rows, program=READER) as process:
        out, errors = process.communicate()
        assert process.wait() == 0, errors
    names, *tables = out.decode().splitlines()
    assert names.split() == list(rows)
    assert tables == [
        " ".join([str(table.num_rows), *table.column_names]) for table in rows.values()
    ]
    assert rows["tokens"]["token"].to_pylist() == ["a", "ü", "`|", "<b>", "", "?"]


def test_several_traces_and_a_card_that_stays(
    weft_main: Command, hub: Hub, made: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    made.rename(folder / "one.weft")
    weft.from_queries_keys(
        *torch.randn(2, 1, 2, 5, 4), mask=weft.causal(), save=folder / "two.weft"
    )
    assert weft_main("push", folder, "me/traces", "--private").code == 0
    assert "datasets/me/traces" in hub.private
    files = hub.repositories["datasets/me/traces"]
    files["README.md"] = b"mine"
    files["two.weft/keys.parquet"] = b"of an earlier trace of this name"
    again = weft_main("push", folder / "two.weft", "me/traces")
    assert again.err == "Its README.md was there and stays as it is.\n"
    assert files["README.md"] == b"mine"
    assert "two.weft/keys.parquet" not in files
    assert weft_main("pull", "datasets/me/traces", "-o", tmp_path / "back").code == 0
    assert content(tmp_path / "back") == content(folder)


def test_a_card_says_what_a_run_does_and_what_it_began_from(
    weft_main: Command, tmp_path: Path
) -> None:
    (tmp_path / "texts.tsv").write_text("".join(f"{'ab'[n % 2]}\tword {n}\n" for n in range(20)))
    (tmp_path / "labels.toml").write_text(
        f'[task]\nkind = "labels"\ntrain = "{tmp_path}/texts.tsv"\n'
        "[model]\nwidth = 8\nheads = 2\nfeed_forward = 8\n[training]\nmax_steps = 1\n"
    )
    folder = tmp_path / "run"
    assert weft_main("train", tmp_path / "labels.toml", "--run", folder).code == 0
    run = open_run(folder)
    card = run_card("me/model", run, None)
    assert "pipeline_tag: text-classification" in card
    assert "A model trained from random matrices by weft" in card
    config = run.config.model_copy(update={"model": PretrainedConfig(folder="bert")})
    card = run_card("me/model", replace(run, config=config), None)
    assert "A model of Transformers, trained further by weft" in card


def test_a_run_goes_and_comes_back(
    weft_main: Command, hub: Hub, runs: Path, tmp_path: Path
) -> None:
    run = runs / "translation"
    sent = weft_main("push", run, "me/model", "--history")
    assert sent.code == 0, sent.err
    assert f"paths of this machine: {runs.parent}" in sent.err
    files = hub.repositories["models/me/model"]
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= set(files)
    assert "weft/checkpoint.safetensors" not in files
    card = files["README.md"].decode()
    assert "pipeline_tag: translation" in card
    assert "library_name: transformers" in card
    assert weft_main("pull", "me/model", "-o", tmp_path / "run").code == 0
    for place in (run, tmp_path / "run"):
        (tmp_path / "lines").write_text("the cat sees the dog\n")
        result = weft_main("translate", place, "--file", tmp_path / "lines", "--json")
        assert result.code == 0, result.err
        if place == run:
            expected = result.out
    assert result.out == expected
    assert weft.History(tmp_path / "run" / "history").steps == weft.History(run / "history").steps
    # Without the history, and what Transformers opens.
    assert weft_main("push", run, "me/small").code == 0
    assert not [name for name in hub.repositories["models/me/small"] if "history" in name]
    transformers = pytest.importorskip("transformers")
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "clone").mkdir(exist_ok=True)
        (tmp_path / "clone" / name).write_bytes(files[name])
    opened = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "clone")
    assert sum(parameter.numel() for parameter in opened.parameters()) > 0


def test_damage_on_the_way(weft_main: Command, hub: Hub, made: Path, tmp_path: Path) -> None:
    assert weft_main("push", made, "me/traces").code == 0
    files = hub.repositories["datasets/me/traces"]
    edges = files["made.weft/edges.parquet"]
    files["made.weft/edges.parquet"] = edges[:40] + bytes([edges[40] ^ 1]) + edges[41:]
    line = weft_main("pull", "me/traces", "-o", tmp_path / "back.weft").one_line()
    assert line == (
        "weft: me/traces: made.weft/edges.parquet: this trace is damaged: the file does not match "
        "its digest. Pull again, or push it anew."
    )
    assert "back.weft-part" not in str(list(tmp_path.iterdir()))
    assert not (tmp_path / "back.weft").exists()
    del files["made.weft/trace.json"]
    assert "holds no trace of weft's" in weft_main("pull", "me/traces", "-o", "x").one_line()
    hub.repositories["models/me/other"] = {"config.json": b"{}"}
    line = weft_main("pull", "me/other", "-o", tmp_path / "other").one_line()
    assert "holds no run of weft's" in line
    hub.repositories["models/me/traces"] = {}
    line = weft_main("pull", "me/traces", "-o", "x").one_line()
    assert "a data set and a model of this name" in line


def test_half_a_file_is_said_of_the_repository(
    weft_main: Command, hub: Hub, made: Path, runs: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Not of the place where it lay meanwhile, which is gone; also where the output is relative."""
    monkeypatch.chdir(tmp_path)
    assert weft_main("push", made, "me/traces").code == 0
    assert weft_main("push", runs / "translation", "me/model").code == 0
    traces, model = "datasets/me/traces", "models/me/model"
    for kind, file, expected in (
        (traces, "made.weft/edges.parquet", "made.weft: this trace is damaged: edges.parquet has "),
        (traces, "made.weft/trace.json", "made.weft/trace.json: this trace is damaged: line "),
        (model, "weft/config.json", "weft/config.json: this configuration is damaged: line "),
        (model, "weft/best.safetensors", "weft/best.safetensors: this checkpoint is damaged "),
    ):
        files = hub.repositories[kind]
        whole = files[file]
        files[file] = whole[: len(whole) // 2]
        for output in ("out", tmp_path / "out"):
            line = weft_main("pull", kind, "-o", output).one_line()
            assert line.startswith(f"weft: {kind.split('/', 1)[1]}: {expected}")
            assert line.endswith(". Pull again, or push it anew.")
            assert "fetched" not in line
            assert "part-" not in line
        files[file] = whole


def test_a_newer_version_keeps_its_remedy(
    weft_main: Command, hub: Hub, made: Path, tmp_path: Path
) -> None:
    assert weft_main("push", made, "me/traces").code == 0
    files = hub.repositories["datasets/me/traces"]
    manifest = json.loads(files["made.weft/trace.json"])
    files["made.weft/trace.json"] = json.dumps({**manifest, "version": 99}).encode()
    line = weft_main("pull", "me/traces", "-o", tmp_path / "x").one_line()
    assert line.startswith("weft: me/traces: made.weft: a trace of version 99, made by weft ")
    assert line.endswith("Upgrade weft: pip install -U weft.")


@pytest.mark.parametrize("name", ["a[1].weft", "*.weft", "?1.weft", "[!x]*", "a.weft"])
def test_a_name_is_no_pattern(
    weft_main: Command, hub: Hub, made: Path, tmp_path: Path, name: str
) -> None:
    """What lies on the Hub beside a trace that is sent stays, whatever its name would match."""
    assert weft_main("push", made, "me/traces").code == 0
    files = hub.repositories["datasets/me/traces"]
    others = [f"{other}/{file}" for other in ("a1.weft", "b1.weft") for file in ("x", "trace.json")]
    others += ["1.weft/edges.parquet", "sub/a.weft/edges.parquet", f"{name}/sub/edges.parquet"]
    stay = dict.fromkeys([*others, f"{name}/notes.txt", "list.md"], b"of others") | files
    files.update(stay)
    files[f"{name}/keys.parquet"] = b"of an earlier trace of this name"
    made.rename(tmp_path / name)
    assert weft_main("push", tmp_path / name, "me/traces").code == 0
    assert {file: files.get(file) for file in stay} == stay
    sent = {file for file in files if file.startswith(f"{name}/")} - set(stay)
    assert sent >= {f"{name}/{file}" for file in content(tmp_path / name)}
    assert f"{name}/keys.parquet" not in files


def test_a_run_that_is_sent_again_replaces_what_it_had(
    weft_main: Command, hub: Hub, runs: Path
) -> None:
    assert weft_main("push", runs / "language", "me/model", "--history").code == 0
    files = hub.repositories["models/me/model"]
    snapshots = {file for file in files if file.startswith("weft/history/")}
    assert snapshots
    files["weft/notes.md"] = files["weft-notes.md"] = b"mine"
    files["weft/probe.safetensors"] = b"of an earlier run"
    assert weft_main("push", runs / "language", "me/model").code == 0
    assert not snapshots & set(files)
    assert "weft/probe.safetensors" not in files
    assert files["weft/notes.md"] == files["weft-notes.md"] == b"mine"


def test_names_are_those_that_one_sees(
    weft_main: Command, hub: Hub, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Links to traces whose folders have one name, and the folder that one stands in."""
    folder = tmp_path / "links"
    folder.mkdir()
    for place, link in (("x", "one.weft"), ("y", "two.weft")):
        target = tmp_path / place / "t.weft"
        target.parent.mkdir()
        weft.from_queries_keys(*torch.randn(2, 1, 2, 5, 4), mask=weft.causal(), save=target)
        (folder / link).symlink_to(target)
    assert weft_main("push", folder, "me/links").code == 0
    files = hub.repositories["datasets/me/links"]
    assert {file.split("/")[0] for file in files if "/" in file} == {"one.weft", "two.weft"}
    assert "`one.weft`" in files["README.md"].decode()
    assert weft_main("pull", "me/links", "-o", tmp_path / "back").code == 0
    assert content(tmp_path / "back" / "one.weft") == content(tmp_path / "x" / "t.weft")
    assert content(tmp_path / "back" / "two.weft") == content(tmp_path / "y" / "t.weft")
    (made / "deep").mkdir()
    for here, path in ((made, "."), (made / "deep", ".."), (tmp_path, "made.weft/deep/..")):
        monkeypatch.chdir(here)
        assert weft_main("push", path, "me/one").code == 0
        files = hub.repositories.pop("datasets/me/one")
        assert {file.split("/")[0] for file in files if "/" in file} == {"made.weft"}


@pytest.mark.skipif(os.name == "nt", reason="such names cannot be there")
@pytest.mark.parametrize("name", ["a\\b.weft", "c:x.weft"])
def test_a_name_that_pull_would_not_take_is_not_sent(
    weft_main: Command, hub: Hub, made: Path, tmp_path: Path, name: str
) -> None:
    made.rename(tmp_path / name)
    line = weft_main("push", tmp_path / name, "me/traces").one_line()
    assert "takes no trace of this name" in line
    assert "datasets/me/traces" not in hub.repositories


@pytest.mark.parametrize("name", ["../secret.txt", "notes.txt", "SECRET"])
def test_a_forged_manifest_sends_and_fetches_nothing_else(
    weft_main: Command, hub: Hub, made: Path, tmp_path: Path, name: str
) -> None:
    """Sealed as weft seals it, it names a file that is none of a trace's."""
    name = str(tmp_path / "secret.txt") if name == "SECRET" else name
    (tmp_path / "secret.txt").write_text("of somebody")
    (made / "notes.txt").write_text("of somebody")
    assert weft_main("push", made, "me/traces").code == 0
    manifest = json.loads((made / "trace.json").read_text())
    manifest["files"][name] = {"bytes": 11}
    manifest["sha256"] = manifest_digest(manifest)
    (made / "trace.json").write_text(json.dumps(manifest))
    assert len(weft.open(made).layers) == 2  # all else is as it should be
    expected = "which is no file of a trace"
    assert expected in weft_main("push", made, "me/more").one_line()
    assert "datasets/me/more" not in hub.repositories
    hub.repositories["datasets/me/traces"]["made.weft/trace.json"] = (
        made / "trace.json"
    ).read_bytes()
    assert expected in weft_main("pull", "me/traces", "-o", tmp_path / "y").one_line()
    assert not (tmp_path / "y").exists()


def test_a_listing_leads_nowhere_else(
    weft_main: Command, hub: Hub, made: Path, runs: Path, tmp_path: Path
) -> None:
    """Names of files that lead out of the folder, or that no trace and no run has."""
    assert weft_main("push", made, "me/traces").code == 0
    assert weft_main("push", runs / "translation", "me/model").code == 0
    for kind, names in (
        ("datasets/me/traces", (
            "../trace.json", "../../evil.weft/trace.json", "/etc/evil.weft/trace.json",
            "evil.weft/../../trace.json", "..\\x/trace.json", "deep/er.weft/trace.json",
            "made.weft/more.json", "made.weft/a\0b.json",
        )),
        ("models/me/model", (
            "weft/../evil.json", "weft/../../evil.json", "weft/more.json", "weft/history/evil.sh",
            "weft/history/../../../evil.safetensors",
        )),
    ):  # fmt: skip
        files = hub.repositories[kind]
        for name in names:
            files[name] = b"{}"
        hub.asked.clear()
        output = tmp_path / "deep" / kind[:4]
        output.parent.mkdir(exist_ok=True)
        result = weft_main("pull", kind, "-o", output)
        assert (result.code, result.err) == (0, "")
        assert not [name for name in names if any(name in path for path in hub.asked)]
        assert not [path for path in tmp_path.rglob("*") if "evil" in path.name]


def test_half_a_file_is_none(
    weft_main: Command, hub: Hub, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run has no digests: what the Hub says of a size, and the weights' own, must fit."""
    assert weft_main("push", runs / "translation", "me/model").code == 0
    files = hub.repositories["models/me/model"]
    whole = files["weft/best.safetensors"]
    files["weft/best.safetensors"] = whole[: len(whole) // 2]
    weft_main("pull", "me/model", "-o", tmp_path / "run").one_line()
    assert not [path.name for path in tmp_path.iterdir() if "run" in path.name]
    files["weft/best.safetensors"] = whole
    assert weft_main("pull", "me/model", "-o", tmp_path / "run").code == 0
    assert not list((tmp_path / "run").glob(".*"))


def test_no_token_is_ever_shown(
    weft_main: Command, hub: Hub, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = []

    def line(*words: object) -> str:
        result = weft_main(*words)
        said.append(result.out + result.err)
        return result.one_line()

    assert "does not allow this" in line("push", made, "other/theirs")
    assert "no such repository that you may read" in line("pull", "me/none", "-o", tmp_path / "x")
    monkeypatch.setenv("HF_TOKEN", "hf_wrongWRONGwrong")
    assert "does not know who asks. Log in" in line("push", made, "me/traces")
    monkeypatch.setenv("HF_ENDPOINT", "http://name:passpass@127.0.0.1:9")
    assert "http://127.0.0.1:9 cannot be reached" in line("push", made, "me/traces")
    for address in ("http://name:passpass@[bad", "name:passpass", "ftp://passpass@x", "http://x:y"):
        monkeypatch.setenv("HF_ENDPOINT", address)
        assert "HF_ENDPOINT: expected an address" in line("pull", "me/x", "-o", tmp_path / "x")
    for text in said:
        assert not {"hf_secret", "SECRET", "hf_wrong", "WRONG", "passpass"} & {
            part
            for part in ("hf_secret", "SECRET", "hf_wrong", "WRONG", "passpass")
            if part in text
        }


@pytest.mark.parametrize(
    "name",
    [
        "", "one", "a/b/c", "../x", "a/..", "a b/c", "spaces/a/b", "me/a--b", "me/a..b", "me/a.",
        "me/a.git", "me-/a", "me/" + "a" * 97, "me/ü",
    ],
)  # fmt: skip
def test_names_that_are_none(weft_main: Command, made: Path, tmp_path: Path, name: str) -> None:
    for words in (("push", made, name), ("pull", name, "-o", tmp_path / "x")):
        assert (
            "expected the name of a repository on the Hub, OWNER/NAME"
            in weft_main(*words).one_line()
        )


def test_what_cannot_be_sent(weft_main: Command, hub: Hub, made: Path, tmp_path: Path) -> None:
    assert "no such trace or run. Check" in weft_main("push", tmp_path / "no", "me/x").one_line()
    (tmp_path / "empty").mkdir()
    assert "no trace is in it" in weft_main("push", tmp_path / "empty", "me/x").one_line()
    assert "is for a dataset" in weft_main("push", made, "models/me/x").one_line()
    (made / "rows.parquet").write_bytes((made / "rows.parquet").read_bytes()[:-1] + b"?")
    assert "damaged" in weft_main("push", made, "me/x").one_line()
    (tmp_path / "there").mkdir()
    assert "exists" in weft_main("pull", "me/x", "-o", tmp_path / "there").one_line()
    assert not hub.repositories
