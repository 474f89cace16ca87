"""The map of a word over an image of its text, drawn to a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from headloom.analysis.image_map import image_map
from headloom.formats.files import JsonObject
from headloom.formats.images import image_array, open_image
from headloom.formats.tokens import shown, visible
from headloom.formats.trace import TraceData, layer_number

#: Patches that are named.
_NAMED = 5


def draw_word_map(
    path: Path,
    layer: str,
    head: int | None,
    token: str,
    output: Path,
    *,
    image: Path | None = None,
    number: int = 0,
) -> tuple[str, JsonObject]:
    """Draw what a word looks at in an image; returns that in a line, and by names.

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
    picture = None if image is None else np.moveaxis(image_array(open_image(image)), 0, -1)
    size = None if picture is None else (picture.shape[0], picture.shape[1])
    place = int(token) if token.removeprefix("-").isdecimal() else token
    asked = layer_number(trace, layer)
    seen = image_map(trace, asked, head, place, image=number, size=size)
    chosen = trace.layers[asked]
    word = visible(shown(chosen.query_tokens)[seen.query])
    of_head = "the mean of all heads" if head is None else f"head {head}"
    outside = f", {seen.outside:.1%} on bars beside the picture" if seen.outside >= 0.0005 else ""
    figure = word_map(
        seen, picture, title=f"What “{word}” looks at",
        caption=f"{chosen.name}, {of_head}: {seen.mass:.1%} of its weight is on the image{outside}",
    )  # fmt: skip
    save_picture(figure, output)
    best = sorted(seen.patches, key=lambda patch: -patch[4])[:_NAMED]
    names = shown(chosen.key_tokens)
    most = ", ".join(f"{names[at]} ({weight:.4f})" for at, *_, weight in best)
    line = f"{word} ({seen.query}) gives {seen.mass:.4f} of its weight to the image{outside}"
    line += f", most to {most}."
    if picture is not None and "images" not in trace.positions[chosen.keys_from]:
        line += " Over the whole picture, as if its processor had cut nothing away."
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
    return f"{line} Picture: {output}", content
