// A token through all layers, and paths between two tokens, as a figure.

import { INKS, type Theme } from "../colour";
import { ofBoth, type FlowKind, type PathsBetween, type Place, type TokenFlow } from "../flow";
import {
  BESIDE,
  diagramOf,
  faintness,
  hasName,
  pathColour,
  thick,
  thickPath,
  type Drawn,
} from "../flowDiagram";
import type { Curve } from "../graphLayout";
import type { Example } from "../model";
import type { Figure, Studio } from "../studio.svelte";
import { betweenText, orMore, significant3 } from "../text";
import { smallPrint } from "./print";
import { EDGE, element, figure, fitted, fixed1, SMALLEST, text } from "./svg";

interface Shown {
  example: Example;
  kind: FlowKind;
  flow: TokenFlow;
  /** What edges carry of each layer. */
  share: number;
  labelWide: number;
  word: (place: Place) => string;
  levels: string[];
  title: string;
  output: number;
  between: PathsBetween | null;
  /** Which of the paths is drawn alone; -1: all are. */
  path: number;
}

/** What is the least that can be read: rows of the smallest letters, and levels so far apart. */
const LEAST = { row: 12, gap: 8 };

/** Where many layers do not fit into the width, some stand below the others: from which level to
 * which each part goes. */
function partsOf(layers: number, room: number): [from: number, to: number][] {
  const beside = Math.max(1, Math.floor(room / LEAST.gap));
  const size = Math.ceil(layers / Math.max(1, Math.ceil(layers / beside)));
  const parts: [number, number][] = [];
  for (let from = 0; from === 0 || from < layers; from += size)
    parts.push([from, Math.min(from + size, layers)]);
  return parts;
}

export function pathsFigure(studio: Studio, shown: Shown, theme: Theme, wide: number): Figure {
  const { flow, kind, levels, between } = shown;
  const labelWide = Math.min(shown.labelWide, wide / 6);
  const [all, beside] = [wide - 2 * EDGE, 2 * (labelWide + BESIDE)];
  const parts = partsOf(flow.edges.length, all - beside);
  const gap = (all - beside) / Math.max(1, parts[0][1]);
  const made = parts.map(([from, to]) => {
    const some = {
      ...flow,
      shares: flow.shares.slice(from, to + 1),
      edges: flow.edges.slice(from, to),
      sums: flow.sums.slice(from, to + 1),
    };
    // Steps begin at the last layer.
    const paths = (between?.paths ?? []).map(({ product, steps }) => ({
      product,
      steps: steps.slice(flow.edges.length - to, flow.edges.length - from + 1),
    }));
    return diagramOf(some, paths, shown.path, shown.share, {
      width: beside + gap * (to - from),
      height: 0,
      labelWide,
      least: { ...LEAST, row: parts.length > 1 ? LEAST.row : 15 },
    });
  });
  let y = 0;
  const content = made.map((drawn, n) => {
    const names = levels.slice(parts[n][0], parts[n][1] + 1);
    const ends = { first: n === 0, last: n === made.length - 1 };
    const svg = partOf(shown, drawn, names, ends, theme);
    const moved = `translate(${EDGE} ${fixed1(y)})`;
    y += drawn.height;
    return element("g", { transform: moved }, svg);
  });
  const held = Math.min(...made.map((drawn) => drawn.held));
  const below = parts.length > 1 ? " The later layers stand below." : "";
  const edges =
    "Coloured lines come from another token, grey ones from the token itself; a dot is larger " +
    `where more is. Edges drawn carry ${orMore(held)} of each layer.${below}`;
  const { paths } = made[0];
  const strongest = paths.slice(0, 3).map(({ product }) => significant3(product));
  const which =
    paths.length === 1 && between!.paths.length > 1
      ? `Path ${paths[0].place + 1} alone: product`
      : "Strongest paths: products";
  const products = between?.paths.length
    ? ` ${which} ${strongest.join(", ")}; all paths together ${betweenText(between)}.`
    : "";
  const both = ofBoth(kind, flow);
  return figure({
    width: wide,
    height: y,
    theme,
    title: shown.title,
    note: edges + (both && ` ${both}`) + products,
    small: smallPrint(studio, shown.example),
    parts: content,
  });
}

/** Some layers. ends: whether they are the first, and whether the last. */
function partOf(
  { flow, kind, word, output }: Shown,
  drawn: Drawn,
  levels: string[],
  ends: { first: boolean; last: boolean },
  theme: Theme,
): string {
  const ink = INKS[theme];
  const path = (curve: Curve, stroke: string, width: number, opacity: number) => {
    const [x1, y1, ...bend] = curve.map(fixed1);
    return element("path", {
      d: `M${x1} ${y1}C${bend.join(" ")}`,
      stroke,
      fill: "none",
      "stroke-width": width.toFixed(2),
      "stroke-opacity": opacity.toFixed(3),
    });
  };
  const back = drawn.paths.length ? 0.35 : 1;
  const parts = drawn.marks.map((mark) =>
    path(
      mark.curve,
      mark.above === mark.below ? ink.faint : ink.key,
      thick(mark.share),
      back * faintness(mark.share),
    ),
  );
  for (const { x, y, radius } of drawn.dots)
    if (radius) parts.push(element("circle", { cx: x, cy: y, r: radius, fill: ink.ink }));
  drawn.paths.forEach(({ curve, product, place }) => {
    const width = thickPath(product, drawn.paths[0].product);
    for (const one of curve) parts.push(path(one, pathColour(theme, place), width, 1));
  });
  const size = Math.max(SMALLEST, Math.min(12, drawn.row * 0.72));
  const room = drawn.columns[0] - 26;
  flow.tokens.forEach((place, token) => {
    const label = fitted(word(place), size, room);
    const [first, last] = [drawn.columns[0], drawn.columns.at(-1)!];
    const y = drawn.rows[token];
    const own = place[0] === kind.keys ? ink.key : ink.query;
    const fill = ends.first ? own : ink.faint;
    parts.push(text(first - 12, y, label, { size, anchor: "end", fill, middle: true }));
    if (ends.last && place[0] === kind.queries) {
      const weight = place[1] === output ? 700 : undefined;
      parts.push(text(last + 12, y, label, { size, fill: ink.query, weight, middle: true }));
    }
  });
  drawn.columns.forEach((x, level) => {
    if (hasName(drawn, level))
      parts.push(text(x, 12, levels[level], { size: SMALLEST, fill: ink.faint, anchor: "middle" }));
  });
  return parts.join("");
}
