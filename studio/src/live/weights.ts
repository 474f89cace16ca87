// The weights of a layer from its queries and keys, in float64, by the rules of the kernels.

import type { CardLayer } from "./card";

/** Queries, keys and values of a layer on one text. */
export interface LayerInputs {
  rows: number;
  columns: number;
  /** Numbers of a query, and of a value. */
  depth: number;
  valueDepth: number;
  /** (heads, rows, depth) */
  queries: Float32Array;
  /** (key heads, columns, depth) */
  keys: Float32Array;
  /** (key heads, columns, value depth) */
  values: Float32Array;
  /** (heads, rows, columns), added to the scaled scores; null: nothing is added. */
  bias: Float32Array | null;
}

export type Rule = Pick<
  CardLayer,
  "heads" | "kvHeads" | "scale" | "causal" | "window" | "softcap" | "sinks"
>;

export interface LayerWeights {
  heads: number;
  rows: number;
  columns: number;
  /** (heads, rows, columns) */
  weights: Float32Array;
  /** (heads, rows): log of the sum of e^score over the keys and the sink. */
  lse: Float64Array;
  /** In nats. */
  entropy: Float64Array;
  /** Visible keys. */
  count: Uint32Array;
}

/** The head of the keys that a head reads. */
export const keyHead = ({ heads, kvHeads }: Rule, head: number) =>
  Math.floor(head / (heads / kvHeads));

/** The first visible key of a row, and the one after the last. */
export function visibleKeys(rule: Rule, { rows, columns }: LayerInputs, row: number) {
  const place = row + columns - rows;
  const end = rule.causal ? Math.min(columns, place + 1) : columns;
  const start = rule.window === null ? 0 : Math.max(0, place - rule.window + 1);
  return [Math.min(start, end), end] as const;
}

/** Writes the scores of a row; those of hidden keys are minus infinity. */
function scoresOf(rule: Rule, inputs: LayerInputs, head: number, row: number, into: Float64Array) {
  const { rows, columns, depth, queries, keys, bias } = inputs;
  const { scale, softcap } = rule;
  const [start, end] = visibleKeys(rule, inputs, row);
  const q = (head * rows + row) * depth;
  into.fill(-Infinity);
  for (let key = start, k = (keyHead(rule, head) * columns + start) * depth; key < end; key++) {
    let dot = 0;
    for (let n = 0; n < depth; n++, k++) dot += queries[q + n] * keys[k];
    let score = scale * dot;
    if (softcap !== null) score = softcap * Math.tanh(score / softcap);
    into[key] = bias ? score + bias[(head * rows + row) * columns + key] : score;
  }
}

export function layerWeights(rule: Rule, inputs: LayerInputs): LayerWeights {
  const { rows, columns } = inputs;
  const { heads, sinks } = rule;
  const weights = new Float32Array(heads * rows * columns);
  const lse = new Float64Array(heads * rows);
  const entropy = new Float64Array(heads * rows);
  const count = new Uint32Array(heads * rows);
  const scores = new Float64Array(columns),
    exponentials = new Float64Array(columns);
  for (let head = 0, at = 0; head < heads; head++)
    for (let row = 0; row < rows; row++, at++) {
      scoresOf(rule, inputs, head, row, scores);
      const sink = sinks ? sinks[head] : -Infinity;
      let most = sink;
      for (let key = 0; key < columns; key++) if (scores[key] > most) most = scores[key];
      let total = sink === -Infinity ? 0 : Math.exp(sink - most);
      for (let key = 0; key < columns; key++) {
        if (scores[key] === -Infinity) continue;
        total += exponentials[key] = Math.exp(scores[key] - most);
        count[at]++;
      }
      lse[at] = total === 0 ? -Infinity : most + Math.log(total);
      for (let key = 0; key < columns; key++) {
        if (scores[key] === -Infinity) continue;
        const weight = exponentials[key] / total;
        weights[at * columns + key] = weight;
        entropy[at] += weight * (lse[at] - scores[key]);
      }
    }
  return { heads, rows, columns, weights, lse, entropy, count };
}
