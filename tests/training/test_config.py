"""Configurations: what is wrong is named, with the nearest known."""

from __future__ import annotations

from pathlib import Path

import pytest

from headloom.errors import DataError, InputError
from headloom.training.config import RunConfig, check_config, load_config
from headloom.training.sections import DatesConfig, LanguageConfig, TranslationConfig

ROOT = Path(__file__).parents[2]


def load(folder: Path, text: str, *overrides: str) -> RunConfig:
    path = folder / "c.toml"
    path.write_text(text)
    return load_config(path, overrides)


def test_values_arrive(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        '[task]\nkind = "translation"\ntrain = ["a", "b"]\nvalid = "c"\n'
        '[model]\nkv_heads = 2\npositions = "buckets"\nbuckets = 8\nmax_distance = 20\n'
        "[training]\nbetas = [0.8, 0.9]\npeak_learning_rate = 1\n",
    )
    assert isinstance(config.task, TranslationConfig)
    assert (config.task.train, config.task.valid, config.task.test) == (["a", "b"], ["c"], None)
    assert config.training.betas == (0.8, 0.9)
    assert config.training.peak_learning_rate == 1.0
    architecture = config.model.architecture()
    assert (architecture.kv_heads, architecture.relative) == (2, "buckets")
    assert (architecture.buckets, architecture.max_distance) == (8, 20)


def test_a_model_without_a_kind_has_that_of_its_task(tmp_path: Path) -> None:
    for text in ('[task]\nkind = "dates"\n[model]\nwidth = 8', '[task]\nkind = "dates"'):
        assert load(tmp_path, text).model.kind == "transformer"
    labels = '[task]\nkind = "labels"\ntrain = "a"\n[model]\n'
    assert load(tmp_path, labels + "width = 8").model.kind == "classifier"
    assert load(tmp_path, labels + 'folder = "b"').model.kind == "pretrained"


def test_what_is_kept_of_a_run_gives_it_back() -> None:
    for task in (DatesConfig(), LanguageConfig(kind="language", file="x")):
        config = RunConfig(task=task)
        assert check_config(config.model_dump(mode="json"), "x") == config
    # A key that came later has its default.
    assert check_config({"task": {"kind": "dates"}, "training": {"seed": 1}}, "x").training.history


DATES = '[task]\nkind = "dates"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'task' is missing. Add it."),
        ("[training]\nseed", "not TOML: "),
        (DATES + "[training]\nsede = 1", "unknown key 'training.sede'; did you mean 'seed'?"),
        (DATES + "zzz = 1", "unknown key 'task.zzz'; known are kind, train_examples,"),
        (DATES + "[a]\n[b]", "unknown key 'a'; known are task, model, training. (1 more after"),
        ('[task]\nkind = "language"', "'task.file' is missing. Add it."),
        ('[task]\nkind = "translaton"', "task.kind is 'translaton'; expected one of dates, tran"),
        (
            DATES + '[model]\nkind = "classifier"',
            "model.kind is 'classifier', task.kind 'dates', which is learned by 'transformer'.",
        ),
        (DATES + "[model]\nwidth = 0", "model.width = 0: input should be greater than or equal"),
        (DATES + "[training]\nseed = 1979-05-27", "training.seed = '1979-05-27': input should be"),
        (DATES + "[training]\nbetas = [0.9, 1.0]", "training.betas[1] = 1.0: input should be less"),
        (
            DATES + "[model]\nheads = 3\nkv_heads = 2\nwidth = 48",
            "model.kv_heads 2 does not divide",
        ),
        (
            DATES + '[model]\npositions = "rotary"\nrotary_scaling = { kind = "yarn", factor = 4 }',
            'RotaryScaling: kind="yarn" without original_length=, the length that the model was',
        ),
        (
            '[task]\nkind = "translation"\ntrain = []\nvalid = ["a"]',
            "task.train = []: list should have at least 1 item",
        ),
    ],
)
def test_what_is_wrong_is_one_line_that_names_it(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / 'c.toml'}: {message}")
    assert "\n" not in str(caught.value)


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no\.toml: no such configuration\. Check the path\."):
        load_config(tmp_path / "no.toml")
    (tmp_path / "c.toml").write_bytes(b"# caf\xe9")
    with pytest.raises(DataError, match="line 1 is not UTF-8"):
        load_config(tmp_path / "c.toml")


def test_overrides(tmp_path: Path) -> None:
    config = load(
        tmp_path, "[training]\nseed = 1\n", "training.seed=7", "model.norm=post",
        'model.positions = "shaw"', "training.betas=[0.5, 0.6]", "training.history=false",
        "task.kind=language", "task.file=a=b.txt",
    )  # fmt: skip
    assert (config.training.seed, config.training.history) == (7, False)
    assert config.training.betas == (0.5, 0.6)
    assert (config.model.norm, config.model.positions) == ("post", "shaw")
    assert isinstance(config.task, LanguageConfig)
    assert config.task.file == "a=b.txt"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.seed", "expected section.key=value, as in training.seed=2"),
        ("=3", "expected section.key=value"),
        ("training.sede=3", "c.toml with --set: unknown key 'training.sede'; did you mean 'seed'"),
        ("training.seed.x=3", "'seed' is a value, not a section"),
        ("training.seed=three", "training.seed = 'three': input should be a valid"),
    ],
)
def test_overrides_that_are_wrong(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(tmp_path, DATES + "[training]\nseed = 1\n", override)


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/*.toml")), ids=lambda path: path.stem)
def test_an_example_is_a_valid_configuration(path: Path) -> None:
    assert load_config(path)


def test_the_dates_example_is_what_the_demo_trains() -> None:
    example, demo = (ROOT / "examples/dates.toml", ROOT / "src/headloom/training/demo.toml")
    assert load_config(example) == load_config(demo)
