// The part of the matrix that is in sight as a figure.

import { INKS, scaleWords, weightTicks, type Theme } from "../colour";
import { headName, type Example } from "../model";
import { blocksOf, dotOf } from "../overview";
import type { Figure, Studio } from "../studio.svelte";
import {
  coarseWords, framed, frameOf, inSight, rampOf, rangeWords, type MatrixShown,
} from "./matrixParts"; // prettier-ignore
import { smallPrint } from "./print";
import { EDGE, figure, lines, SMALLEST, text } from "./svg";

interface Shown extends MatrixShown {
  example: Example;
  head: number;
}

export async function matrixFigure(
  studio: Studio,
  shown: Shown,
  theme: Theme,
  width: number,
): Promise<Figure> {
  const { example, layer, head, alone } = shown;
  const frame = frameOf(shown, 0, width);
  const parts = await framed(studio, shown, theme, frame);
  const { x, y, zoom } = frame;
  const bar = y + inSight(shown).rows * zoom + 10;
  const room = width - x - EDGE;
  const { scale } = studio.state;
  parts.push(
    ...rampOf(theme, "weight", { x, y: bar, width: Math.min(200, room) }, weightTicks(scale)),
  );
  let end = bar + 20;
  const dots = alone ? dotOf(blocksOf(layer)) : coarseWords(studio, shown);
  const says = `weight, ${scaleWords(scale)}${dots && `; ${dots}`}`;
  for (const words of lines(says, SMALLEST, room))
    parts.push(text(x, (end += 12), words, { size: SMALLEST, fill: INKS[theme].faint }));
  return figure({
    width,
    height: end + 4,
    theme,
    title: headName(example, layer, head),
    note: rangeWords(shown),
    small: smallPrint(studio, example),
    parts,
  });
}
