// One edge of a head number by number, and one token through it, from queries, keys and values:
// see src/headloom/studio/neuron.py.

import type { EdgeNumbers, Term, Through } from "../neuron";
import { keyHead, visibleKeys, type LayerInputs, type LayerWeights, type Rule } from "./weights";

/** Listed keys of a row at most. */
const LISTED = 48;

/** Why the first and the last step have no numbers. */
const ABSENT =
  "The page has queries, keys and values of a layer, not what enters it and its output matrix.";

interface Place {
  head: number;
  row: number;
  key: number;
}

/** The vectors of a head and a place. */
const vector = (all: Float32Array, at: number, depth: number) =>
  Array.from(all.subarray(at * depth, (at + 1) * depth));

const shortNumber = (number: number) => String(Number(number.toPrecision(6)));

/** The steps from q . k to the score. */
function terms(rule: Rule, inputs: LayerInputs, { head, row, key }: Place): Term[] {
  const { depth, columns, rows } = inputs;
  const dot = dotOf(rule, inputs, head, row, key);
  let score = rule.scale * dot;
  const steps: Term[] = [
    ["q · k", `the sum of its ${depth} products`, null, dot],
    ["scaled", scalingOf(rule, depth), null, score],
  ];
  if (rule.softcap !== null) {
    const cap = shortNumber(rule.softcap);
    score = rule.softcap * Math.tanh(score / rule.softcap);
    steps.push(["bounded", `${cap} tanh(x / ${cap})`, null, score]);
  }
  if (inputs.bias) {
    const bias = inputs.bias[(head * rows + row) * columns + key];
    score += bias;
    steps.push(["bias", "+ a number that the model adds to this score", bias, score]);
  }
  const [start, end] = visibleKeys(rule, inputs, row);
  if (key < start || key >= end || score === -Infinity)
    steps.push(["mask", "hidden: the query may not look there", null, null]);
  return steps;
}

function dotOf(rule: Rule, inputs: LayerInputs, head: number, row: number, key: number): number {
  const q = (head * inputs.rows + row) * inputs.depth;
  const k = (keyHead(rule, head) * inputs.columns + key) * inputs.depth;
  let dot = 0;
  for (let n = 0; n < inputs.depth; n++) dot += inputs.queries[q + n] * inputs.keys[k + n];
  return dot;
}

function scalingOf({ scale }: Rule, depth: number): string {
  if (Math.abs(scale * Math.sqrt(depth) - 1) < 1e-6) return `/ √${depth}`;
  return scale === 1 ? "not scaled" : `× ${shortNumber(scale)}`;
}

/** The keys of the largest weights of a row, and one more, by place. */
function listed({ weights, columns, count, rows }: LayerWeights, { head, row, key }: Place) {
  const own = weights.subarray((head * rows + row) * columns, (head * rows + row + 1) * columns);
  const order = Array.from(own.keys()).sort((a, b) => own[b] - own[a] || a - b);
  const most = Math.min(LISTED, count[head * rows + row]);
  return [...new Set([...order.slice(0, most), key])].sort((a, b) => a - b);
}

export function edgeNumbers(
  rule: Rule,
  inputs: LayerInputs,
  layer: LayerWeights,
  positions: string,
  at: Place,
): EdgeNumbers {
  const { head, row, key } = at;
  const { columns, rows, depth } = inputs;
  const scores = Array.from({ length: columns }, (_, n) =>
    scoreOf(terms(rule, inputs, { ...at, key: n })),
  );
  const sink = rule.sinks?.[head] ?? null;
  const seen = scores.filter((score) => score !== null);
  const largest = Math.max(...seen, sink ?? -Infinity);
  const most = largest === -Infinity ? 0 : largest;
  const exponentials = scores.map((score) => (score === null ? 0 : Math.exp(score - most)));
  const ofSink = sink === null ? null : Math.exp(sink - most);
  const total = exponentials.reduce((a, b) => a + b, ofSink ?? 0);
  const weights = exponentials.map((one) => (total ? one / total : 0));
  const keys = listed(layer, at);
  const k = keyHead(rule, head) * columns;
  const q = vector(inputs.queries, head * rows + row, depth);
  const own = vector(inputs.keys, k + key, depth);
  const shown = new Set(keys);
  const weight = layer.weights[(head * rows + row) * columns + key];
  return {
    missing: null,
    depth,
    scaling: scalingOf(rule, depth),
    positions,
    q,
    k: own,
    products: q.map((number, n) => number * own[n]),
    terms: terms(rule, inputs, at),
    listed: {
      keys,
      ks: keys.map((place) => vector(inputs.keys, k + place, depth)),
      dots: keys.map((place) => dotOf(rule, inputs, head, row, place)),
      scores: keys.map((place) => scores[place]),
      exponentials: keys.map((place) => exponentials[place]),
      weights: keys.map((place) => weights[place]),
    },
    softmax: {
      largest: most,
      total,
      sink,
      sink_exponential: ofSink,
      lse: total ? most + Math.log(total) : null,
      count: seen.length,
      others: Math.max(
        0,
        weights.reduce((a, b, n) => (shown.has(n) ? a : a + b), 0),
      ),
    },
    exponential: exponentials[key],
    weight: weights[key],
    score: scores[key],
    trace: {
      count: seen.length,
      rest: null,
      hidden: scores[key] === null,
      weight: scores[key] === null ? null : weight,
      score: scores[key],
      rank: scores[key] === null ? null : 1 + seen.filter((one) => one > scores[key]!).length,
    },
  };
}

const scoreOf = (steps: Term[]) => steps[steps.length - 1][3];

/** One token through the head: its values and their sum. wording: of the layer's steps. */
export function throughNumbers(
  rule: Rule,
  inputs: LayerInputs,
  layer: LayerWeights,
  wording: Pick<Through, "steps" | "turned">,
  at: Place,
): Through {
  const { columns, valueDepth, values } = inputs;
  const start = keyHead(rule, at.head) * columns;
  const row = (at.head * inputs.rows + at.row) * columns;
  const z = new Array<number>(valueDepth).fill(0);
  for (let key = 0; key < columns; key++)
    for (let n = 0; n < valueDepth; n++)
      z[n] += layer.weights[row + key] * values[(start + key) * valueDepth + n];
  return {
    turned: wording.turned,
    steps: wording.steps.map(([number, name, formula, sentence, missing]) => {
      return [number, name, formula, sentence, number === 6 ? "" : missing && ABSENT];
    }),
    x: null,
    q: null,
    values: listed(layer, at).map((key) => vector(values, start + key, valueDepth)),
    z,
    z_difference: null,
    part: null,
  };
}
