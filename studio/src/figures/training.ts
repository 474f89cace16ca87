// The training view as a figure: every head at the snapshot in question, and the measures of one.

import { INKS, RAMPS, scaleWords, weightTicks, type Theme } from "../colour";
import {
  curvesOf, curveWords, loggedAt, lossAxes, stepScale, stepTicks, type AxisTick,
} from "../losses"; // prettier-ignore
import { kindName } from "../model";
import type { Figure, Studio } from "../studio.svelte";
import { grouped, significant3 } from "../text";
import { sparkline, stepline } from "../parts/sparkline";
import { productRamp, WATCHED, type Training } from "../training";
import { rampOf } from "./matrixParts";
import { smallPrint } from "./print";
import {
  EDGE, element, figure, image, line, lines, rect, SMALLEST, text, widthOf,
} from "./svg"; // prettier-ignore

interface Shown {
  training: Training;
  /** The snapshot, and the head whose measures are drawn. */
  at: number;
  layer: number;
  head: number;
  /** Whether W_Q W_K^T is shown instead of the probe's attention. */
  product: boolean;
}

const MEASURES = [
  ["norm", "|W_Q W_Kᵀ|"],
  ["effective_rank", "effective rank"],
  ["symmetry", "symmetry"],
] as const;

/** The steps of snapshots below them, where there is room; they stand at equal distances. */
function snapshotTicks(steps: number[], left: number, wide: number): AxisTick[] {
  const last = steps.length - 1;
  const least = widthOf(grouped(steps[last]), SMALLEST) + 14;
  const places = steps.map((_, n) => left + (wide * n) / Math.max(last, 1));
  const found: AxisTick[] = [{ at: left, text: `step ${grouped(steps[0])}`, anchor: "start" }];
  let end = left + widthOf(found[0].text, SMALLEST);
  for (let n = 1; n < last; n++)
    if (places[n] - least / 2 > end && places[last] - places[n] > 1.5 * least) {
      found.push({ at: places[n], text: grouped(steps[n]), anchor: "middle" });
      end = places[n] + least / 2;
    }
  if (last > 0) found.push({ at: left + wide, text: grouped(steps[last]), anchor: "end" });
  return found;
}

