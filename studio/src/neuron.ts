// One edge of a head number by number: the server's answer, and its text.

import type { Layer } from "./description";
import type { CellValue, Example } from "./model";
import { counted, minus, significant3, weightText } from "./text";

export type Term = [name: string, how: string, value: number | null, result: number | null];

/** See `Neurons.edge` in src/headloom/studio/neuron.py. */
export interface EdgeNumbers {
  missing: null;
  depth: number;
  scaling: string;
  positions: string;
  q: number[];
  k: number[];
  products: number[];
  terms: Term[];
  listed: {
    keys: number[];
    ks: number[][];
    dots: number[];
    /** null: hidden by the mask. */
    scores: (number | null)[];
    exponentials: number[];
    weights: number[];
  };
  softmax: {
    largest: number;
    total: number;
    sink: number | null;
    sink_exponential: number | null;
    lse: number | null;
    count: number;
    others: number;
  };
  exponential: number;
  weight: number;
  score: number | null;
  trace: CellValue;
}
export interface EdgeMissing {
  missing: string;
  trace: CellValue;
}

/** See `Neurons.through`. */
export interface Through {
  steps: [number: number | null, name: string, formula: string, said: string, missing: string][];
  x: number[] | null;
  q: number[] | null;
  turned: boolean;
  values: number[][] | null;
  z: number[] | null;
  z_difference: number | null;
  part: number[] | null;
}

const path = (layer: Layer, head: number, rest: string) =>
  `layers/${layer.number}/heads/${head}/${rest}`;

export const edgeOf = (example: Example, layer: Layer, head: number, row: number, key: number) =>
  example.source.json<EdgeNumbers | EdgeMissing>(
    example.path(path(layer, head, `edge/${row}/${key}`)),
  );
export const throughOf = (example: Example, layer: Layer, head: number, row: number, key: number) =>
  example.source.json<Through>(example.path(path(layer, head, `through/${row}/${key}`)));

/** The row that is shown where none is chosen: the last that does not end or part texts. */
export function firstRow(layer: Layer): number {
  for (let row = layer.rows - 1; row > 0; row--)
    if (!layer.one || !layer.separators.includes(row)) return row;
  return 0;
}

/** The heights of signed bars, −1 to 1, by the largest of them. */
export function signed(values: number[]): number[] {
  const most = Math.max(...values.map(Math.abs), 1e-300);
  return values.map((value) => value / most);
}

/** The number that is closest to a place across so many. */
export const numberAt = (share: number, count: number) =>
  Math.min(Math.max(Math.floor(share * count), 0), count - 1);

/** A number with four digits after the point; a tiny one as a power of ten. */
export const exact = (value: number) =>
  value !== 0 && Math.abs(value) < 5e-4 ? significant3(value) : minus(value, 4);

/** One step from the products to the weight. */
export interface LedgerLine {
  name: string;
  how: string;
  gives: string;
  kind: "term" | "weight" | "check";
}

/** The steps from the products to the weight, and the numbers of the trace. */
export function ledgerOf(edge: EdgeNumbers): LedgerLine[] {
  const { softmax, trace } = edge;
  const line = (name: string, how: string, gives: string, kind: LedgerLine["kind"] = "term") => ({
    name,
    how,
    gives,
    kind,
  });
  const sink = softmax.sink === null ? "" : ` and the sink (logit ${exact(softmax.sink)})`;
  return [
    ...edge.terms.map(([name, how, value, result]) =>
      line(
        name,
        value === null ? how : `${how}: ${exact(value)}`,
        result === null ? "−∞" : exact(result),
      ),
    ),
    line(
      `e^(score − ${exact(softmax.largest)})`,
      "minus the row’s largest score, for numerical stability",
      exact(edge.exponential),
    ),
    line(
      "weight",
      `/ ${exact(softmax.total)}, the sum over ${counted(softmax.count, "key")}${sink}`,
      weightText(edge.weight),
      "weight",
    ),
    line("in the trace", traceWords(edge), weightText(trace.weight ?? 0), "check"),
  ];
}

function traceWords({ trace, score, weight }: EdgeNumbers): string {
  if (trace.hidden) return "the mask hides this key: weight 0";
  if (trace.weight === null) return "this edge was not kept";
  const weights = `weight ${apart(trace.weight, weight)}`;
  if (trace.score === null) return weights;
  return `score ${minus(trace.score, 4)}, ${apart(trace.score, score ?? 0)}; ${weights}`;
}

/** How far two numbers are apart, in words. */
export const apart = (one: number, other: number) =>
  one === other
    ? "the same"
    : `the same to within ${Math.abs(one - other).toExponential(0)}`
        .replace("e-", "e−")
        .replace("e+0", "");
