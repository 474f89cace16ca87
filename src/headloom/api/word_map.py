"""The map of a word over an image of its text, drawn to a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headloom.analysis.image_map import image_map
from headloom.formats.files import JsonObject
from headloom.formats.images import image_array, open_image
from headloom.formats.tokens import shown, visible
from headloom.formats.trace import TraceData, layer_number

__all__ = ["DrawnMap", "draw_word_map"]

#: Patches that are named.
_NAMED = 5


@dataclass(frozen=True)
class DrawnMap:
    """What is said of a map that was drawn: in a line, and by names."""

    line: str
    content: JsonObject


def draw_word_map(
    path: Path,
    layer: str,
    head: int | None,
    token: str,
    output: Path,
    *,
    image: Path | None = None,
    number: int = 0,
) -> DrawnMap:
    """Draw what a word looks at in an image.

    Args:
        path, layer, head: of a trace; see `layer_number`; None: the mean of all.
        token: a position, or the text of one token.
        output: the picture.
        image: the original picture, drawn in its own pixels; None: the resized one, without it.
        number: which image of the text.

    Raises: InputError: what `headloom.analysis.image_map.image_map` refuses; DataError: no such
    trace or picture, or a file that cannot be written.
    """
    from headloom.studio.pictures.canvas import save_picture
    from headloom.studio.pictures.images import word_map

    trace = TraceData.open(path)
    picture = None
    if image is not None:
        picture = np.moveaxis(image_array(open_image(image)), 0, -1)
    asked = layer_number(trace, layer)
    seen = image_map(
        trace, asked, head, _number(token), image=number,
        size=None if picture is None else (picture.shape[0], picture.shape[1]),
    )  # fmt: skip
    chosen = trace.layers[asked]
    uncut = picture is not None and "images" not in trace.positions[chosen.keys_from]
    word = visible(shown(chosen.query_tokens)[seen.query])
    of_head = "the mean of all heads" if head is None else f"head {head}"
    figure = word_map(
        seen, picture, title=f"What “{word}” looks at",
        caption=f"{chosen.name}, {of_head}: {seen.mass:.1%} of its weight is on the image"
        + (f", {seen.outside:.1%} on bars beside the picture" if seen.outside >= 0.0005 else ""),
    )  # fmt: skip
    save_picture(figure, output)
    best = sorted(seen.patches, key=lambda patch: -patch[4])[:_NAMED]
    names = shown(chosen.key_tokens)
    line = (
        f"{word} ({seen.query}) gives {seen.mass:.4f} of its weight to the image"
        + (f" ({seen.outside:.4f} to bars beside the picture)" if seen.outside else "")
        + ", most to "
        + ", ".join(f"{names[patch[0]]} ({patch[4]:.4f})" for patch in best)
        + "."
        + (" Over the whole picture, as if its processor had cut nothing away." if uncut else "")
        + f" Picture: {output}"
    )
    content = {
        "trace": str(path), "layer": chosen.name, "head": head, "token": seen.query,
        "image": number, "mass": seen.mass, "outside": seen.outside,
        "size": list(seen.weights.shape), "of_original": seen.of_original,
        "patches": [
            {"position": at, "tile": tile, "row": row, "column": column, "weight": weight}
            for at, tile, row, column, weight in seen.patches
        ],
        "picture": str(output),
    }  # fmt: skip
    return DrawnMap(line, content)


def _number(word: str) -> int | str:
    """A whole number, where a word is one."""
    digits = word.removeprefix("-")
    return int(word) if digits.isascii() and digits.isdigit() and len(digits) < 10 else word
