// From rows to threads: which edges are drawn, how wide, and the rest as a stub.

import type { Layer } from "./description";
import type { Pen } from "./figure/pen";
import type { Edge, Row } from "./model";

export interface Thread extends Edge {
  /** How much of its row it carries, 0 to 1: the weight, or the weight by the norm of its value. */
  share: number;
}

export interface Presented {
  threads: Thread[];
  /** Every kept edge, drawn or not. */
  kept: Map<number, Thread>;
  /** The mass of hidden sinks. */
  hidden: number;
  /** The mass without a thread: edges past the chosen share, and edges that were not kept. */
  rest: number;
  /** The mass of a sink that is not a key. */
  sink: number;
  /** Whether every key that the row may look at is kept. */
  whole: boolean;
}

export interface Choice {
  /** The share of a row's mass that threads are drawn for. */
  share: number;
  sinks: ReadonlySet<number> | null;
  /** The norm of each key's value, or null. */
  values: Float32Array | null;
  /** The sum of the row's weights times these norms, over all keys; null: there are no norms. */
  valued: number | null;
  /** The logit of the head's sink; null: it has none, or it is not known. */
  sink: number | null;
}

/** The mean of several heads at one position. */
export interface Mean {
  place: number;
  weight: number;
  share: number;
  score: number;
  /** The heads that draw it. */
  heads: number[];
}

/** Whether weights can be weighed by the norms of values: their sums over all keys are known. */
export const weighable = ({ values, picture }: Layer) => values === true && picture !== "kept";

/** The sinks: the first token and the separators. */
export const sinksOf = (layer: Pick<Layer, "columns" | "separators">) =>
  new Set(layer.columns ? [0, ...layer.separators] : []);

/** The mass of a sink in a row: e^(its logit − lse), or the rest of all keys. */
function takenBySink(row: Row, logit: number | null): number {
  if (!row.count) return 0;
  if (row.edges.length < row.count) return logit === null ? 0 : Math.exp(logit - row.lse);
  const weights = row.edges.reduce((total, edge) => total + edge.weight, 0);
  return Math.max(1 - weights, 0) || 0;
}

/** The edges of a row that are drawn, and the rest. */
export function present(row: Row, choice: Choice): Presented {
  const { share, sinks, values, valued } = choice;
  let threads: Thread[] = row.edges.map((edge) => ({ ...edge, share: edge.weight }));
  const whole = row.edges.length >= row.count;
  const kept = new Map(threads.map((thread) => [thread.key, thread]));
  const sink = takenBySink(row, choice.sink);
  if (values) {
    const total = valued || 1;
    for (const thread of threads) thread.share = (thread.weight * values[thread.key]) / total;
    threads.sort((a, b) => b.share - a.share);
  }
  // Shares by values are of what the keys give.
  const mass = row.count ? 1 - (values ? 0 : sink) : 0;
  let hidden = 0;
  if (sinks) {
    threads = threads.filter((thread) => {
      if (sinks.has(thread.key)) hidden += thread.share;
      return !sinks.has(thread.key);
    });
  }
  const shown: Thread[] = [];
  let sum = 0;
  for (const thread of threads) {
    if (sum >= share * (mass - hidden) - 1e-9) break;
    shown.push(thread);
    sum += thread.share;
  }
  return {
    threads: shown,
    kept,
    hidden,
    rest: Math.max(mass - hidden - sum, 0),
    sink,
    whole,
  };
}

/** The keys that a row's threads lead to in any of some heads, each with the mean over them all. */
export function together(rows: [head: number, row: Presented][]): Mean[] {
  const found = new Map<number, Mean>();
  for (const [head, { threads }] of rows)
    for (const { key, score } of threads) {
      const mean = found.get(key);
      if (mean) mean.heads.push(head);
      else
        found.set(key, {
          place: key,
          weight: 0,
          share: 0,
          score,
          heads: [head],
        });
    }
  for (const mean of found.values())
    for (const [, { kept }] of rows) {
      const edge = kept.get(mean.place);
      mean.weight += (edge?.weight ?? 0) / rows.length;
      mean.share += (edge?.share ?? 0) / rows.length;
    }
  return [...found.values()].sort((a, b) => b.share - a.share);
}

export interface Line {
  x1: number;
  y1: number;
  x2: number;
  y2: number;
  width: number;
  opacity: number;
  colour: string;
}

/** A soft curve from a query to a key. */
export function curve(line: Line): [number, number, number, number, number, number] {
  const bend = (line.x2 - line.x1) * 0.45;
  return [line.x1 + bend, line.y1, line.x2 - bend, line.y2, line.x2, line.y2];
}

type Curve = [
  x1: number,
  y1: number,
  ...bend: [number, number, number, number, x2: number, y2: number],
];

/** A thread over a text, from one word to another, in a box that holds both. */
export function betweenWords(from: DOMRect, to: DOMRect, box: DOMRect): Curve {
  const x1 = from.left + from.width / 2 - box.left;
  const x2 = to.left + to.width / 2 - box.left;
  if (Math.abs(from.top - to.top) < 6) {
    // On one line: an arc above the words.
    const y = from.top - box.top + 3;
    const rise = Math.min(13, 6 + Math.abs(x2 - x1) * 0.05);
    return [x1, y, x1, y - rise, x2, y - rise, x2, y];
  }
  // From edge to edge, between the lines.
  const up = to.top < from.top;
  const y1 = (up ? from.top + 2 : from.bottom - 2) - box.top;
  const y2 = (up ? to.bottom - 2 : to.top + 2) - box.top;
  const bend = (y2 - y1) * 0.55;
  return [x1, y1, x1, y1 + bend, x2, y2 - bend, x2, y2];
}

