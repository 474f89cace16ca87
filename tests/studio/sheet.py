"""What the sheet of all heads shows on its canvas."""

from __future__ import annotations

from typing import Any

import numpy as np

#: The dots of a head on the sheet of all heads, in their middles: layer, head, rows, columns.
_DOTS = """([layer, head, rows, columns]) => {
    const tile = document.querySelector(`.sheet [data-cell="${layer}.${head}"]`);
    const canvas = tile?.closest(".sheet").querySelector("canvas:not(.waiting)");
    if (!canvas) return null;
    const ratio = canvas.width / canvas.clientWidth, side = tile.clientWidth * ratio;
    const { data } = canvas.getContext("2d").getImageData(
        tile.offsetLeft * ratio, tile.offsetTop * ratio, side, side);
    const found = [];
    for (let row = 0; row < rows; row++)
        for (let column = 0; column < columns; column++) {
            const x = Math.floor((column + 0.5) * side / columns);
            const y = Math.floor((row + 0.5) * side / rows);
            found.push([...data.slice(4 * (y * side + x), 4 * (y * side + x) + 3)]);
        }
    return found;
}"""


def sheet_dots(
    page: Any, layer: int, head: int, rows: int, columns: int
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The colours of a head's dots among all heads once they are painted, (rows, columns, 3)."""
    for _ in range(400):
        found = page.evaluate(_DOTS, [layer, head, rows, columns])
        if found:
            return np.array(found, np.uint8).reshape(rows, columns, 3)
        page.wait_for_timeout(25)
    raise AssertionError("the sheet of all heads was not painted")
