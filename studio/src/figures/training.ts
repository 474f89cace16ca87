// The training view as a figure: every head at the snapshot in question, and the measures of one.

import { INKS, RAMPS, type Theme } from "../colour";
import { KINDS } from "../model";
import type { Figure, Studio } from "../studio.svelte";
import { grouped, three } from "../text";
import type { Training } from "../training";
import { smallPrint } from "./print";
import { EDGE, figure, image, line, n1, SMALLEST, text, widthOf } from "./svg";

export function trainingFigure(
  studio: Studio,
  training: Training,
  at: number,
  layer: number,
  head: number,
  product: boolean,
  theme: Theme,
  wide: number,
): Figure {
  const ink = INKS[theme];
  const { layers, steps } = training.description;
  const columns = Math.max(...layers.map((one) => one.shape[0]));
  const LEFT = EDGE + widthOf("effective rank", SMALLEST) + 6;
  const STEP = Math.min(68, (wide - LEFT - EDGE + 4) / columns),
    TILE = STEP - Math.min(8, STEP * 0.15);
  const wideCurve = wide - LEFT - EDGE - 44;
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
      text(LEFT - 8, y + TILE / 2 + 3, `${KINDS[one.kind]?.[0] ?? one.kind} L${one.index}`, {
        size: SMALLEST,
        fill: ink.faint,
        anchor: "end",
      }),
    );
    for (let which = 0; which < one.shape[0]; which++) {
      const shades = product
        ? training.product(number, which, at)
        : training.attention(number, which, at);
      const size = one.product_size ?? 1;
      if (shades)
        parts.push(
          image(
            LEFT + which * STEP,
            y,
            TILE,
            TILE,
            shades,
            product ? size : one.shape[1],
            product ? size : one.shape[2],
            product ? RAMPS[theme].difference : RAMPS[theme].weight,
          ),
        );
    }
    y += STEP;
  });
  y += 14;
  const chosen = layers[layer];
  const name = `${KINDS[chosen.kind]?.[0] ?? chosen.kind} L${chosen.index} H${head}`;
  const measures = [
    ["norm", "|W_Q W_Kᵀ|"],
    ["effective_rank", "effective rank"],
    ["symmetry", "symmetry"],
  ] as const;
  measures.forEach(([measure, title]) => {
    const series = chosen[measure]?.map((row) => row[head]);
    if (!series) return;
    const there = series.filter((one): one is number => one !== null);
    const [low, high] = [Math.min(...there), Math.max(...there)];
    const points = series.flatMap((one, n) =>
      one === null
        ? []
        : [
            `${n1(LEFT + (wideCurve * n) / Math.max(series.length - 1, 1))},${n1(y + 22 - (20 * (one - low)) / (high - low || 1))}`,
          ],
    );
    parts.push(text(LEFT - 8, y + 16, title, { size: SMALLEST, fill: ink.faint, anchor: "end" }));
    parts.push(`<polyline points="${points.join(" ")}" fill="none" stroke="${ink.ink}"/>`);
    const x = LEFT + (wideCurve * at) / Math.max(series.length - 1, 1);
    parts.push(line(x, y, x, y + 24, ink.query, 1.5));
    parts.push(
      text(LEFT + wideCurve + 6, y + 16, series[at] === null ? "" : three(series[at]!), {
        size: SMALLEST,
      }),
    );
    y += 30;
  });
  const unshown = product ? "" : training.unshown(at);
  const when =
    at === 0 && steps[0] === 0 ? "step 0: random matrices" : `step ${grouped(steps[at])}`;
  return figure(
    wide,
    y + 6,
    theme,
    `${product ? "W_Q W_Kᵀ" : "The probe's attention"}, ${when}`,
    `curves: ${name}, over the snapshots; rows are ${product ? "features of queries" : "queries"}, columns ${product ? "of keys" : "keys"}${unshown && `. ${unshown}`}`,
    smallPrint(studio, null),
    parts.join(""),
  );
}
