// One edge number by number, and the way from the products to the weight, as a figure.

import { INKS, rampColour, type Theme } from "../colour";
import { headName, type Example, type Layer } from "../model";
import { exact, ledgerOf, signed, type EdgeNumbers } from "../neuron";
import type { Figure, Studio } from "../studio.svelte";
import { visible } from "../text";
import { smallPrint } from "./print";
import { EDGE, figure, fitted, line, lines, rect, SMALLEST, text, widthOf } from "./svg";

interface Shown {
  example: Example;
  layer: Layer;
  head: number;
  query: number;
  key: number;
  edge: EdgeNumbers;
}

const HIGH = 44,
  APART = 12,
  LINE = 13;

export function neuronFigure(studio: Studio, shown: Shown, theme: Theme, width: number): Figure {
  const { example, layer, head, query, key, edge } = shown;
  const ink = INKS[theme];
  const right = width - EDGE;
  const parts: string[] = [];
  const label = { size: SMALLEST, fill: ink.faint };
  const rows: [name: string, values: number[], colour: (height: number) => string][] = [
    ["q", edge.q, () => ink.query],
    ["k", edge.k, () => ink.key],
    ["q × k", edge.products, (height) => rampColour(theme, height < 0 ? 0.12 : 0.88, "difference")],
  ];
  const left = EDGE + Math.max(...rows.map(([name]) => widthOf(name, SMALLEST, 600))) + 8;
  let y = 0;
  for (const [name, values, colour] of rows) {
    const step = (right - left) / Math.max(values.length, 1);
    const middle = y + HIGH / 2;
    const fill = name === "q" ? ink.query : name === "k" ? ink.key : ink.ink;
    parts.push(text(EDGE, middle, name, { size: SMALLEST, weight: 600, fill, middle: true }));
    signed(values).forEach((height, n) => {
      const high = Math.abs(height * HIGH) / 2;
      const box = {
        x: left + n * step + Math.min(0.4, step * 0.1),
        y: height > 0 ? middle - high : middle,
        width: Math.max(step - Math.min(0.8, step * 0.2), 0.4),
        height: high,
      };
      parts.push(rect(box, colour(height)));
    });
    parts.push(line(left, middle, right, middle, ink.faint, 0.6));
    y += HIGH + APART;
  }
  const most = (values: number[]) => exact(Math.max(...values.map(Math.abs), 0));
  const sizes =
    `Of ${edge.depth} numbers the largest is ${most(edge.q)} in q, ${most(edge.k)} in k, ` +
    `${most(edge.products)} in q × k; each row by its own.`;
  for (const words of lines(sizes, SMALLEST, right - EDGE))
    parts.push(text(EDGE, (y += LINE) - 6, words, label));
  y += 10;
  const ledger = ledgerOf(edge);
  const widest = (texts: string[], weight = 400) =>
    Math.max(...texts.map((one) => widthOf(one, SMALLEST, weight)));
  const names = Math.min(
    widest(
      ledger.map(({ name }) => name),
      600,
    ),
    (right - EDGE) * 0.3,
  );
  const gives = widest(
    ledger.map((one) => one.gives),
    600,
  );
  const room = right - EDGE - names - gives - 24;
  for (const one of ledger) {
    const bold = one.kind === "weight" ? 600 : undefined;
    parts.push(line(EDGE, y - 1, right, y - 1, ink.line, 0.6));
    const titles = lines(one.name, SMALLEST, names, 600);
    const said = lines(one.how, SMALLEST, room);
    const number = { size: SMALLEST, weight: bold, anchor: "end" as const };
    parts.push(text(right, y + LINE - 3, one.gives, number));
    const printed = (of: string[], x: number, options: Parameters<typeof text>[3]) =>
      of.forEach((words, n) => parts.push(text(x, y + LINE * (n + 1) - 3, words, options)));
    printed(titles, EDGE, { size: SMALLEST, weight: 600 });
    printed(said, EDGE + names + 12, label);
    y += LINE * Math.max(titles.length, said.length, 1) + 4;
  }
  const [from, to] = [layer.queryTokens[query], layer.keyTokens[key]].map((token) =>
    fitted(visible(token, 24), 13, width / 3),
  );
  return figure({
    width,
    height: y,
    theme,
    title: `${headName(example, layer, head)}: “${from}” → “${to}”`,
    note: `Query ${query} times key ${key}, number by number, and the weight that comes of it.`,
    small: smallPrint(studio, example),
    parts,
    of: `${headName(example, layer, head)} query ${query} key ${key}`,
  });
}
