// The heads view as a figure.

import { INKS, RAMPS, rampColour, roleColour, type Theme } from "../colour";
import { headName, type Example, type Heads } from "../model";
import type { Figure, Studio } from "../studio.svelte";
import { short } from "../text";
import { measureOf, roleOf, roleScore } from "../words";
import { smallPrint } from "./print";
import { figure, image, rect, text } from "./svg";

interface Group {
  title: string;
  note: string;
  columns: number;
  rows: { label: string; cells: { layer: number; head: number }[] }[];
  numbered: boolean;
}

const TILE = 56, STEP = 64, ROW = 82, LEFT = 44;

export function headsFigure(studio: Studio, example: Example, heads: Heads, groups: Group[], tiles: (Uint8Array | null)[], theme: Theme): Figure {
  const ink = INKS[theme];
  const byRole = studio.state.colour === "role";
  const all = groups.flatMap((group) => group.rows.flatMap((row) => row.cells));
  const most = Math.max(...all.map(({ layer, head }) => measureOf(heads, layer, head, "entropy") ?? 0), 1e-9);
  const parts: string[] = [];
  let y = 8;
  for (const group of groups) {
    parts.push(text(20, y + 8, [group.title, group.note].filter(Boolean).join(": "), { size: 10, fill: ink.faint }));
    if (group.numbered)
      for (let head = 0; head < group.columns; head++)
        parts.push(text(LEFT + head * STEP + TILE / 2, y + 24, `H${head}`, { size: 9, fill: ink.faint, anchor: "middle" }));
    y += 30;
    for (const row of group.rows) {
      parts.push(text(LEFT - 8, y + TILE / 2 + 3, row.label, { size: 9, fill: ink.faint, anchor: "end" }));
      row.cells.forEach(({ layer, head }, place) => {
        const x = LEFT + place * STEP;
        const rows = Math.min(64, example.layers[layer].rows), columns = Math.min(64, example.layers[layer].columns);
        const shades = tiles[layer]?.subarray(head * rows * columns, (head + 1) * rows * columns);
        if (shades) parts.push(image(x, y, TILE, TILE, shades, rows, columns, RAMPS[theme].weight));
        const role = roleOf(heads, layer, head);
        const entropy = measureOf(heads, layer, head, "entropy") ?? 0;
        parts.push(rect(x, y + TILE + 1, TILE, 2.5, byRole ? roleColour(theme, role) : rampColour(theme, 0.15 + (0.75 * entropy) / most)));
        const score = roleScore(heads, layer, head);
        const label = byRole ? `${role}${score === null ? "" : ` ${short(score)}`}` : `${entropy.toFixed(2)} nats`;
        parts.push(text(x, y + TILE + 13, group.numbered ? label : headName(example, example.layers[layer], head), { size: 7.5, fill: ink.faint }));
      });
      y += ROW;
    }
    y += 6;
  }
  const ends = LEFT;
  for (let n = 0; n < 60; n++) parts.push(rect(ends + n * 3, y + 4, 3.4, 7, rampColour(theme, n / 59)));
  parts.push(text(ends, y + 20, "0", { size: 8, fill: ink.faint }), text(ends + 180, y + 20, "1", { size: 8, fill: ink.faint, anchor: "end" }));
  parts.push(text(ends + 190, y + 10, "mass of a row in a bin, square-root scale; rows are queries, columns keys", { size: 8, fill: ink.faint }));
  const width = Math.max(LEFT + Math.max(...groups.map((group) => group.columns)) * STEP + 14, 480);
  return figure(width, y + 26, theme, "Every head", "", smallPrint(studio, example), parts.join(""));
}
