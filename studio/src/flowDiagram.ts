// A token through all layers as a diagram: tokens are rows, levels columns, from the input on the
// left to the output on the right.

import { headColour, INKS, type Theme } from "./colour";
import type { Pen } from "./figure/pen";
import { strongestOf, type PathFound, type TokenFlow } from "./flow";
import type { Curve } from "./graphLayout";

/** The flow along one edge. layer: from 0. */
export interface FlowMark {
  layer: number;
  above: number;
  below: number;
  share: number;
  curve: Curve;
}

export interface Drawn {
  width: number;
  height: number;
  /** Where each token's row is, and how high; where each level's column is. */
  rows: number[];
  row: number;
  columns: number[];
  /** Every how many columns there is room for a name. */
  every: number;
  marks: FlowMark[];
  dots: { x: number; y: number; radius: number }[];
  /** The strongest paths as curves, the strongest first; or one of them, and which. */
  paths: { curve: Curve[]; product: number; place: number }[];
  /** The least that edges drawn carry of a layer. */
  held: number;
}

interface Room {
  width: number;
  height: number;
  labelWide: number;
}

/** How high a row is at least, and how far apart levels are. */
const ROW = 15,
  GAP = 18;
const TOP = 30;
/** Between the names of tokens and the first level, and likewise behind the last. */
const BESIDE = 30;

export function diagramOf(
  flow: TokenFlow,
  paths: PathFound[],
  /** Which of them is drawn alone; -1: all are. */
  alone: number,
  share: number,
  { width, height, labelWide }: Room,
): Drawn {
  const levels = flow.shares.length;
  const count = flow.tokens.length;
  const row = Math.min(30, Math.max(ROW, (height - TOP - 12) / Math.max(count, 1)));
  const rows = flow.tokens.map((_, token) => {
    const apart = flow.tokens
      .slice(0, token + 1)
      .filter((one, n, all) => n && one[0] !== all[n - 1][0]);
    return TOP + row * (token + 0.5 + apart.length);
  });
  const left = labelWide + BESIDE;
  const wide = Math.max(width, 2 * left + GAP * (levels - 1));
  const gap = (wide - 2 * left) / Math.max(levels - 1, 1);
  const columns = Array.from({ length: levels }, (_, level) => left + gap * level);
  const curveOf = (level: number, above: number, below: number): Curve => {
    const [x1, x2] = [columns[level], columns[level - 1]];
    const [y1, y2] = [rows[above], rows[below]];
    const bend = (x1 - x2) * 0.45;
    return [x1, y1, x1 - bend, y1, x2 + bend, y2, x2, y2];
  };
  let held = 1;
  const marks = flow.edges.flatMap((edges, layer) => {
    const part = strongestOf(edges, share * flow.sums[layer + 1]);
    // Of a layer that adds no relevance there is nothing to draw.
    if (flow.sums[layer + 1] > 0) held = Math.min(held, part.held / flow.sums[layer + 1]);
    return part.drawn.map(([above, below, of]): FlowMark => {
      return { layer, above, below, share: of, curve: curveOf(layer + 1, above, below) };
    });
  });
  marks.sort((a, b) => a.share - b.share);
  const dots = flow.shares.flatMap((shares, level) =>
    shares.map((of, token) => ({
      x: columns[level],
      y: rows[token],
      radius: of > 2e-4 ? 0.8 + Math.min(8, row * 0.5) * Math.sqrt(of) : 0,
    })),
  );
  const token = new Map(flow.tokens.map(([name, place], n) => [`${name} ${place}`, n]));
  const drawnPaths = paths.flatMap(({ steps, product }, place) => {
    if (alone >= 0 && place !== alone) return [];
    const found = steps.map(([name, place]) => token.get(`${name} ${place}`));
    if (!found.every((one): one is number => one !== undefined)) return [];
    const curve = found.slice(1).map((below, n) => curveOf(levels - 1 - n, found[n], below));
    return [{ curve, product, place }];
  });
  const last = rows.at(-1) ?? TOP;
  return {
    width: wide,
    height: last + row / 2 + 10,
    rows,
    row,
    columns,
    every: Math.max(1, Math.ceil(34 / gap)),
    marks,
    dots,
    paths: drawnPaths,
    held: flow.edges.length ? held : 0,
  };
}

/** Whether there is room for the name of a level: of the first, the last and some between. */
export function hasName({ columns, every }: Drawn, level: number): boolean {
  const after = columns.length - 1 - level;
  return level === 0 || after === 0 || (level % every === 0 && after >= every);
}

/** Line width of a share of the flow. */
const thick = (share: number) => 0.6 + 9 * Math.min(share, 1) ** 0.7;
const faintness = (share: number) => 0.3 + 0.6 * Math.sqrt(Math.min(share, 1));
/** How wide the n-th strongest path is, beside the first. */
const thickPath = (product: number, first: number) =>
  1.4 + 2.2 * Math.sqrt(first > 0 ? product / first : 0);

export const pathColour = (theme: Theme, place: number) =>
  headColour(theme, [1, 0, 2, 5, 3, 7, 8, 9][place % 8]);

/** Paints a diagram; under: the mark under the pointer. */
export function paintDiagram(context: Pen, drawn: Drawn, theme: Theme, under: number): void {
  const { marks, dots, paths } = drawn;
  context.lineCap = "round";
  const ink = INKS[theme];
  const along = (curve: Curve) => {
    context.moveTo(curve[0], curve[1]);
    context.bezierCurveTo(curve[2], curve[3], curve[4], curve[5], curve[6], curve[7]);
  };
  // Behind paths, the flow is faint.
  const back = paths.length ? 0.35 : 1;
  marks.forEach((mark, n) => {
    context.globalAlpha = n === under ? 1 : back * faintness(mark.share);
    context.strokeStyle = mark.above === mark.below ? ink.faint : ink.key;
    context.lineWidth = thick(mark.share) + (n === under ? 1.2 : 0);
    context.beginPath();
    along(mark.curve);
    context.stroke();
  });
  context.globalAlpha = 1;
  context.fillStyle = ink.ink;
  for (const { x, y, radius } of dots) {
    if (!radius) continue;
    context.beginPath();
    context.arc(x, y, radius, 0, 2 * Math.PI);
    context.fill();
  }
  [...paths].reverse().forEach(({ curve, product, place }, n) => {
    context.strokeStyle = pathColour(theme, place);
    context.globalAlpha = n < paths.length - 1 ? 0.85 : 1;
    context.lineWidth = thickPath(product, paths[0].product);
    context.beginPath();
    curve.forEach(along);
    context.stroke();
  });
  context.globalAlpha = 1;
}