/** Two columns of words with rows of one height, the shorter column in the middle. */
export interface Columns {
  /** Pixels of a row. */
  row: number;
  /** Pixels of the taller column. */
  tall: number;
  /** Where the middle of a word stands in a column of so many. */
  y: (place: number, count: number) => number;
}

/** Columns of so many words that fill a height as far as words stay readable. */
export function columnsOf(queries: number, keys: number, height: number): Columns {
  const most = Math.max(queries, keys);
  const row = Math.min(Math.max(Math.floor((height - 50) / most), 17), 52);
  return {
    row,
    tall: most * row,
    y: (place, count) => ((most - count) * row) / 2 + (place + 0.5) * row,
  };
}

interface Between {
  layer: Layer;
  /** By head the rows as they are presented. */
  shown: ReadonlyMap<number, Presented[]>;
  query: number;
  key: number;
  columns: Columns;
  /** How far apart the columns stand. */
  across: number;
  colourOf: (head: number) => string;
  /** Whether all threads are drawn, or those of the token in question, and stronger. */
  focus: boolean;
}

/** Threads between two columns, and a stub for what has none. */
export function linesBetween(between: Between): Line[] {
  const { layer, shown, query, key, columns, across, focus } = between;
  const active = query >= 0 || key >= 0;
  const lines: Line[] = [];
  // Threads of several heads lie side by side.
  const beside = Math.min(3.2, (columns.row * 0.6) / shown.size);
  [...shown].forEach(([head, rows], slot) => {
    const aside = (slot - (shown.size - 1) / 2) * beside;
    const colour = between.colourOf(head);
    rows.forEach(({ threads, hidden, rest }, i) => {
      const y1 = columns.y(i, layer.rows) + aside;
      const on = i === query;
      for (const { key: place, share } of threads) {
        if (focus && !on && place !== key) continue;
        const faint = (active ? 0.3 : 1) * Math.min(0.8, 0.1 + 0.8 * share);
        lines.push({
          x1: 0,
          y1,
          x2: across,
          y2: columns.y(place, layer.columns) + aside,
          colour,
          width: breadth(share) * (focus ? 1.25 : 1),
          opacity: focus ? Math.min(1, 0.35 + share) : faint,
        });
      }
      // The rest is a stub whose length is its share.
      const stub = hidden + rest;
      if (stub <= 0.01 || (focus && !on)) return;
      const opacity = on ? 0.95 : active ? 0.1 : 0.35;
      const x2 = 3 + 0.16 * across * stub;
      lines.push({ x1: 0, y1, x2, y2: y1, colour, width: 2.4, opacity });
    });
  });
  return lines;
}

/** The mass of each key from a query, mean over some heads. */
export function sharesOfKeys(count: number, rows: [head: number, row: Presented][]): Float64Array {
  const shares = new Float64Array(count);
  for (const { place, share } of together(rows)) shares[place] = share;
  return shares;
}

/** The mean mass of each key over all queries and some heads.
 *
 * exact: by head the sums over all weights, where they are known; else of the kept edges. */
export function meanSharesOfKeys(
  layer: Layer,
  shown: ReadonlyMap<number, Presented[]>,
  exact: ((head: number) => Float32Array) | null | undefined,
): Float64Array {
  const shares = new Float64Array(layer.columns);
  const parts = shown.size * layer.rows;
  for (const [head, rows] of shown)
    if (exact) exact(head).forEach((sum, place) => (shares[place] += sum / parts));
    else
      for (const row of rows)
        for (const { key, share } of row.kept.values()) shares[key] += share / parts;
  return shares;
}

/** The mass of a key from each query, mean over some heads. */
export function sharesOfQueries(
  count: number,
  shown: ReadonlyMap<number, Presented[]>,
  key: number,
): Float64Array {
  const shares = new Float64Array(count);
  for (const rows of shown.values())
    rows.forEach(({ kept }, i) => (shares[i] += (kept.get(key)?.share ?? 0) / shown.size));
  return shares;
}

/** Whether each row kept as much as is to be drawn. */
export const keptEnough = (shown: ReadonlyMap<number, Presented[]>, share: number) =>
  [...shown.values()].flat().every(({ kept, whole }) => {
    const sum = [...kept.values()].reduce((total, thread) => total + thread.share, 0);
    return whole || sum >= share - 5e-4;
  });

export function drawLines(pen: Pen, lines: Line[]): void {
  pen.lineCap = "round";
  for (const line of lines) {
    pen.globalAlpha = line.opacity;
    pen.strokeStyle = line.colour;
    pen.lineWidth = line.width;
    pen.beginPath();
    pen.moveTo(line.x1, line.y1);
    pen.bezierCurveTo(...curve(line));
    pen.stroke();
  }
}

/** How wide a thread of a share is, in pixels. */
export const breadth = (share: number) => 0.8 + 6.2 * Math.max(share, 0) ** 0.75;
