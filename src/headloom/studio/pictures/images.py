"""`word_map`: attention of a word over an image."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap

from headloom.analysis.image_map import ImageMap
from headloom.studio.pictures.canvas import Array, Page, picture, weight_norm
from headloom.studio.pictures.palette import Palette

#: Units: the longest side of an image, its margin, and the minimal width of a figure with title and
#: legend.
_LONG, _MARGIN, _NARROW = 6.0, 0.2, 4.2
#: Share of the picture's luma in the colours over it; and the part of the colour map that is used
#: there (the rest would hide the picture).
_KEPT, _REACH = 0.45, 0.62
#: Least upper end of the colours, in times the mean: a uniform row has the middle colour.
_REACHED = 4.0


@picture
def word_map(page: Page, result: ImageMap) -> Axes:
    """Draw the map of a word over an image: weights as colours, blended with the picture's luma.

    The colour of a pixel is its weight in times the mean of all pixels. The strongest colour is the
    largest weight, or 4 times the mean if that is more.
    """
    (rows, columns), image = result.weights.shape, result.picture
    weights, colours = result.weights.numpy(), page.colours
    title, head = f"What “{result.word}” looks at", f"head {result.head}"
    caption = f"{result.layer}, {'the mean of all heads' if result.head is None else head}: "
    caption += f"{result.mass:.1%} of its weight is on the image{result.outside_in_words}"
    total = float(weights.sum())
    times = weights * (weights.size / total) if total > 0 else weights
    most = max(float(times.max()), _REACHED)
    norm, light = weight_norm(most), image
    if light is not None and light.ndim > 2:
        light = light[..., :3] @ np.array([0.299, 0.587, 0.114])  # luma of ITU-R 601-2
    cells = _coloured(np.asarray(norm(times)), light, colours)
    page.letters([title, caption])
    if page.given is not None:
        page.title(title)
        page.given.set_xlabel(page.written(caption), color=colours.faint, family=page.families)
        page.given.imshow(cells, interpolation="nearest")
        page.bare(page.given)
        return page.given
    longest = page.fits(_LONG, (2 * _MARGIN, columns / max(rows, columns)))
    high, wide = (side * longest / max(rows, columns) for side in (rows, columns))
    page.lay(page.room[0] or max(wide, _NARROW) + 2 * _MARGIN, 0.62 + high + 0.62)
    page.title(title, caption)
    axes = page.matrix(_MARGIN, 0.62, wide, high, cells)
    mean = None if light is None else np.full(256, light.mean())
    ramp = ListedColormap(_coloured(np.linspace(0, 1, 256), mean, colours))
    ticks = [0.0, 1.0, *([most / 4] if most > 10 else []), most]
    page.scale(
        _MARGIN, 0.24, min(2.4, page.width - 2 * _MARGIN), {"norm": norm, "cmap": ramp},
        "weight of a pixel, in times the mean of all pixels (square roots)",
        {tick: f"{tick:.3g}" for tick in ticks},
    )  # fmt: skip
    return axes


def _coloured(values: Array, light: Array | None, colours: Palette) -> Array:
    """Return the colours of values from 0 to 1, blended with the luma of an image, if any."""
    if light is None:
        return np.asarray(colours.weight(values))[..., :3]
    cells = np.asarray(colours.weight(_REACH * values))[..., :3]
    return (1 - _KEPT) * cells + _KEPT * np.clip(light, 0, 1)[..., None]