export function trainingFigure(studio: Studio, shown: Shown, theme: Theme, wide: number): Figure {
  const { training, at, layer, head, product } = shown;
  const ink = INKS[theme];
  const { layers, steps } = training.description;
  const columns = Math.max(...layers.map((one) => one.shape[0]));
  const LEFT = EDGE + widthOf("effective rank", SMALLEST) + 6;
  const STEP = Math.min(68, (wide - LEFT - EDGE + 4) / columns),
    TILE = STEP - Math.min(8, STEP * 0.15);
  const wideCurve = wide - LEFT - EDGE - widthOf("from 0.00123 to 0.0123", SMALLEST) - 6;
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
  const chosen = layers[layer];
  const name = `${kindName(chosen)} H${head}`;
  const { ticks, title } = product
    ? productRamp(training, layer)
    : { ticks: weightTicks("root"), title: `weight, ${scaleWords("root")}` };
  const bar = { x: LEFT, y: y + 6, width: Math.min(320, wide - LEFT - EDGE) };
  const label = { size: SMALLEST, fill: ink.faint };
  parts.push(...rampOf(theme, product ? "difference" : "weight", bar, ticks));
  y += 24;
  for (const said of lines(title, SMALLEST, wide - LEFT - EDGE))
    parts.push(text(LEFT, (y += 13), said, label));
  y += 15;

  /** The steps below curves, whose ticks are these. */
  const axis = (ticks: AxisTick[]) => {
    for (const { at, text: said, anchor } of ticks)
      parts.push(line(at, y, at, y + 3, ink.faint), text(at, y + 13, said, { ...label, anchor }));
    y += 24;
  };
  const losses = curvesOf(training.description);
  if (losses.length) {
    const [top, bottom] = [y + 4, y + 64];
    const axes = lossAxes(losses, steps.at(-1) ?? 1, {
      left: LEFT,
      right: wide - EDGE,
      top,
      bottom,
    });
    const now = axes.x(steps[at]);
    const dot = loggedAt(losses[0][1], steps[at]);
    const colours = [ink.ink, ink.key];
    for (const level of axes.levels)
      parts.push(
        line(LEFT, level.at, wide - EDGE, level.at, ink.line),
        text(LEFT - 8, level.at + 3, level.text, { ...label, anchor: "end" }),
      );
    losses.forEach(([, points], n) =>
      parts.push(
        element("path", { d: axes.path(points), fill: "none", stroke: colours[n ? 1 : 0] }),
      ),
    );
    parts.push(line(now, top - 4, now, bottom, ink.query, 1.5));
    if (dot)
      parts.push(
        element("circle", { cx: axes.x(dot[0]), cy: axes.y(dot[1]), r: 3, fill: ink.query }),
      );
    y = bottom;
    axis(axes.ticks);
    losses.forEach((curve, n) => {
      parts.push(rect({ x: EDGE, y: y + 1, width: 8, height: 8 }, colours[n ? 1 : 0], { rx: "2" }));
      for (const said of lines(curveWords(curve, steps[at]), SMALLEST, wide - 2 * EDGE - 12))
        parts.push(text(EDGE + 12, (y += 13) - 5, said, label));
    });
    y += 10;
  }

  /** A measure along the training, with its value now, and from where to where it went. */
  const curve = (
    title: string,
    { path, x, ends }: { path: string; x: number; ends: string },
    now: number | null,
  ) => {
    const transform = `translate(${LEFT} ${y})`;
    const right = LEFT + wideCurve + 6;
    const value = now === null ? "" : significant3(now);
    parts.push(
      text(LEFT - 8, y + 16, title, { ...label, anchor: "end" }),
      element("path", { d: path, fill: "none", stroke: ink.ink, transform }),
      line(LEFT + x, y, LEFT + x, y + 24, ink.query, 1.5),
      text(right, y + 10, value, { size: SMALLEST }),
      text(right, y + 22, ends, label),
    );
    y += 30;
  };
  const measured = MEASURES.flatMap(([measure, title]) => {
    const series = training.series(layer, head, measure);
    return series ? [[title, series] as const] : [];
  });
  for (const [title, series] of measured)
    curve(title, sparkline(series, at, wideCurve, 24), series[at]);
  if (measured.length) axis(snapshotTicks(steps, LEFT, wideCurve));
  const { watched } = training.description;
  const watching = (Object.keys(WATCHED) as (keyof typeof WATCHED)[]).flatMap((measure) => {
    const series = training.watched(layer, head, measure);
    return series ? [[WATCHED[measure].replace("on the ", ""), series] as const] : [];
  });
  if (watched && watching.length) {
    for (const [title, series] of watching) {
      const found = stepline(series, watched.steps, steps[at], wideCurve, 24);
      curve(title.replace(" (nats)", ""), found, found.value);
    }
    const last = watched.steps.at(-1) ?? 1;
    axis(stepTicks(stepScale(last, [LEFT, LEFT + wideCurve]), last));
  }
  const unshown = product ? "" : training.unshown(at);
  const when = training.step(at);
  const along = watched ? "snapshots, and over the steps that were measured" : "snapshots";
  const axes = product
    ? "rows are features of queries, columns of keys"
    : "rows are queries, columns keys";
  return figure({
    width: wide,
    height: y + 6,
    theme,
    title: `${product ? "W_Q W_Kᵀ" : "The probe's attention"}, ${when}`,
    note: `measures: ${name}, over the ${along}; ${axes}${unshown && `. ${unshown}`}`,
    small: smallPrint(studio, null),
    parts,
    of: `step ${steps[at]} ${product ? "product" : "attention"} ${name}`,
  });
}
