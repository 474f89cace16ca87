// The pieces of a text that was read in the page, as the server gives them: see
// src/headloom/studio/{arrays,overviews,sums}.py.

import { blocksOf } from "../overview";
import { BLOCK } from "../model";
import { keyHead, type LayerInputs, type LayerWeights, type Rule } from "./weights";

/** The value of a key that stands for no edge. */
const NONE = 65535;

/** Visible keys of a row at most: the edges that are kept of it. */
export const keptOf = ({ count }: LayerWeights) => count.reduce((a, b) => Math.max(a, b), 0);

/** The edges of up to 1,024 rows of a head, all of them: see `LayerArrays.edges`. */
export function edgesPiece(layer: LayerWeights, head: number, block: number): ArrayBuffer {
  const first = head * layer.rows + block * BLOCK;
  const rows = Math.min(BLOCK, layer.rows - block * BLOCK);
  const kept = keptOf(layer);
  const bytes = new ArrayBuffer(rows * (6 * kept + 16));
  const weights = new Float32Array(bytes, 0, rows * kept);
  const facts = new Float32Array(bytes, weights.byteLength, 3 * rows); // the third, rest, is 0
  const count = new Uint32Array(bytes, weights.byteLength + facts.byteLength, rows);
  const keys = new Uint16Array(bytes, weights.byteLength + 16 * rows, rows * kept).fill(NONE);
  for (let row = 0; row < rows; row++) {
    const order = strongestFirst(layer, first + row);
    for (let n = 0; n < order.length; n++) {
      keys[row * kept + n] = order[n];
      weights[row * kept + n] = layer.weights[(first + row) * layer.columns + order[n]];
    }
    facts[row] = layer.lse[first + row];
    facts[rows + row] = layer.entropy[first + row];
    count[row] = layer.count[first + row];
  }
  return bytes;
}

/** The visible keys of a row, the largest weight first; of equal ones the first key. */
function strongestFirst({ weights, columns, count }: LayerWeights, row: number): Uint16Array {
  const own = weights.slice(row * columns, (row + 1) * columns);
  const bits = new Uint32Array(own.buffer);
  // Bits of floats that are not negative are in the order of the floats.
  const order = Float64Array.from(bits, (number, key) => number * 65536 + (NONE - key)).sort();
  return Uint16Array.from(order.reverse().subarray(0, count[row]), (both) => NONE - (both % 65536));
}

/** The pictures of all heads: see `Overviews`. */
export function picturesPiece(layer: LayerWeights, side: number): ArrayBuffer {
  const { heads, rows, columns, weights } = layer;
  const blocks = blocksOf(layer, side);
  const sums = new Float64Array(heads * blocks.rows * blocks.columns);
  for (let head = 0, at = 0; head < heads; head++)
    for (let row = 0; row < rows; row++) {
      const into = (head * blocks.rows + Math.floor(row / blocks.down)) * blocks.columns;
      for (let key = 0; key < columns; key++, at++)
        sums[into + Math.floor(key / blocks.across)] += weights[at];
    }
  return Uint8Array.from(sums, (sum, block) => {
    const place = Math.floor(block / blocks.columns) % blocks.rows;
    const column = block % blocks.columns;
    const tall = Math.min(blocks.down, rows - place * blocks.down);
    const wide = Math.min(blocks.across, columns - column * blocks.across);
    const mass = Math.min((sum * blocks.across) / (tall * wide), 1);
    const shade = Math.round(255 * Math.sqrt(Math.sqrt(mass)));
    if (Number.isNaN(mass)) return 1;
    return shade === 1 ? 0 : shade;
  }).buffer;
}

/** The norm of each key's value, (heads, keys). */
export function valuesPiece(rule: Rule, inputs: LayerInputs): Float32Array<ArrayBuffer> {
  const { columns, valueDepth, values } = inputs;
  return Float32Array.from({ length: rule.heads * columns }, (_, n) => {
    const key = keyHead(rule, Math.floor(n / columns)) * columns + (n % columns);
    let sum = 0;
    for (const number of values.subarray(key * valueDepth, (key + 1) * valueDepth))
      sum += number * number;
    return Math.sqrt(sum);
  });
}

/** Sums over all weights: see `layer_sums`. */
export function sumsPiece(rule: Rule, layer: LayerWeights, inputs: LayerInputs): ArrayBuffer {
  const { heads, rows, columns, weights } = layer;
  const norms = valuesPiece(rule, inputs);
  const received = new Float64Array(heads * columns);
  const valued = new Float64Array(heads * rows);
  const given = new Float64Array(heads * columns);
  for (let row = 0; row < heads * rows; row++) {
    const keys = Math.floor(row / rows) * columns;
    for (let key = 0; key < columns; key++) {
      const weight = weights[row * columns + key];
      received[keys + key] += weight;
      valued[row] += weight * norms[keys + key];
    }
    for (let key = 0; key < columns && valued[row] > 0; key++)
      given[keys + key] += (weights[row * columns + key] * norms[keys + key]) / valued[row];
  }
  return Float32Array.from([...received, ...valued, ...given, ...(rule.sinks ?? [])]).buffer;
}

/** The mean of the heads, the strongest edges of each row: see `layer_mean`. */
export function meanPiece(layer: LayerWeights, layers: number): ArrayBuffer {
  const { heads, rows, columns, weights } = layer;
  const most = Math.floor(Math.min(2 ** 16, 2 ** 20 / layers) / Math.max(rows, 1));
  const kept = Math.min(columns, Math.max(8, most));
  const mean = new Float64Array(rows * columns);
  for (let n = 0; n < weights.length; n++) mean[n % mean.length] += weights[n] / heads;
  const strongest = new Float32Array(rows * kept);
  const missing = new Float32Array(rows);
  const keys = new Uint32Array(rows * kept).fill(2 ** 32 - 1);
  for (let row = 0; row < rows; row++) {
    const own = mean.subarray(row * columns, (row + 1) * columns);
    const order = Array.from(own.keys()).sort((a, b) => own[b] - own[a] || a - b);
    for (const [n, key] of order.entries())
      if (n >= kept) missing[row] += own[key];
      else if (own[key] > 0) {
        strongest[row * kept + n] = own[key];
        keys[row * kept + n] = key;
      }
  }
  const parts = [strongest, missing, keys];
  const bytes = new Uint8Array(4 * (2 * rows * kept + rows));
  for (let n = 0, at = 0; n < parts.length; at += parts[n].byteLength, n++)
    bytes.set(new Uint8Array(parts[n].buffer), at);
  return bytes.buffer;
}

/** By head the mean entropy of its rows and, of one sequence, the mean distance of its weights. */
export function measuresOf(layer: LayerWeights, one: boolean) {
  const { heads, rows, columns, weights, entropy, count } = layer;
  return Array.from({ length: heads }, (_, head) => {
    const scores: Record<string, number> = { entropy: 0 };
    let seen = 0,
      distance = 0;
    for (let row = 0, at = head * rows; row < rows; row++, at++) {
      if (!count[at]) continue;
      seen++;
      scores.entropy += entropy[at];
      for (let key = 0; key < columns; key++)
        distance += weights[at * columns + key] * Math.abs(row - key);
    }
    scores.entropy /= Math.max(seen, 1);
    if (one) scores.distance = distance / Math.max(seen, 1);
    return { role: "", scores, chance: {} };
  });
}
