// From rows to threads: which edges are drawn, how strongly, and what is left to a stub.

import type { Edge, Layer, Row } from "./model";

export interface Thread extends Edge {
  /** How much of its row it carries, 0 to 1: the weight, or the weight by the norm of its value. */
  share: number;
}

export interface Presented {
  threads: Thread[];
  /** Every kept edge, drawn or not. */
  kept: Map<number, Thread>;
  /** What hidden sinks hold. */
  hidden: number;
  /** What is on no thread: edges past the chosen share, and what the trace did not keep. */
  rest: number;
  /** Whether every key that the row may look at is kept. */
  whole: boolean;
  /** Whether shares are lower bounds: by values of which not all are known to count. */
  least: boolean;
  /** Whether hidden sinks may hold more, and the rest less. */
  hidesMore: boolean;
}

export interface Choice {
  /** The share of a row's mass that threads are drawn for. */
  share: number;
  sinks: ReadonlySet<number> | null;
  /** The norm of each key's value, or null. */
  values: Float32Array | null;
  /** What the row's weights by these norms sum to, over all keys; null: not known. */
  valued: number | null;
}

/** What several heads give to one place, on average. */
export interface Mean {
  place: number;
  weight: number;
  share: number;
  score: number;
  /** The heads that draw it. */
  heads: number[];
  /** Whether weight, or share, is at least so much: in some head it was not kept. */
  leastWeight: boolean;
  leastShare: boolean;
}

const SEPARATOR = /^(\[SEP\]|<\/s>|<end>|<eos>|<\|endoftext\|>|<\|im_end\|>|<sep>|\[PAD\]|<pad>)$/;

/** The first token and the separators: where heads look that look at nothing. */
export function sinksOf(layer: Layer): Set<number> {
  const found = new Set<number>(layer.columns ? [0] : []);
  layer.keyTokens.forEach((token, place) => {
    if (layer.keySpecial[place] || SEPARATOR.test(token)) found.add(place);
  });
  return found;
}

export function present(row: Row, { share, sinks, values, valued }: Choice): Presented {
  let threads: Thread[] = row.edges.map((edge) => ({ ...edge, share: edge.weight }));
  const whole = row.edges.length >= row.count;
  const kept = new Map(threads.map((thread) => [thread.key, thread]));
  if (values) {
    const sum = threads.reduce((total, thread) => total + thread.weight * values[thread.key], 0);
    // What was not kept has at most the largest norm.
    const total =
      (whole
        ? sum
        : (valued ?? sum + row.rest * values.reduce((most, norm) => Math.max(most, norm), 0))) || 1;
    for (const thread of threads) thread.share = (thread.weight * values[thread.key]) / total;
    threads.sort((a, b) => b.share - a.share);
  }
  const mass = row.count ? 1 : 0;
  const least = values !== null && valued === null && !whole;
  const hidesMore =
    !whole && sinks !== null && (least || [...sinks].some((sink) => !kept.has(sink)));
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
    whole,
    least,
    hidesMore,
  };
}

/** The keys that one row's threads lead to in any of some heads, each with the mean over all of them. */
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
          leastWeight: false,
          leastShare: false,
        });
    }
  for (const mean of found.values())
    for (const [, { kept, whole, least }] of rows) {
      const edge = kept.get(mean.place),
        missing = !edge && !whole;
      mean.weight += (edge?.weight ?? 0) / rows.length;
      mean.share += (edge?.share ?? 0) / rows.length;
      mean.leastWeight ||= missing;
      mean.leastShare ||= missing || least;
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

export function draw(
  canvas: HTMLCanvasElement,
  width: number,
  height: number,
  lines: Line[],
): void {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  const context = canvas.getContext("2d");
  if (!context) return;
  context.scale(ratio, ratio);
  context.lineCap = "round";
  for (const line of lines) {
    context.globalAlpha = line.opacity;
    context.strokeStyle = line.colour;
    context.lineWidth = line.width;
    context.beginPath();
    context.moveTo(line.x1, line.y1);
    context.bezierCurveTo(...curve(line));
    context.stroke();
  }
}

/** How wide a thread of a share is, in pixels. */
export const breadth = (share: number) => 0.8 + 6.2 * Math.max(share, 0) ** 0.75;
