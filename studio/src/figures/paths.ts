// A token through all layers, and paths between two tokens, as a figure.

import { INKS, type Theme } from "../colour";
import { ofBoth, type FlowKind, type PathsBetween, type Place, type TokenFlow } from "../flow";
import { faintness, pathColour, thick, thickPath, type Drawn } from "../flowDiagram";
import type { Curve } from "../graphLayout";
import type { Example } from "../model";
import type { Figure, Studio } from "../studio.svelte";
import { orMore, significant3 } from "../text";
import { smallPrint } from "./print";
import { EDGE, element, figure, fitted, fixed1, SMALLEST, text } from "./svg";

interface Shown {
  example: Example;
  kind: FlowKind;
  flow: TokenFlow;
  drawn: Drawn;
  word: (place: Place) => string;
  levels: string[];
  title: string;
  output: number;
  between: PathsBetween | null;
}

export function pathsFigure(studio: Studio, shown: Shown, theme: Theme, wide: number): Figure {
  const { flow, drawn, word, kind, levels, between } = shown;
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
  const room = (drawn.columns[0] ?? 0) - 26;
  flow.tokens.forEach((place, token) => {
    const label = fitted(word(place), size, room);
    const [first, last] = [drawn.columns[0], drawn.columns.at(-1)!];
    const y = drawn.rows[token];
    const fill = place[0] === kind.keys ? ink.key : ink.query;
    parts.push(text(first - 12, y, label, { size, anchor: "end", fill, middle: true }));
    if (place[0] === kind.queries) {
      const weight = place[1] === shown.output ? 700 : undefined;
      parts.push(text(last + 12, y, label, { size, fill: ink.query, weight, middle: true }));
    }
  });
  drawn.columns.forEach((x, level) => {
    if (level % drawn.every === 0 || level === drawn.columns.length - 1)
      parts.push(text(x, 12, levels[level], { size: SMALLEST, fill: ink.faint, anchor: "middle" }));
  });
  const scale = Math.min(1, (wide - 2 * EDGE) / drawn.width);
  const moved = `translate(${EDGE} 0) scale(${scale.toFixed(4)})`;
  const edges =
    "Coloured lines come from another token, grey ones from the token itself; a dot is larger " +
    `where more is. Edges drawn carry ${orMore(drawn.held)} of each layer.`;
  const strongest = drawn.paths.slice(0, 3).map(({ product }) => significant3(product));
  const which =
    drawn.paths.length === 1 && between!.paths.length > 1
      ? `Path ${drawn.paths[0].place + 1} alone: product`
      : "Strongest paths: products";
  const products = between?.paths.length
    ? ` ${which} ${strongest.join(", ")}; all paths together ${significant3(between.least)}.`
    : "";
  const both = ofBoth(kind, flow);
  return figure({
    width: wide,
    height: drawn.height * scale,
    theme,
    title: shown.title,
    note: edges + (both && ` ${both}`) + products,
    small: smallPrint(studio, shown.example),
    parts: [element("g", { transform: moved }, parts.join(""))],
  });
}
