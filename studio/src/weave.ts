// From rows to threads: which edges are drawn, how strongly, and what is left to a stub.

import type { Edge, Layer, Row } from "./model";

export interface Thread extends Edge {
  /** How much of its row it carries, 0 to 1: the weight, or the weight by the norm of its value. */
  share: number;
}

export interface Presented {
  threads: Thread[];
  /** What hidden sinks hold. */
  hidden: number;
  /** What is on no thread: edges past the chosen share, and what the trace did not keep. */
  rest: number;
}

export interface Choice {
  /** The share of a row's mass that threads are drawn for. */
  share: number;
  sinks: ReadonlySet<number> | null;
  /** The norm of each key's value, or null. */
  values: Float32Array | null;
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

export function present(row: Row, { share, sinks, values }: Choice): Presented {
  let threads: Thread[] = row.edges.map((edge) => ({ ...edge, share: edge.weight }));
  if (values) {
    const total = threads.reduce((sum, thread) => sum + thread.weight * values[thread.key], 0) || 1;
    for (const thread of threads) thread.share = (thread.weight * values[thread.key]) / total;
    threads.sort((a, b) => b.share - a.share);
  }
  const mass = values ? 1 : row.count ? 1 : 0;
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
  return { threads: shown, hidden, rest: Math.max(mass - hidden - sum, 0) };
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

export function draw(canvas: HTMLCanvasElement, width: number, height: number, lines: Line[]): void {
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
