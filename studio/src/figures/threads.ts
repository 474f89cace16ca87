// Threads between two columns as a figure.

import { headColour, INKS, type Theme } from "../colour";
import { headName, type Example, type Layer } from "../model";
import type { Figure, Studio } from "../studio.svelte";
import { percent, visible } from "../text";
import { breadth, curve, type Columns, type Line, type Shares } from "../threads";
import { smallPrint } from "./print";
import { EDGE, element, figure, fitted, fixed1, legend, line, rect } from "./svg";
import { SMALLEST, text, widthOf } from "./svg";

interface Shown {
  example: Example;
  layer: Layer;
  chosen: number[];
  query: number;
  key: number;
  columns: Columns;
  /** The threads between two columns so far apart. */
  lines: (across: number) => Line[];
  /** What each key gets, and of which it is at least that. */
  atKeys: Shares;
  /** The number beside each token, "" where there is none, and what they are. */
  numbers: { queries: string[]; keys: string[]; what: string };
  /** Whether each row kept as much as is to be drawn. */
  kept: boolean;
}

export function threadsFigure(studio: Studio, shown: Shown, theme: Theme, wide: number): Figure {
  const { example, layer, chosen, query, key, columns, lines, atKeys, numbers } = shown;
  const ink = INKS[theme];
  const row = Math.min(Math.max(columns.row, 13), 24);
  const high = row / columns.row;
  const size = Math.min(12, Math.max(SMALLEST, row * 0.55));
  const names = (tokens: string[]) =>
    Math.max(
      ...tokens.map((token) => widthOf(visible(token, 24), size, 600)),
      widthOf("queries", SMALLEST, 600),
    );
  const room = (wide - 2 * EDGE) * 0.34;
  const side = {
    queries: Math.min(room, names(layer.queryTokens)),
    keys: Math.min(room, names(layer.keyTokens)),
  };
  const beside = (of: string[]) =>
    Math.ceil(Math.max(...of.map((number) => (number ? widthOf(number, SMALLEST) + 6 : 0)), 0));
  const left = EDGE + beside(numbers.queries) + side.queries + 6;
  const right = wide - EDGE - beside(numbers.keys) - side.keys - 6;
  const number = (x: number, y: number, content: string, anchor?: "end") =>
    parts.push(text(x, y, content, { size: SMALLEST, fill: ink.faint, anchor, middle: true }));
  const end = (of: string, sequence: string) =>
    fitted(layer.one ? of : `${of} (${sequence})`, SMALLEST, wide / 2 - EDGE);
  const parts: string[] = [
    text(EDGE, 9, end("queries", layer.queries), { size: SMALLEST, fill: ink.query, weight: 600 }),
    text(wide - EDGE, 9, end("keys", layer.keys), {
      size: SMALLEST,
      fill: ink.key,
      weight: 600,
      anchor: "end",
    }),
  ];
  const paths = lines(right - left).map((drawn) => {
    const line = { ...drawn, y1: drawn.y1 * high, y2: drawn.y2 * high };
    return element("path", {
      d: `M${fixed1(line.x1)} ${fixed1(line.y1)}C${curve(line).map(fixed1).join(" ")}`,
      stroke: line.colour,
      "stroke-width": line.width.toFixed(2),
      "stroke-opacity": line.opacity.toFixed(3),
    });
  });
  const moved = `translate(${fixed1(left)} 20)`;
  parts.push(
    element("g", { transform: moved, fill: "none", "stroke-linecap": "round" }, paths.join("")),
  );
  const most = Math.max(...atKeys.shares, 1e-9);
  const at = (place: number, count: number) => 20 + columns.y(place, count) * high;
  layer.queryTokens.forEach((token, place) => {
    const on = place === query;
    parts.push(
      text(left - 6, at(place, layer.rows), fitted(visible(token, 24), size, side.queries), {
        size,
        anchor: "end",
        fill: on ? ink.query : ink.ink,
        weight: on ? 600 : undefined,
        middle: true,
      }),
    );
    if (numbers.queries[place]) number(EDGE, at(place, layer.rows), numbers.queries[place]);
  });
  layer.keyTokens.forEach((token, place) => {
    const y = at(place, layer.columns);
    const share = atKeys.shares[place];
    const width = Math.max(2, side.keys * (query < 0 ? share / most : share));
    const bar = { x: right + 6, y: y + size * 0.58, width, height: 1.6 };
    if (share > 0.004) parts.push(rect(bar, ink.key, { opacity: 0.75, rx: "0.8" }));
    const on = place === key;
    parts.push(
      text(right + 6, y, fitted(visible(token, 24), size, side.keys), {
        size,
        fill: on ? ink.key : ink.ink,
        weight: on ? 600 : undefined,
        middle: true,
      }),
    );
    if (numbers.keys[place]) number(wide - EDGE, y, numbers.keys[place], "end");
  });
  let y = 20 + columns.tall * high + 14;
  const named = legend(
    chosen.map((head) => [`H${head}`, headColour(theme, head)]),
    EDGE,
    y,
    wide - EDGE,
    ink.faint,
  );
  parts.push(named.svg);
  y += named.high;
  // The scale bar: how wide a thread is.
  let x = EDGE;
  for (const share of [0.1, 0.5, 1]) {
    parts.push(
      line(x, y - 3, x + 18, y - 3, ink.faint, breadth(share)),
      text(x + 23, y, String(share), { size: SMALLEST, fill: ink.faint }),
    );
    x += 50;
  }
  const title =
    chosen.length === 1
      ? headName(example, layer, chosen[0])
      : `Layer ${layer.index}, ${chosen.length} heads`;
  const note = [
    `Threads hold ${percent(studio.state.share)} of each row's mass`,
    shown.kept ? "" : ", or as much of it as was kept",
    studio.state.sinks ? "; first token and separators hidden" : "",
    "; the rest is a stub.",
    [...numbers.queries, ...numbers.keys].some(Boolean) ? ` Numbers: ${numbers.what}.` : "",
  ].join("");
  const small = smallPrint(studio, example);
  return figure({ width: wide, height: y + 6, theme, title, note, small, parts });
}
