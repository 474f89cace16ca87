"""Vision-language models: the map of a word names the patch of the picture that was changed."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.formats.forging import forge
from tests.slow import slow

import headloom
from headloom.errors import DataError, InputError
from headloom.tracing.vision_language import LAYOUTS, Request

pytest.importorskip("transformers")
from tests.tracing.vision_models import FAMILIES, MARK, Family, Picture

#: Every second family; the others are slow.
families = pytest.mark.parametrize("name", [*list(FAMILIES)[::2], *slow(*list(FAMILIES)[1::2])])

TEXT = f"see {MARK} now"
#: Sizes of pictures, (rows, columns): wide, high and nearly square, none of them a multiple.
SIZES = [(37, 61), (71, 34), (45, 47)]
SIZE = SIZES[0]


@cache
def family(name: str) -> Family:
    made = FAMILIES[name]()
    made.isolate()
    return made


def picture(size: tuple[int, int], seed: int = 0) -> Picture:
    """Dark noise."""
    return np.random.default_rng(seed).integers(60, 100, (*size, 3), dtype=np.uint8)


def traced(made: Family, inputs: dict[str, Any], **options: Any) -> headloom.Trace:
    trace = headloom.trace(made.model, inputs, tokenizer=made.words, **options)
    assert isinstance(trace, headloom.Trace)
    return trace


def language(trace: headloom.Trace) -> list[int]:
    """The numbers of the layers that look at the text and its images."""
    return [n for n, layer in enumerate(trace.layers) if layer.keys_from == "tokens"]


def boxes(trace: headloom.Trace, size: tuple[int, int], image: int = 0) -> dict[int, list[int]]:
    """The whole pixels of the original picture that the map gives to each patch, as a box.

    By the maps alone: of a row that gives its weight to one patch, the pixels that are not 0.
    """
    known = trace.positions["tokens"]
    found = {}
    one_each = torch.eye(len(trace.tokens))[None]
    (layer,) = headloom.from_weights(one_each, tokens=list(trace.tokens)).layers
    alone = headloom.Trace(
        {"tokens": trace.tokens}, (layer,), {}, trace.positions, None, (), trace.images
    )
    for place in (p for p, own in enumerate(known["images"]) if own == image):
        seen = alone.image_map(0, 0, place, number=image, size=size)
        assert float(seen.weights.sum()) + seen.outside == pytest.approx(1)
        if seen.outside < 1:
            # More than half a pixel of it.
            rows, columns = (seen.weights > 0.5 * seen.weights.max()).nonzero(as_tuple=True)
            found[place] = [int(rows.min()), int(columns.min()), int(rows.max()) + 1,
                            int(columns.max()) + 1]  # fmt: skip
    return found


@pytest.mark.parametrize("size", [SIZES[0], *slow((SIZES[1],), (SIZES[2],))])
@families
def test_the_map_names_the_patch_that_was_changed(name: str, size: tuple[int, int]) -> None:
    made = family(name)
    plain = picture(size)
    inputs = made.inputs([plain], TEXT)
    before = made.seen(inputs)
    trace = traced(made, inputs)
    known = trace.positions["tokens"]
    ids = inputs["input_ids"][0]
    assert {p for p, own in enumerate(known["images"]) if own == 0} <= set(
        (ids == made.token).nonzero()[:, 0].tolist()
    )
    where = boxes(trace, size)
    generator = np.random.default_rng(5)
    chosen = generator.choice(list(where), 6, replace=False).tolist()
    for place in chosen:
        top, left, bottom, right = where[place]
        bright = plain.copy()
        # Not its edge, which resizing mixes with the patches beside it.
        high, wide = (int(last - first > 4) for first, last in ((top, bottom), (left, right)))
        bright[top + high : bottom - high, left + wide : right - wide] = 255
        moved = (made.seen(made.inputs([bright], TEXT)) - before).norm(dim=-1)
        # Of its own tile: where there is another view of the same pixels, that changes too.
        tile = [
            p for p in range(len(ids))
            if known["images"][p] == 0 and known["tiles"][p] == known["tiles"][place]
        ]  # fmt: skip
        assert max(tile, key=lambda p: float(moved[p])) == place
        # And nothing changes whose box is far from it, in any tile.
        for other, (first, start, end, last) in where.items():
            gap = max(top - end, first - bottom, left - last, start - right)
            if gap > 8:
                assert float(moved[other]) < 0.05 * float(moved[place]), (place, other)


@families
def test_the_map_has_the_mass_of_the_row_on_the_image(name: str) -> None:
    made = family(name)
    inputs = made.inputs([picture(SIZE)], TEXT)
    trace = traced(made, inputs)
    known = trace.positions["tokens"]
    # Of the image tokens, those that are no patch: the same vector whatever the picture.
    others = made.seen(made.inputs([picture(SIZE, 1)], TEXT))
    same = (made.seen(inputs) - others).norm(dim=-1) == 0
    of_image = (inputs["input_ids"][0] == made.token) & ~same
    assert of_image.tolist() == [own == 0 for own in known["images"]]
    assert of_image.sum() >= 24
    made.model.set_attn_implementation("eager")
    with torch.no_grad():
        dense = made.model(**inputs, output_attentions=True).attentions
    for number, weights in zip(language(trace), dense, strict=True):
        for head in range(4):
            row = weights[0, head, -1].double()
            seen = trace.image_map(number, head, -1, size=SIZE)
            assert seen.mass == pytest.approx(float(row[of_image].sum()), abs=2e-6)
            assert float(seen.weights.sum()) + seen.outside == pytest.approx(seen.mass, abs=1e-12)
            assert [p[0] for p in seen.patches] == of_image.nonzero()[:, 0].tolist()
            found = torch.tensor([patch[4] for patch in seen.patches])
            assert torch.allclose(found, row[of_image].float(), atol=2e-6)
            assert seen.weights.shape == SIZE
            assert seen.outside == 0 or "pad" in name


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
        lambda manifest: manifest["images"][0]["tiles"][0].update(grid=[60, 60]),
        lambda manifest: manifest["images"][0]["tiles"][0].update(box=[0, 0, 0, 4]),
        lambda manifest: manifest["positions"]["tokens"]["tiles"].__setitem__(-3, 3),
    ],
)
def test_a_manifest_that_says_other_things_of_images_is_refused(change, tmp_path: Path) -> None:
    made = family("llava stretch")
    traced(made, made.inputs([picture(SIZE)], MARK), save=tmp_path / "a.loom")
    forge(tmp_path / "a.loom", lambda manifest: None)
    headloom.open(tmp_path / "a.loom")
    forge(tmp_path / "a.loom", change)
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
@pytest.mark.parametrize("name", ["qwen2_vl", "llava crop", "idefics3"])
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


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"layer": 9}, "no layer 9 with image patches as keys; there are 0, 1, 2, 3"),
        ({"token": "e"}, "2 tokens are 'e'. Give the position of one: 1, 2"),
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
        InputError, match=r"size=\(61, 37\); the model read a picture of \(37, 61\)"
    ):
        trace.image_map(layer, 0, -1, size=(61, 37))


def test_sql_knows_where_patches_are() -> None:
    made = family("idefics3")
    trace = traced(made, made.inputs([picture(SIZE)], TEXT))
    number = language(trace)[-1]
    found = trace.query(
        f"""SELECT t.image, t.tile, t.patch_row, t.patch_column, e.weight
        FROM edges e JOIN tokens t ON t.position = e.key AND t.sequence = 'tokens'
        WHERE e.layer = {number} AND e.head = 0 AND e.query = 53 AND t.image IS NOT NULL
        ORDER BY e.weight DESC LIMIT 1"""
    )
    best = max(trace.image_map(number, 0, 53).patches, key=lambda patch: patch[4])
    assert tuple(found.iloc[0])[:4] == (0, *best[1:4])
    assert found.iloc[0]["weight"] == pytest.approx(best[4], abs=1e-6)


# Pictures that a processor cut into tiles: counted from the text, or refused

WORD, BORDER, NAME, LINE, IMAGE = 1, 2, 3, 4, 9
#: Tiles of 4 x 4 pixels, patches of one, pixel shuffle of 2 x 2: four image tokens each.
RUN = [IMAGE] * 4


def of_splits(ids: list[int], pixels: tuple[int, ...] = (1, 1, 3, 4, 4), **inputs: Any) -> Any:
    config = SimpleNamespace(
        vision_config=SimpleNamespace(patch_size=1), scale_factor=2, image_token_id=IMAGE
    )
    given = {"input_ids": torch.tensor([ids]), "pixel_values": torch.zeros(pixels), **inputs}
    return LAYOUTS["idefics3"](Request(config, given, ids.count(IMAGE)))


def written(rows: int, columns: int) -> list[int]:
    """What SmolVLM's processor writes: rows of tiles, each row a line, and the whole."""
    tile = [BORDER, NAME, *RUN]
    whole = [BORDER, NAME, *RUN, BORDER]
    return (tile * columns + [LINE]) * rows + [LINE, *whole] if rows else whole


