"""Traces of texts with images: several images, batches, generation, files, and bad questions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.formats.forging import forge
from tests.slow import slow
from tests.tracing.test_vision_language import TEXT, boxes, family, language, picture, traced
from tests.tracing.vision_models import FAMILIES, MARK

import headloom
from headloom.errors import DataError, InputError
from headloom.tracing.vision_language import LAYOUTS

#: Every second family; the others are slow.
families = pytest.mark.parametrize("name", [*list(FAMILIES)[::2], *slow(*list(FAMILIES)[1::2])])

SIZE = (37, 61)


def test_every_family_that_is_known_is_tested() -> None:
    assert {name.split()[0].rstrip(",") for name in FAMILIES} == set(LAYOUTS)


@pytest.mark.parametrize("name", ["qwen2_vl", "idefics3", "llava_next"])
def test_a_trace_on_disk_is_the_same(name: str, tmp_path: Path) -> None:
    made = family(name)
    trace = traced(made, made.inputs([picture(SIZE)], TEXT))
    trace.save(tmp_path / "a.loom")
    back = headloom.open(tmp_path / "a.loom")
    assert back.images == trace.images and back.positions == trace.positions
    number = language(trace)[0]
    one, other = (each.image_map(number, 2, -1, size=SIZE) for each in (trace, back))
    assert torch.equal(one.weights, other.weights) and one.patches == other.patches
    # Written while the model runs.
    inputs = made.inputs([picture(SIZE)], TEXT)
    direct = traced(made, inputs, save=tmp_path / "b.loom")
    assert direct.images == trace.images


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest.pop("images"),
        lambda manifest: manifest["images"][0].update(size=[0, 5]),
        lambda manifest: manifest["images"][0].update(fit="squeeze"),
        lambda manifest: manifest["images"][0].update(size=None),
        lambda manifest: manifest["images"][0]["tiles"][0].update(grid=[60, 60]),
        lambda manifest: manifest["images"][0]["tiles"][0].update(box=[0, 0, 0, 4]),
        lambda manifest: manifest["images"][0]["tiles"][0].update(grid=[1, 1]),
        lambda manifest: manifest["images"][0].update(tiles=[]),
        lambda manifest: manifest["positions"]["tokens"].pop("tiles"),
        lambda manifest: manifest["positions"]["tokens"]["tiles"].__setitem__(-3, 3),
        lambda manifest: manifest["positions"]["tokens"].update(
            images=[5] * len(manifest["sequences"]["tokens"])
        ),
    ],
)
def test_a_manifest_that_says_other_things_of_images_is_refused(change, tmp_path: Path) -> None:
    made = family("llava stretch")
    inputs = made.inputs([picture(SIZE)], MARK)
    traced(made, inputs, save=tmp_path / "a.loom")
    forge(tmp_path / "a.loom", lambda manifest: None)
    headloom.open(tmp_path / "a.loom")
    before = (tmp_path / "a.loom" / "trace.json").read_text()
    forge(tmp_path / "a.loom", change)
    if change.__code__.co_consts and (tmp_path / "a.loom" / "trace.json").read_text() == before:
        raise AssertionError("nothing was changed")
    with pytest.raises(DataError, match=r"trace\.json\.images is missing"):
        headloom.open(tmp_path / "a.loom")


@families
def test_two_images_of_a_text_are_told_apart(name: str) -> None:
    made = family(name)
    sizes = [(37, 61), (66, 30)]
    pictures = [picture(size, seed) for seed, size in enumerate(sizes)]
    text = f"is {MARK} like {MARK}?" if name != "paligemma" else f"{MARK}{MARK} alike?"
    inputs = made.inputs(pictures, text)
    trace = traced(made, inputs)
    assert len(trace.images) == 2
    before = made.seen(inputs)
    for image, size in enumerate(sizes):
        where = boxes(trace, size, image)
        place = list(where)[len(where) // 2]
        top, left, bottom, right = where[place]
        changed = [each.copy() for each in pictures]
        changed[image][top + 1 : bottom - 1, left + 1 : right - 1] = 255
        moved = (made.seen(made.inputs(changed, text)) - before).norm(dim=-1)
        known = trace.positions["tokens"]
        tile = [p for p in where if known["tiles"][p] == known["tiles"][place]]
        assert max(tile, key=lambda p: float(moved[p])) == place
        others = [p for p, own in enumerate(known["images"]) if own == 1 - image]
        assert float(moved[others].max()) == 0
        assert trace.tokens[place].startswith(f"image {image}, ")


@pytest.mark.filterwarnings("ignore:.*cannot be traced")
@pytest.mark.parametrize("name", ["qwen2_vl", "llava crop", "idefics3", "internvl"])
def test_a_batch_gives_a_trace_with_its_image_for_each_text(name: str) -> None:
    made = family(name)
    one = made.inputs([picture(SIZE)], TEXT)
    other = made.inputs([picture(SIZE, 1)], TEXT)
    cat = {key: torch.cat((one[key], other[key])) for key in one}
    both = headloom.trace(made.model, cat, tokenizer=made.words)
    assert isinstance(both, list) and len(both) == 2
    for trace, inputs in zip(both, (one, other), strict=True):
        alone = traced(made, inputs)
        assert trace.images == alone.images and trace.tokens == alone.tokens
        number, own = language(trace)[0], language(alone)[0]
        ours, theirs = (
            trace.image_map(number, 0, -1, size=SIZE),
            alone.image_map(own, 0, -1, size=SIZE),
        )
        assert torch.allclose(ours.weights, theirs.weights, atol=2e-6)


@pytest.mark.parametrize("name", ["qwen2_vl", "idefics3", "llava_next"])
@pytest.mark.filterwarnings("ignore:.*cannot be traced|.*in no trace")
def test_what_is_generated_looks_at_the_image_too(name: str) -> None:
    made = family(name)
    inputs = made.inputs([picture(SIZE)], TEXT)
    length = inputs["input_ids"].shape[1]
    trace = traced(made, inputs, generate=3)
    plain = traced(made, inputs)
    assert len(trace.tokens) == length + 3
    assert trace.images == plain.images
    known, own = trace.positions["tokens"]["images"], plain.positions["tokens"]["images"]
    assert known == own + [-1] * 3
    number = language(plain)[-1]
    mine = trace.image_map(language(trace)[-1], 1, length - 1, size=SIZE)
    assert mine.weights.allclose(plain.image_map(number, 1, -1, size=SIZE).weights, atol=2e-6)
    assert trace.image_map(language(trace)[-1], 1, -1, size=SIZE).mass > 0
    beams = {"max_new_tokens": 2, "num_beams": 2, "num_return_sequences": 2}
    for each in headloom.trace(made.model, inputs, tokenizer=made.words, generate=beams):
        assert each.images == plain.images


def test_the_order_of_tiles_of_internvl_goes_by_the_original() -> None:
    made = family("internvl")
    trace = traced(made, made.inputs([picture(SIZE)], TEXT))
    assert trace.images[0].size is None
    with pytest.raises(InputError, match=r"the order of the 6 tiles .* size=\(rows, columns\)"):
        trace.image_map(2, 0, -1)
    assert trace.images[0].arranged(SIZE).size == (32, 48)
    assert trace.images[0].arranged((61, 37)).size == (48, 32)
    whole = traced(made, made.inputs([picture((20, 20))[:8, :8]], TEXT))
    assert whole.images[0].size == (16, 16)
    assert whole.image_map(2, 0, -1).weights.shape == (16, 16)


def test_how_a_picture_was_cut_is_not_guessed() -> None:
    made = family("llava crop")
    trace = headloom.trace(made.model, made.inputs([picture(SIZE)], TEXT))
    assert isinstance(trace, headloom.Trace)
    assert trace.images[0].fit is None
    assert trace.image_map(language(trace)[0], 0, -1).weights.shape == (24, 24)
    with pytest.raises(InputError, match="Give the processor as tokenizer="):
        trace.image_map(language(trace)[0], 0, -1, size=SIZE)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"layer": 9}, "no layer 9 that looks at patches of an image; there are 0, 1, 2, 3"),
        ({"head": 4}, "head 4"),
        ({"token": 99}, "token 99"),
        ({"token": "zebra"}, "no token is 'zebra'"),
        ({"token": "e"}, "2 tokens are 'e'. Give the position of one: 1, 2"),
        ({"image": 1}, "image 1"),
        ({"size": (0, 5)}, "expected the rows and columns of the original"),
        ({"size": (10**6, 10**6)}, "expected the rows and columns of the original"),
    ],
)
def test_bad_questions_are_answered_in_one_line(asked: dict[str, Any], says: str) -> None:
    made = family("llava stretch")
    trace = traced(made, made.inputs([picture(SIZE)], TEXT))
    question: dict[str, Any] = {"layer": 2, "head": 0, "token": -1} | asked
    with pytest.raises(InputError, match=says) as error:
        trace.image_map(question.pop("layer"), question.pop("head"), question.pop("token"),
                        **question)  # fmt: skip
    assert "\n" not in str(error.value)


def test_a_picture_of_another_size_than_the_model_was_told_is_refused() -> None:
    trace = traced(family("llava_next"), family("llava_next").inputs([picture(SIZE)], TEXT))
    layer = language(trace)[0]
    whole = trace.image_map(layer, 0, -1)
    assert whole.of_original and whole.weights.shape == SIZE
    with pytest.raises(
        InputError, match=r"size=\(61, 37\); the model was told a picture of \(37, 61\)"
    ):
        trace.image_map(layer, 0, -1, size=(61, 37))


def test_traces_without_images_say_so() -> None:
    made = family("llava stretch")
    words = traced(made, dict(made.words(text="no image here", return_tensors="pt")))
    with pytest.raises(
        InputError, match="no token of this trace is known to be a part of an image"
    ):
        words.image_map(0, 0, -1)
    config = transformers.GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2)
    model = transformers.GPT2LMHeadModel(config).eval()
    gpt2 = headloom.trace(model, torch.tensor([[1, 2, 3]]))
    with pytest.raises(InputError, match=r"of a gpt2 headloom may not know.* idefics3"):
        gpt2.image_map(0, 0, -1)


def test_sql_knows_where_patches_are() -> None:
    made = family("idefics3")
    trace = traced(made, made.inputs([picture(SIZE)], TEXT))
    number = language(trace)[-1]
    found = trace.sql(
        f"""SELECT t.image, t.tile, t.patch_row, t.patch_column, e.weight
        FROM edges e JOIN tokens t ON t.position = e.key AND t.sequence = 'tokens'
        WHERE e.layer = {number} AND e.head = 0 AND e.query = 53 AND t.image IS NOT NULL
        ORDER BY e.weight DESC LIMIT 1"""
    )
    best = max(trace.image_map(number, 0, 53).patches, key=lambda patch: patch[4])
    assert tuple(found.iloc[0])[:4] == (0, *best[1:4])
    assert found.iloc[0]["weight"] == pytest.approx(best[4], abs=1e-6)
