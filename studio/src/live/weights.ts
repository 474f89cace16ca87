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

/** The scores of a row, before the mask. */
export function scoresOf(rule: Rule, inputs: LayerInputs, head: number, row: number): Float64Array {
  const { rows, columns, depth, queries, keys, bias } = inputs;
  const found = new Float64Array(columns);
  const [start, end] = visibleKeys(rule, inputs, row);
  const q = (head * rows + row) * depth;
  const k = keyHead(rule, head) * columns * depth;
  for (let key = start; key < end; key++) {
    let dot = 0;
    for (let n = 0, at = k + key * depth; n < depth; n++) dot += queries[q + n] * keys[at + n];
    let score = rule.scale * dot;
    if (rule.softcap !== null) score = rule.softcap * Math.tanh(score / rule.softcap);
    found[key] = bias ? score + bias[(head * rows + row) * columns + key] : score;
  }
  found.fill(-Infinity, 0, start).fill(-Infinity, end);
  return found;
}

export function layerWeights(rule: Rule, inputs: LayerInputs): LayerWeights {
  const { rows, columns } = inputs;
  const { heads, sinks } = rule;
  const weights = new Float32Array(heads * rows * columns);
  const lse = new Float64Array(heads * rows);
  const entropy = new Float64Array(heads * rows);
  const count = new Uint32Array(heads * rows);
  for (let head = 0, at = 0; head < heads; head++)
    for (let row = 0; row < rows; row++, at++) {
      const scores = scoresOf(rule, inputs, head, row);
      let most = sinks ? sinks[head] : -Infinity;
      for (const score of scores) if (score > most) most = score;
      let total = sinks ? Math.exp(sinks[head] - most) : 0;
      for (const score of scores)
        if (score !== -Infinity) {
          total += Math.exp(score - most);
          count[at]++;
        }
      lse[at] = total === 0 ? -Infinity : most + Math.log(total);
      for (let key = 0; key < columns; key++) {
        if (scores[key] === -Infinity) continue;
        const weight = Math.exp(scores[key] - most) / total;
        weights[at * columns + key] = weight;
        entropy[at] += weight * (lse[at] - scores[key]);
      }
    }
  return { heads, rows, columns, weights, lse, entropy, count };
}