@pytest.mark.parametrize(("rows", "columns"), [(0, 0), (1, 2), (1, 3), (2, 3), (4, 1)])
def test_rows_and_columns_are_read_from_the_text(rows: int, columns: int) -> None:
    for ids in (
        [WORD, *written(rows, columns), WORD],
        [*written(rows, columns), WORD, *written(2, 2), WORD, *written(0, 0)],
    ):
        images = of_splits(ids)
        assert len(images[0].image.tiles) == rows * columns + 1
        assert len(images[0].features) == 4 * (rows * columns + 1)
        # So many tiles of 4 pixels each way; the whole picture has no size where it was not cut.
        if rows:
            assert images[0].image.size == (4 * rows, 4 * columns)
    assert [len(one.image.tiles) for one in images[1:]] == [5, 1]
    assert of_splits([WORD, WORD]) == []


def test_text_that_no_processor_writes_is_refused() -> None:
    whole = written(0, 0)
    ragged = [BORDER, NAME, *RUN, BORDER, NAME, *RUN, LINE, BORDER, NAME, *RUN, LINE]
    tile = [BORDER, NAME, *RUN]
    for ids in (
        [*whole, BORDER, NAME, *RUN],  # ends in an image
        [BORDER, NAME, *RUN, IMAGE, BORDER],  # of another length
        [*ragged, LINE, *whole],  # rows of two tiles and of one
        [*tile, NAME, *RUN, LINE, *whole],  # tiles that nothing divides
        [*tile, *whole],  # a tile in no row
    ):
        assert of_splits(ids) is None
    assert of_splits(whole) is not None
    assert of_splits(whole, (1, 1, 3, 4, 6)) is None  # tiles are square


def test_tiles_that_are_seen_in_part_are_refused() -> None:
    mask = torch.ones(1, 2, 4, 4)
    assert of_splits(written(0, 0), pixel_attention_mask=mask) is not None
    mask[0, 1] = 0  # a tile that is padding
    assert of_splits(written(0, 0), pixel_attention_mask=mask) is not None
    mask[0, 1, 2, 2] = 1
    assert of_splits(written(0, 0), pixel_attention_mask=mask) is None
