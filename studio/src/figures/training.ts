// The training view as a figure: every head at the snapshot in question, and the measures of one.

import { INKS, RAMPS, type Theme } from "../colour";
import { kindName } from "../model";
import type { Figure, Studio } from "../studio.svelte";
import { significant3 } from "../text";
import { sparkline, stepline } from "../parts/sparkline";
import { WATCHED, type Training } from "../training";
import { smallPrint } from "./print";
import { EDGE, element, figure, image, line, SMALLEST, text, widthOf } from "./svg";

interface Shown {
  training: Training;
  /** The snapshot, and the head whose measures are drawn. */
  at: number;
  layer: number;
  head: number;
  /** Whether W_Q W_K^T is shown instead of the probe's attention. */
  product: boolean;
}

export function trainingFigure(studio: Studio, shown: Shown, theme: Theme, wide: number): Figure {
  const { training, at, layer, head, product } = shown;
  const ink = INKS[theme];
  const { layers, steps } = training.description;
  const columns = Math.max(...layers.map((one) => one.shape[0]));
  const LEFT = EDGE + widthOf("effective rank", SMALLEST) + 6;
  const STEP = Math.min(68, (wide - LEFT - EDGE + 4) / columns),
    TILE = STEP - Math.min(8, STEP * 0.15);
  const wideCurve = wide - LEFT - EDGE - widthOf("0.00123 to 0.0123", SMALLEST) - 6;
  const parts: string[] = [];
  for (
    let which = 0;
    which < columns;
    which += Math.ceil((widthOf(`H${columns}`, SMALLEST) + 1) / STEP)
  )
    parts.push(
      text(LEFT + which * STEP + TILE / 2, 12, `H${which}`, {
        size: SMALLEST,
        fill: ink.faint,
        anchor: "middle",
      }),
    );
  let y = 20;
  layers.forEach((one, number) => {
    parts.push(
      text(LEFT - 8, y + TILE / 2 + 3, kindName(one), {
        size: SMALLEST,
        fill: ink.faint,
        anchor: "end",
      }),
    );
    for (let which = 0; which < one.shape[0]; which++) {
      const { shades, rows, columns } = training.picture(number, which, at, product);
      const box = { x: LEFT + which * STEP, y, width: TILE, height: TILE };
      const table = product ? RAMPS[theme].difference : RAMPS[theme].weight;
      if (shades) parts.push(image(box, { shades, rows, columns }, table));
    }
    y += STEP;
  });
  y += 14;
  const chosen = layers[layer];
  const name = `${kindName(chosen)} H${head}`;
  const measures = [
    ["norm", "|W_Q W_Kᵀ|"],
    ["effective_rank", "effective rank"],
    ["symmetry", "symmetry"],
  ] as const;
  /** A measure along the training, with its value now, and all that it ranges over. */
  const curve = (
    title: string,
    { path, x, range }: { path: string; x: number; range: string },
    now: number | null,
  ) => {
    const transform = `translate(${LEFT} ${y})`;
    const right = LEFT + wideCurve + 6;
    const value = now === null ? "" : significant3(now);
    parts.push(
      text(LEFT - 8, y + 16, title, { size: SMALLEST, fill: ink.faint, anchor: "end" }),
      element("path", { d: path, fill: "none", stroke: ink.ink, transform }),
      line(LEFT + x, y, LEFT + x, y + 24, ink.query, 1.5),
      text(right, y + 10, value, { size: SMALLEST }),
      text(right, y + 22, range, { size: SMALLEST, fill: ink.faint }),
    );
    y += 30;
  };
  measures.forEach(([measure, title]) => {
    const series = chosen[measure]?.map((row) => row[head]);
    if (!series) return;
    curve(title, sparkline(series, at, wideCurve, 24), series[at]);
  });
  const { watched } = training.description;
  for (const measure of watched ? (Object.keys(WATCHED) as (keyof typeof WATCHED)[]) : []) {
    const series = training.watched(layer, head, measure);
    if (!series || !watched) continue;
    const found = stepline(series, watched.steps, steps[at], wideCurve, 24);
    curve(WATCHED[measure].replace(" (nats)", "").replace("on the ", ""), found, found.value);
  }
  const unshown = product ? "" : training.unshown(at);
  const when = training.step(at);
  const along = watched ? "snapshots, and the steps that were measured" : "snapshots";
  const axes = product
    ? "rows are features of queries, columns of keys"
    : "rows are queries, columns keys";
  return figure({
    width: wide,
    height: y + 6,
    theme,
    title: `${product ? "W_Q W_Kᵀ" : "The probe's attention"}, ${when}`,
    note: `curves: ${name}, over the ${along}; ${axes}${unshown && `. ${unshown}`}`,
    small: smallPrint(studio, null),
    parts,
  });
}
