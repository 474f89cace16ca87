// Threads between two columns as a figure.

import { headColour, INKS, type Theme } from "../colour";
import { headName, type Example, type Layer } from "../model";
import type { Figure, Studio } from "../studio.svelte";
import { percent, visible } from "../text";
import { breadth, curve, type Line } from "../weave";
import { smallPrint } from "./print";
import { figure, n1, rect, text } from "./svg";

interface Layout {
  row: number;
  tall: number;
  shift: (count: number) => number;
  shares: { queries: Float64Array; keys: Float64Array };
}

const ACROSS = 260, SIDE = 130, PAD = 24;

export function threadsFigure(studio: Studio, example: Example, layer: Layer, chosen: number[], query: number, key: number, theme: Theme, lines: (across: number) => Line[], layout: Layout): Figure {
  const ink = INKS[theme];
  const left = PAD + SIDE, right = left + ACROSS;
  const size = Math.min(13, layout.row * 0.55);
  const parts: string[] = [
    text(left - 8, 12, `queries: who looks${layer.one ? "" : ` (${layer.queries})`}`, { size: 10, fill: ink.query, anchor: "end" }),
    text(right + 8, 12, `keys: who is looked at${layer.one ? "" : ` (${layer.keys})`}`, { size: 10, fill: ink.key }),
    `<g transform="translate(${left} 22)" fill="none" stroke-linecap="round">`,
  ];
  for (const line of lines(ACROSS)) {
    const bend = curve(line).map(n1);
    parts.push(`<path d="M${n1(line.x1)} ${n1(line.y1)}C${bend.slice(0, 2).join(" ")} ${bend.slice(2, 4).join(" ")} ${bend.slice(4).join(" ")}" stroke="${line.colour}" stroke-width="${line.width.toFixed(2)}" stroke-opacity="${line.opacity.toFixed(3)}"/>`);
  }
  parts.push("</g>");
  const most = Math.max(...layout.shares.keys, 1e-9);
  layer.queryTokens.forEach((token, place) => {
    const y = 22 + layout.shift(layer.rows) + (place + 0.5) * layout.row;
    const on = place === query;
    parts.push(text(left - 8, y, visible(token, 24), { size, anchor: "end", fill: on ? ink.query : ink.ink, weight: on ? 600 : undefined, middle: true }));
  });
  layer.keyTokens.forEach((token, place) => {
    const y = 22 + layout.shift(layer.columns) + (place + 0.5) * layout.row;
    const share = layout.shares.keys[place];
    if (share > 0.004) parts.push(rect(right + 8, y + size * 0.62, Math.max(2, 100 * (query < 0 ? share / most : share)), 2, ink.key, ' fill-opacity="0.75" rx="1"'));
    const on = place === key;
    parts.push(text(right + 8, y, visible(token, 24), { size, fill: on ? ink.key : ink.ink, weight: on ? 600 : undefined, middle: true }));
    if (query >= 0 && share >= 0.005) parts.push(text(right + SIDE + 22, y, share.toFixed(2), { size: 9, fill: ink.faint, anchor: "end", middle: true }));
  });
  let x = left;
  const bottom = 22 + layout.tall + 18;
  for (const head of chosen) {
    parts.push(rect(x, bottom - 7, 12, 3, headColour(theme, head)), text(x + 16, bottom, `H${head}`, { size: 9, fill: ink.faint }));
    x += 48;
  }
  // The scale bar: how wide a thread is.
  x = right - 6;
  for (const share of [0.1, 0.5, 1]) {
    parts.push(`<line x1="${n1(x)}" x2="${n1(x + 18)}" y1="${n1(bottom - 4)}" y2="${n1(bottom - 4)}" stroke="${ink.faint}" stroke-width="${breadth(share).toFixed(2)}"/>`, text(x + 23, bottom, String(share), { size: 9, fill: ink.faint }));
    x += 52;
  }
  const title = chosen.length === 1 ? headName(example, layer, chosen[0]) : `Layer ${layer.index}, ${chosen.length} heads`;
  const note = `threads hold ${percent(studio.state.share)} of each row's mass${studio.state.sinks ? "; first token and separators hidden" : ""}; the rest is a stub`;
  return figure(right + SIDE + PAD + 10, 22 + layout.tall + 26, theme, title, note, smallPrint(studio, example), parts.join(""));
}
