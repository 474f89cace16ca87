"""Vision-language models: the map of a word names the patch of the picture that was changed."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from tests.slow import slow

import headloom

pytest.importorskip("transformers")
from tests.tracing.vision_models import FAMILIES, MARK, Family, Picture

#: Every second family; the others are slow.
families = pytest.mark.parametrize("name", [*list(FAMILIES)[::2], *slow(*list(FAMILIES)[1::2])])

TEXT = f"see {MARK} now"
#: Sizes of pictures, (rows, columns): wide, high and nearly square, none of them a multiple.
SIZES = [(37, 61), (71, 34), (45, 47)]


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
        seen = alone.image_map(0, 0, place, image=image, size=size)
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
    size = SIZES[0]
    inputs = made.inputs([picture(size)], TEXT)
    trace = traced(made, inputs)
    known = trace.positions["tokens"]
    # Of the image tokens, those that are no patch: the same vector whatever the picture.
    others = made.seen(made.inputs([picture(size, 1)], TEXT))
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
            seen = trace.image_map(number, head, -1, size=size)
            assert seen.mass == pytest.approx(float(row[of_image].sum()), abs=2e-6)
            assert float(seen.weights.sum()) + seen.outside == pytest.approx(seen.mass, abs=1e-12)
            assert [p[0] for p in seen.patches] == of_image.nonzero()[:, 0].tolist()
            found = torch.tensor([patch[4] for patch in seen.patches])
            assert torch.allclose(found, row[of_image].float(), atol=2e-6)
            assert seen.weights.shape == size
            assert seen.outside == 0 or "pad" in name
