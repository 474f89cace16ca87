"""`headloom ablate`: runs and models of Hugging Face, measures and errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.conftest import Command
from tests.saved_models import small_model


def test_runs_by_their_validation_data_and_by_a_text(headloom_main: Command, runs: Path) -> None:
    found = headloom_main("ablate", runs / "dates", "--json").json()
    # One layer of each kind, two heads in each.
    assert sorted(effect["heads"][0] for effect in found["heads"]) == [
        [layer, head] for layer in range(3) for head in range(2)
    ]
    changes = [abs(effect["change"]) for effect in found["heads"]]
    assert changes == sorted(changes, reverse=True)
    for effect in found["heads"]:
        assert effect["change"] == pytest.approx(effect["value"] - found["baseline"])
    letters = ("--text", "two men", "--logit", "a", "--against", "e")
    of_letters = ("ablate", runs / "language", *letters, "--json")
    logit = headloom_main(*of_letters, "--replacement", "mean").json()
    assert logit["kind"] == "mean"
    assert logit["measure"] == "logit of 'a' less that of 'e'"
    patched = headloom_main(*of_letters, "--patch", "two man").json()
    assert patched["kind"] == "patch"
    assert patched["baseline"] == pytest.approx(logit["baseline"])


def test_estimates_and_single_positions(headloom_main: Command, runs: Path) -> None:
    """An estimate names the position that adds most; --at changes that one alone."""
    letters = ("ablate", runs / "language", "--text", "two me", "--logit", "a")
    measured = headloom_main(*letters, "--json").json()
    estimated = headloom_main(*letters, "--estimate", "--json").json()
    found = headloom_main(*letters, "--estimate")
    assert estimated["estimated"] and not measured["estimated"]
    assert estimated["baseline"] == pytest.approx(measured["baseline"], abs=1e-5)
    heads = {tuple(effect["heads"][0]) for effect in measured["heads"]}
    assert {tuple(effect["heads"][0]) for effect in estimated["heads"]} == heads
    for effect in estimated["heads"]:
        assert len(effect["at"]) == len("two me")
        assert effect["change"] == pytest.approx(sum(effect["at"]), abs=1e-5)
    # The last position alone is read, and its token is an e.
    last = max(estimated["heads"], key=lambda effect: effect["heads"][0])
    assert all(abs(part) < 1e-6 for part in last["at"][:-1]) and "5 e" in found.out
    assert "estimated by one gradient" in found.out
    at = headloom_main(*letters, "--at", "-1", "--at", "0", "--estimate", "--json").json()
    for effect in at["heads"]:
        assert [place for place, part in enumerate(effect["at"]) if part] in ([0, 5], [0], [5], [])
    alone = headloom_main(*letters, "--at", "-1", "--json").json()
    changes = {tuple(effect["heads"][0]): effect["change"] for effect in alone["heads"]}
    for effect in measured["heads"]:
        if effect["heads"][0] == last["heads"][0]:
            assert changes[tuple(effect["heads"][0])] == pytest.approx(effect["change"], abs=1e-5)
    # Of the loss on validation data, several texts at once.
    whole = headloom_main("ablate", runs / "dates", "--estimate", "--json").json()
    assert len(whole["heads"]) == 6 and "at" not in whole["heads"][0]


@pytest.mark.usefixtures("words")
@pytest.mark.parametrize("kind", ["gpt2", "bert", "bart"])
def test_models_of_hugging_face(headloom_main: Command, tmp_path: Path, kind: str) -> None:
    if kind == "gpt2":
        small_model("GPT2LMHeadModel", tmp_path)
        more, name, heads = ("--text", "a b c d a b c d"), "loss", 4
    elif kind == "bert":
        small_model("BertForMaskedLM", tmp_path)
        more, name, heads = ("--text", "a b c d a b c d"), "loss of masked tokens", 2
    else:
        small_model("BartForConditionalGeneration", tmp_path)
        more, name, heads = ("--text", "a b c", "--target", "c b a"), "loss of the target", 6
    found = headloom_main("ablate", tmp_path, *more, "--json").json()
    assert found["measure"] == name
    assert len(found["heads"]) == heads
    assert any(abs(effect["change"]) > 1e-6 for effect in found["heads"])
    estimated = headloom_main("ablate", tmp_path, *more, "--estimate", "--json").json()
    assert len(estimated["heads"]) == heads and all(effect["at"] for effect in estimated["heads"])
    if kind == "bert":
        logit = headloom_main(
            "ablate", tmp_path, "--text", "a [MASK] c", "--logit", "b", "--layer", "0", "--json"
        )
        assert logit.json()["measure"] == "logit of 'b'"
        small_model("BertModel", tmp_path)
        estimated = headloom_main("ablate", tmp_path, "--text", "a b c", "--estimate")
        assert "makes no predictions, and the change of the output" in estimated.one_line()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--against", "a"), "needs logit"),
        (("--patch", "a"), "patch and at need text"),
        (
            ("--text", "abc", "--patch", "abd", "--replacement", "mean", "--logit", "a"),
            "both replace",
        ),
        (("--text", "abc", "--at", "4"), "no position 4; the input has positions 0 to 1"),
        (("--layer", "9"), "the model has layers 0 to 0"),
        (("--text", "abc", "--patch", "ab", "--logit", "a"), "the same number of tokens"),
        (("--text", "a"), "the text has one token; the loss needs two or more"),
    ],
)
def test_bad_options(
    headloom_main: Command, runs: Path, arguments: tuple[str, ...], said: str
) -> None:
    result = headloom_main("ablate", runs / "language", *arguments)
    assert said in result.one_line()


def test_a_translator(headloom_main: Command, runs: Path) -> None:
    words = ("--text", "de: 3.4.2024", "--target", "2024", "--logit", "-", "--json")
    asked = headloom_main("ablate", runs / "dates", *words).json()
    assert asked["measure"] == "logit of '-'" and len(asked["heads"]) == 6


def test_a_word_that_the_tokenizer_does_not_know(headloom_main: Command, writer: Path) -> None:
    """One line, not the logit of [UNK], unless that is asked for by its name."""
    asked = headloom_main("ablate", writer, "--text", "a b zebra", "--logit", "zebra")
    assert "logit zebra: not in the vocabulary of this model" in asked.one_line()
    assert not headloom_main("ablate", writer, "--text", "a b", "--logit", "[UNK]").code
