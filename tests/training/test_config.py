"""Configurations: what is wrong is named, with the nearest known."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from headloom.errors import DataError, InputError
from headloom.training.config import (
    DatesConfig,
    LanguageConfig,
    RunConfig,
    TranslationConfig,
    check_config,
    load_config,
)


def write(folder: Path, text: str) -> Path:
    path = folder / "c.toml"
    path.write_text(text)
    return path


def test_nothing_given_is_the_dates_task(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, "")) == RunConfig()
    assert isinstance(RunConfig().task, DatesConfig)


def test_values_arrive(tmp_path: Path) -> None:
    config = load_config(
        write(
            tmp_path,
            '[task]\nkind = "translation"\ntrain = ["a", "b"]\nvalid = ["c"]\n'
            '[model]\nkv_heads = 2\npositions = "shaw"\n'
            "[training]\nbetas = [0.8, 0.9]\npeak_learning_rate = 1\n",
        )
    )
    assert isinstance(config.task, TranslationConfig)
    assert (config.task.train, config.task.valid, config.task.test) == (["a", "b"], ["c"], None)
    assert config.training.betas == (0.8, 0.9)
    assert config.training.peak_learning_rate == 1.0
    architecture = config.model.architecture()
    assert (architecture.kv_heads, architecture.positions) == (2, "shaw")


def test_buckets_arrive(tmp_path: Path) -> None:
    text = '[model]\npositions = "buckets"\nbuckets = 8\nmax_distance = 20\n'
    for task in ("", '[task]\nkind = "labels"\ntrain = "a.tsv"\n'):
        architecture = load_config(write(tmp_path, task + text)).model.architecture()
        assert architecture.positions == architecture.relative == "buckets"
        assert (architecture.buckets, architecture.max_distance) == (8, 20)


def test_a_model_without_a_kind_has_that_of_its_task(tmp_path: Path) -> None:
    for text, named in (("[model]\nwidth = 8", {"model"}), ("", set())):
        config = load_config(write(tmp_path, text))
        assert config.model_fields_set == named
        assert config.model.kind == "transformer"
    # As earlier versions wrote config.json.
    saved = config.model_dump(mode="json")
    del saved["model"]["kind"]
    assert check_config(saved, "x") == config


def test_a_run_that_ignored_its_floor_stays_readable() -> None:
    assert check_config({"training": {"floor": 0.1}}, "x").training.floor == 0.1


def test_what_is_kept_of_a_run_gives_it_back() -> None:
    for task in (
        DatesConfig(),
        TranslationConfig(kind="translation", train=["a"], valid=["b"]),
        LanguageConfig(kind="language", file="x"),
    ):
        config = RunConfig(task=task)
        assert check_config(config.model_dump(mode="json"), "x") == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[training]\nfloor = 0.1",
            'training.floor: nothing reads it where training.schedule is "inverse-sqrt". Leave it',
        ),
        (
            '[training]\nschedule = "constant"\nfloor = 1',
            'training.floor: nothing reads it where training.schedule is "constant". Leave it out.',
        ),
        (
            "[training]\nwarmup = 11\nmax_steps = 10",
            "training.warmup: it is more than training.max_steps = 10. Lower it.",
        ),
        (
            '[task]\nkind = "labels"\ntrain = "a"\nvalid = "b"\ntest = "c"\nsplit_seed = 1',
            'task.split_seed: nothing reads it where task.test is "c". Leave it out.',
        ),
        (
            '[task]\nkind = "labels"\ntrain = "a"\nvocabulary = 300\n[model]\nfolder = "b"',
            'task.vocabulary: nothing reads it where model.kind is "pretrained". Leave it out.',
        ),
        (
            '[task]\nkind = "nodes"\ngraph = "a"\n[training]\nbatch_tokens = 1',
            'training.batch_tokens: nothing reads it where task.kind is "nodes". Leave it out.',
        ),
        (
            "[training]\nhistory = false\nhistory_growth = 2.0",
            "training.history_growth: nothing reads it where training.history is false. Leave it",
        ),
        (
            '[training]\noptimiser = "adam"\nmatrix_learning_rate = 0.1',
            'training.matrix_learning_rate: nothing reads it where training.optimiser is "adam".',
        ),
        (
            '[task]\nkind = "translation"\ntrain = "a"\nvalid = "b"\nlength_penalty = -1',
            "task.length_penalty = -1: input should be greater than or equal to 0.",
        ),
        ("[training]\nsede = 1", "unknown key 'training.sede'; did you mean 'seed'?"),
        ("[model]\nwdith = 1", "unknown key 'model.wdith'; did you mean 'width'?"),
        ("[trainning]\nseed = 1", "unknown key 'trainning'; did you mean 'training'?"),
        (
            '[task]\nkind = "language"\nfile = "x"\nblok = 3',
            "unknown key 'task.blok'; did you mean 'block'?",
        ),
        (
            '[task]\nkind = "dates"\ntrain_exmaples = 3',
            "unknown key 'task.train_exmaples'; did you mean 'train_examples'?",
        ),
        ("zzz = 1", "unknown key 'zzz'; known are task, model, training."),
        ('[task]\nkind = "language"', "'task.file' is missing. Add it."),
        (
            '[task]\nkind = "translaton"',
            "task.kind is 'translaton'; expected one of dates, translation, language, repeats, "
            "labels, nodes, images; did you mean 'translation'?",
        ),
        (
            "[task]\nfile = 3",
            "task.kind is None; expected one of dates, translation, language, repeats, labels, "
            "nodes, images.",
        ),
        (
            '[model]\nkind = "clasifier"',
            "model.kind is 'clasifier'; expected one of transformer, classifier, convolutional, "
            "vision-transformer, graph, pretrained; did you mean 'classifier'?",
        ),
        (
            '[model]\nkind = "classifier"',
            "model.kind is 'classifier', task.kind 'dates', which is learned by 'transformer'. "
            "Leave model.kind out, or choose another task.",
        ),
        (
            '[model]\nkind = "classifier"\nlayer = 3',
            "unknown key 'model.layer'; did you mean 'layers'?",
        ),
        ("[model]\nwidth = 0", "model.width = 0: input should be greater than or equal to 1."),
        ("[model]\nwidth = 1.5", "model.width = 1.5: input should be a valid integer"),
        ('[model]\nwidth = "8"', "model.width = '8': input should be a valid integer"),
        ("[model]\ndropout = 1", "model.dropout = 1: input should be less than 1."),
        ('[model]\nnorm = "both"', "model.norm = 'both': input should be 'pre' or 'post'."),
        ("model = 3", "model = 3: input should be"),
        ("[training]\nseed = true", "training.seed = True: input should be a valid integer"),
        ("[training]\nbetas = [0.5]", "'training.betas[1]' is missing. Add it."),
        ("[training]\nseed = 1979-05-27", "training.seed = '1979-05-27': input should be"),
        ("[training]\npeak_learning_rate = nan", "training.peak_learning_rate"),
        ("[training]\nbetas = [0.9, 1.0]", "training.betas[1] = 1.0: input should be less"),
        ("[training]\nseed = 9223372036854775808", "training.seed = 9223372036854775808"),
        ("[model]\nwidth = 1000000000", "model.width = 1000000000: input should be less"),
        ("[training]\nepsilon = 1e-50", "training.epsilon = 1e-50: input should be greater"),
        ("[training]\nbatch_tokens = 1000000000000", "training.batch_tokens = 1000000000000"),
        (
            "[model]\nheads = 3\nkv_heads = 2\nwidth = 48",
            "model.kv_heads 2 does not divide model.heads = 3. Choose a divisor",
        ),
        (
            '[model]\nheads = 2\nwidth = 6\npositions = "rotary"',
            "model.width 6, model.heads 2: each head has 3 coordinates, an odd number, and rotary "
            "positions turn them in pairs. Choose a model.width that is a multiple of 4.",
        ),
        (
            '[model]\npositions = "buckets"\nbuckets = 3',
            "model.buckets: 3 buckets with max_distance=128; expected 4 buckets or more",
        ),
        (
            '[model]\npositions = "buckets"\nmax_distance = 16',
            "model.buckets: 32 buckets with max_distance=16; expected 2 buckets or more, and a "
            "max_distance above 16",
        ),
        (
            '[model.rotary_scaling]\nkind = "linear"\nfactor = 4',
            'Architecture: model.rotary_scaling with model.positions "sinusoidal", which turns',
        ),
        (
            '[model]\npositions = "rotary"\nrotary_scaling = { kind = "yarn", factor = 4 }',
            'RotaryScaling: kind="yarn" without original_length=, the length that the model was',
        ),
        (
            '[model]\npositions = "rotary"\nrotary_scaling = { kind = "dynamic", factor = 4 }',
            "model.rotary_scaling.kind = 'dynamic': input should be 'linear', 'ntk', 'llama3' or",
        ),
        (
            '[model]\npositions = "rotary"\nrotary_scaling = { kind = "ntk", factor = 4, s = 2 }',
            "unknown key 'model.rotary_scaling.s'; known are kind, factor, original_length, slow,",
        ),
        (
            '[task]\nkind = "translation"\ntrain = []\nvalid = ["a"]',
            "task.train = []: expected two line-aligned files, or one of tab-separated pairs.",
        ),
        (
            '[task]\nkind = "translation"\ntrain = ["a"]\nvalid = ["a"]\ntest = ["a", "b", "c"]',
            "task.test = ['a', 'b', 'c']: expected two line-aligned files, or one",
        ),
        (
            '[task]\nkind = "translation"\ntrain = 3\nvalid = ["a"]',
            "task.train = 3: input should be a valid array.",
        ),
        ("[training]\nseed", "not TOML: "),
        (
            "aaa = 1\nbbb = 2",
            "unknown key 'aaa'; known are task, model, training. (1 more after this one.)",
        ),
    ],
)
def test_what_is_wrong_is_one_line_that_names_it(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InputError) as caught:
        load_config(path)
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no\.toml: no such configuration\. Check the path\."):
        load_config(tmp_path / "no.toml")
    (tmp_path / "c.toml").write_bytes(b"# caf\xe9")
    with pytest.raises(DataError, match="line 1 is not UTF-8"):
        load_config(tmp_path / "c.toml")


def test_overrides(tmp_path: Path) -> None:
    path = write(tmp_path, "[training]\nseed = 1\n")
    config = load_config(
        path,
        [
            "training.seed=7",
            "model.norm=post",
            'model.positions = "shaw"',
            "training.betas=[0.5, 0.6]",
            "training.history=false",
            "task.kind=language",
            "task.file=a=b.txt",
        ],
    )
    assert config.training.seed == 7
    assert config.model.norm == "post"
    assert config.model.positions == "shaw"
    assert config.training.betas == (0.5, 0.6)
    assert config.training.history is False
    assert isinstance(config.task, LanguageConfig)
    assert config.task.file == "a=b.txt"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.seed", "expected section.key=value, as in training.seed=2"),
        ("=3", "expected section.key=value"),
        ("training.sede=3", "unknown key 'training.sede'; did you mean 'seed'"),
        ("training.seed.x=3", "'seed' is a value, not a section"),
        (
            "training.seed=three",
            "^--set 'training.seed=three': training.seed = 'three': input should be a valid",
        ),
        (" training.sede=3", "^--set ' training.sede=3': unknown key 'training.sede'"),
        ("training.floor=0.1", "^--set 'training.floor=0.1': training.floor: nothing reads it"),
        ("model.width=0", "^--set 'model.width=0': model.width = 0: "),
        ("training.betas=[2,0]", r"^--set 'training.betas=\[2,0\]': training.betas\[0\] = 2"),
        ("model.kind=no", "^--set 'model.kind=no': model.kind is 'no'; expected one of"),
        ("evaluation.beam=0", "toml with --set 'evaluation.beam=0': unknown key 'evaluation'"),
        ("model.kv_heads=3", "toml with --set 'model.kv_heads=3': model.kv_heads 3 does not"),
        ("task.folder=caf\udce9", r"--set 'task.folder=caf\\udce9': it is not UTF-8 text"),
    ],
)
def test_overrides_that_are_wrong(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_config(write(tmp_path, "[training]\nseed = 1\n"), [override])


def test_a_key_is_set_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^--set 'training.seed=3': training.seed is set already"):
        load_config(write(tmp_path, ""), ["training.seed=2", "training.seed=3"])


def test_what_the_file_says_for_a_choice_goes_with_that_choice(tmp_path: Path) -> None:
    path = write(tmp_path, '[training]\nschedule = "linear"\nfloor = 0.1\n')
    config = load_config(path, ["training.schedule=constant"]).training
    assert (config.schedule, config.floor) == ("constant", 0.0)
    assert load_config(path, ["training.schedule=cosine"]).training.floor == 0.1
    with pytest.raises(InputError, match=r"^--set 'training.floor=0.2': training.floor: nothing"):
        load_config(path, ["training.schedule=constant", "training.floor=0.2"])


def test_what_the_file_has_wrong_is_not_blamed_on_what_was_set(tmp_path: Path) -> None:
    path = write(tmp_path, "[model]\nwidth = 0\n")
    with pytest.raises(InputError) as caught:
        load_config(path, ["training.seed=3"])
    assert str(caught.value).startswith(f"{path}: model.width = 0: ")


def test_the_embedded_and_the_kept_configurations_are_good() -> None:
    with resources.as_file(resources.files("headloom.training") / "demo.toml") as path:
        assert isinstance(load_config(path).task, DatesConfig)
    examples = Path(__file__).parents[2] / "examples"
    assert [load_config(path) for path in examples.glob("*.toml")]


def test_one_file_of_pairs_may_stand_alone(tmp_path: Path) -> None:
    text = '[task]\nkind = "translation"\ntrain = "pairs.tsv"\nvalid = ["a.en", "a.de"]\n'
    task = load_config(write(tmp_path, text)).task
    assert isinstance(task, TranslationConfig)
    assert (task.train, task.valid) == (["pairs.tsv"], ["a.en", "a.de"])
