// A head in two traces, and what changed, as a figure.

import { INKS, scaleWords, weightTicks, type Theme } from "../colour";
import { changeWords, differenceTicks, type Bounds } from "../compare";
import { headName, type Example } from "../model";
import type { Figure, Studio } from "../studio.svelte";
import {
  coarseWords, framed, frameOf, inSight, rampOf, rangeWords, type Frame,
  type MatrixShown,
} from "./matrixParts"; // prettier-ignore
import { smallPrint } from "./print";
import { EDGE, figure, fitted, SMALLEST, text } from "./svg";

interface Shown {
  example: Example;
  head: number;
  /** Of the first trace, of the second, and the difference. */
  matrices: MatrixShown[];
  titles: string[];
  change: Bounds | null;
  entropy: number | null;
  /** Whether both matrices are whole. */
  exact: boolean;
}

const APART = 12;

/** The frame of the first of three matrices beside each other: their rows are level, and have the
 * names of the first alone. */
function besideEachOther(matrices: MatrixShown[], width: number): Frame {
  const frames = matrices.map((matrix) => frameOf(matrix, 18, width, matrices.length, APART, 0.9));
  const [first] = frames;
  const largest = (of: (frame: Frame) => number) => Math.max(...frames.map(of));
  return {
    ...first,
    y: largest((frame) => frame.y),
    zoom: Math.min(...frames.map(({ zoom }) => zoom)),
    named: frames.every(({ named }) => named),
    names: { rows: first.names.rows, columns: largest(({ names }) => names.columns) },
  };
}

export async function compareFigure(
  studio: Studio,
  shown: Shown,
  theme: Theme,
  width: number,
): Promise<Figure> {
  const { example, head, matrices, titles, exact } = shown;
  const { scale } = studio.state;
  const beside = width >= 500;
  const parts: string[] = [];
  let end = 0;
  const ramps: { x: number; width: number }[] = [];
  const level = beside ? besideEachOther(matrices, width) : null;
  for (const [n, matrix] of matrices.entries()) {
    const top = beside ? 0 : end;
    const frame = level ? { ...level } : frameOf(matrix, top + 18, width, 1, APART, 0.9);
    const wide = inSight(matrix).columns * frame.zoom;
    if (beside) frame.x += n * (wide + APART);
    frame.bare = beside && n > 0;
    frame.right = Math.min(frame.right, frame.x + wide + APART);
    // Beside each other a title has the width of its matrix; one above the other, the figure's.
    const left = beside ? frame.x : EDGE;
    const room = beside ? wide : width - 2 * EDGE;
    const title = fitted(titles[n], SMALLEST, room * 0.94);
    parts.push(
      text(left, top + 10, title, { size: SMALLEST, weight: 600 }),
      ...(await framed(studio, matrix, theme, frame)),
    );
    end = Math.max(end, frame.y + inSight(matrix).rows * frame.zoom + 16);
    ramps.push({ x: frame.x, width: Math.min(wide, 200) });
  }
  const label = { size: SMALLEST, fill: INKS[theme].faint };
  const name = scaleWords(scale);
  const least = exact ? "" : ", at least";
  const under = (ramp: { x: number; width: number }, of: "weight" | "difference", said: string) => {
    const ticks = of === "weight" ? weightTicks(scale) : differenceTicks(scale);
    parts.push(
      ...rampOf(theme, of, { ...ramp, y: end }, ticks),
      text(ramp.x, end + 31, fitted(said, SMALLEST, width - EDGE - ramp.x), label),
    );
  };
  under(ramps[0], "weight", `weight, ${name}`);
  if (!beside) end += 40;
  under(ramps[2], "difference", `second less first${least}, ${name}`);
  const words = [
    changeWords(shown.change, shown.entropy),
    rangeWords(matrices[0]),
    coarseWords(studio, matrices[0]),
    exact ? "" : "What was not kept lies between 0 and what its row left out.",
  ];
  return figure({
    width,
    height: end + 36,
    theme,
    title: `${headName(example, matrices[0].layer, head)} in two traces`,
    note: words.filter(Boolean).join(" "),
    small: smallPrint(studio, example),
    parts,
  });
}
