// Threads between two columns as a figure.

import { headColour, INKS, type Theme } from "../colour";
import { headName, type Example, type Layer } from "../model";
import type { Figure, Studio } from "../studio.svelte";
import { percent, visible } from "../text";
import { breadth, curve, type Line } from "../weave";
import { bounded } from "../words";
import { smallPrint } from "./print";
import { EDGE, figure, fitted, legend, n1, rect, SMALLEST, text, widthOf } from "./svg";

interface Layout {
  row: number;
  tall: number;
  shift: (count: number) => number;
  /** What each key gets, and of which it is at least that. */
  shares: Float64Array;
  least: Set<number>;
  /** Whether each row kept as much as is to be drawn. */
  kept: boolean;
}

export function threadsFigure(
  studio: Studio,
  example: Example,
  layer: Layer,
  chosen: number[],
  query: number,
  key: number,
  theme: Theme,
  wide: number,
  lines: (across: number) => Line[],
  layout: Layout,
): Figure {
  const ink = INKS[theme];
  const row = Math.min(Math.max(layout.row, 13), 24),
    high = row / layout.row;
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
  const numbers = query >= 0 ? 26 : 0;
  const left = EDGE + side.queries + 6,
    right = wide - EDGE - numbers - side.keys - 6;
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
    `<g transform="translate(${n1(left)} 20)" fill="none" stroke-linecap="round">`,
  ];
  for (const drawn of lines(right - left)) {
    const line = { ...drawn, y1: drawn.y1 * high, y2: drawn.y2 * high };
    const bend = curve(line).map(n1);
    parts.push(
      `<path d="M${n1(line.x1)} ${n1(line.y1)}C${bend.slice(0, 2).join(" ")} ${bend.slice(2, 4).join(" ")} ${bend.slice(4).join(" ")}" stroke="${line.colour}" stroke-width="${line.width.toFixed(2)}" stroke-opacity="${line.opacity.toFixed(3)}"/>`,
    );
  }
  parts.push("</g>");
  const most = Math.max(...layout.shares, 1e-9);
  const at = (place: number, count: number) =>
    20 + (layout.shift(count) + (place + 0.5) * layout.row) * high;
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
  });
  layer.keyTokens.forEach((token, place) => {
    const y = at(place, layer.columns),
      share = layout.shares[place];
    if (share > 0.004)
      parts.push(
        rect(
          right + 6,
          y + size * 0.58,
          Math.max(2, side.keys * (query < 0 ? share / most : share)),
          1.6,
          ink.key,
          ' fill-opacity="0.75" rx="0.8"',
        ),
      );
    const on = place === key;
    parts.push(
      text(right + 6, y, fitted(visible(token, 24), size, side.keys), {
        size,
        fill: on ? ink.key : ink.ink,
        weight: on ? 600 : undefined,
        middle: true,
      }),
    );
    if (query >= 0 && share >= 0.005)
      parts.push(
        text(wide - EDGE, y, bounded(share.toFixed(2), layout.least.has(place)), {
          size: SMALLEST,
          fill: ink.faint,
          anchor: "end",
          middle: true,
        }),
      );
  });
  let y = 20 + layout.tall * high + 14;
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
      `<line x1="${n1(x)}" x2="${n1(x + 18)}" y1="${n1(y - 3)}" y2="${n1(y - 3)}" stroke="${ink.faint}" stroke-width="${breadth(share).toFixed(2)}"/>`,
      text(x + 23, y, String(share), { size: SMALLEST, fill: ink.faint }),
    );
    x += 50;
  }
  const title =
    chosen.length === 1
      ? headName(example, layer, chosen[0])
      : `Layer ${layer.index}, ${chosen.length} heads`;
  const note = `Threads hold ${percent(studio.state.share)} of each row's mass${layout.kept ? "" : ", or as much of it as was kept"}${studio.state.sinks ? "; first token and separators hidden" : ""}; the rest is a stub.`;
  return figure(wide, y + 6, theme, title, note, smallPrint(studio, example), parts.join(""));
}
