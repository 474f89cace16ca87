"""Pictures that a processor cut into tiles: counted from the text, or refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from headloom.tracing.vision_language import LAYOUTS, Request

WORD, BORDER, NAME, LINE, IMAGE = 1, 2, 3, 4, 9
#: Tiles of 4 x 4 pixels, patches of one, pixel shuffle of 2 x 2: four image tokens each.
RUN = [IMAGE] * 4


def of_splits(ids: list[int], pixels: tuple[int, ...] = (1, 1, 3, 4, 4), **inputs: Any) -> Any:
    config = SimpleNamespace(
        vision_config=SimpleNamespace(patch_size=1), scale_factor=2, image_token_id=IMAGE
    )
    given = {"input_ids": torch.tensor([ids]), "pixel_values": torch.zeros(pixels), **inputs}
    return LAYOUTS["idefics3"](Request(config, given, ids.count(IMAGE)))


def picture(rows: int, columns: int) -> list[int]:
    """What SmolVLM's processor writes: rows of tiles, each row a line, and the whole."""
    tile = [BORDER, NAME, *RUN]
    whole = [BORDER, NAME, *RUN, BORDER]
    return (tile * columns + [LINE]) * rows + [LINE, *whole] if rows else whole


@pytest.mark.parametrize(("rows", "columns"), [(0, 0), (1, 2), (1, 3), (2, 3), (4, 1)])
def test_rows_and_columns_are_read_from_the_text(rows: int, columns: int) -> None:
    for ids in (
        [WORD, *picture(rows, columns), WORD],
        [*picture(rows, columns), WORD, *picture(2, 2), WORD, *picture(0, 0)],
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
    whole = picture(0, 0)
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
    assert of_splits(picture(0, 0), pixel_attention_mask=mask) is not None
    mask[0, 1] = 0  # a tile that is padding
    assert of_splits(picture(0, 0), pixel_attention_mask=mask) is not None
    mask[0, 1, 2, 2] = 1
    assert of_splits(picture(0, 0), pixel_attention_mask=mask) is None


@pytest.mark.parametrize("patch", [1, [1, 1]])
def test_tiles_in_one_run(patch: Any) -> None:
    """InternVL: one tile, or some and then the whole; two cannot be."""

    def seen(*runs: int, pixels: tuple[int, ...] = (1, 3, 4, 4)) -> Any:
        config = SimpleNamespace(
            vision_config=SimpleNamespace(patch_size=patch),
            downsample_ratio=0.5,
            image_token_id=IMAGE,
        )
        ids = [token for run in runs for token in [*[IMAGE] * run, WORD]]
        given = {"input_ids": torch.tensor([ids]), "pixel_values": torch.zeros(pixels)}
        return LAYOUTS["internvl"](Request(config, given, sum(runs)))

    images = seen(4, 12)
    assert [len(one.image.tiles) for one in images] == [1, 3]
    assert [one.image.size for one in images] == [(4, 4), None]
    assert [len(one.features) for one in images] == [4, 12]
    assert seen(8) is None and seen(4, 5) is None
    assert seen(4, pixels=(1, 3, 4, 8)) is None
