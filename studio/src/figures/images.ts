// What one position looks at in an image, as a figure.

import { INKS, rootTicks, type Theme } from "../colour";
import { paintMap, type ImageMap } from "../imageMap";
import { topOf } from "../images";
import type { Example, Layer } from "../model";
import type { Figure, Studio } from "../studio.svelte";
import { percent, visible, weightText } from "../text";
import { rampOf } from "./matrixParts";
import { smallPrint } from "./print";
import { EDGE, figure, fitted, picture, SMALLEST, text } from "./svg";

interface Shown {
  example: Example;
  layer: Layer;
  map: ImageMap;
  /** Who looks, and in which head. */
  word: string;
  title: string;
}

/** The map, and the strongest patches: beside it on a page, below it in a column. */
export function imageFigure(studio: Studio, shown: Shown, theme: Theme, width: number): Figure {
  const { example, layer, map, word, title } = shown;
  const { looks, shape } = map;
  const ink = INKS[theme];
  const beside = width >= 500;
  const list = 190;
  const most = width - 2 * EDGE - (beside ? list + 24 : 0);
  const wide = Math.min(most, 420 * Math.min(shape, 1.4));
  const high = wide / shape;
  const canvas = document.createElement("canvas");
  paintMap(canvas, map, theme);
  const parts = [picture({ x: EDGE, y: 0, width: wide, height: high }, canvas)];
  const ramp = { x: EDGE, y: high + 10, width: Math.min(wide, 200) };
  const label = { size: SMALLEST, fill: ink.faint };
  parts.push(
    ...rampOf(theme, "weight", ramp, rootTicks(topOf(looks.weights), weightText)),
    text(EDGE, high + 41, fitted("weight, square-root scale", SMALLEST, wide), label),
  );
  const left = beside ? EDGE + wide + 24 : EDGE;
  let y = beside ? 9 : high + 64;
  const right = Math.min(left + list, width - EDGE);
  const end = { ...label, anchor: "end" as const };
  parts.push(
    text(left, y, "strongest", { size: SMALLEST, weight: 600 }),
    text(right - 96, y, "row", end),
    text(right - 50, y, "column", end),
    text(right, y, "weight", end),
  );
  for (const [position, row, column, weight] of looks.best) {
    y += 14;
    const name = fitted(visible(layer.keyTokens[position], 20), SMALLEST, right - 124 - left);
    parts.push(
      text(left, y, name, { size: SMALLEST, fill: ink.key }),
      text(right - 96, y, String(row), end),
      text(right - 50, y, String(column), end),
      text(right, y, weightText(weight), end),
    );
  }
  const beyond =
    looks.outside > 5e-4 ? `, ${percent(looks.outside)} on bars beside the picture` : "";
  return figure({
    width,
    height: Math.max(high + 46, y + 6),
    theme,
    title: `“${word}” in ${title}`,
    note: `${percent(looks.mass)} of its weight is on the image${beyond}.`,
    small: smallPrint(studio, example),
    parts,
    of: `${title} ${word}`,
  });
}
