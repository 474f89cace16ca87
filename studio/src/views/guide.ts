// What the guide computes from a text: which head and which place it follows.

import type { Layer } from "../description";
import type { Card, Prediction } from "../live/card";
import type { LiveModel } from "../live/model.svelte";
import { chosenOf, textOf, tokenWords, type Chosen } from "../live/prediction";
import { probabilities } from "../live/sampling";
import { keyHead } from "../live/weights";
import { Edges, type Example } from "../model";
import { blocksOf } from "../overview";
import { minus, percent, significant3, visible } from "../text";

/** Texts to try where a model writes dates. */
export const DATES = [
  "de: 17. März 2024",
  "en: March 17, 2024",
  "fr: 5 juin 1999",
  "es: 3/10/1957",
];

/** Whether a page has a guide: its model translates, and has earlier matrices. */
export const isGuided = ({ kind, snapshots }: Card) => kind === "translator" && snapshots !== null;

/** Whether the model writes dates. */
export const writesDates = ({ description, sequences }: Card) =>
  /^\d{4}-\d\d-\d\d$/.test(description.sequences[sequences[1]].slice(1).join(""));

/** A text in the guide: what the model makes of it, and the head that the guide follows. */
export interface Lesson {
  example: Example;
  text: string;
  read: string[];
  /** How a token is called. */
  unit: "character" | "token";
  prediction: Prediction;
  /** What was written, with its end. */
  chosen: Chosen[];
  written: { text: string; share: number; said: string }[];
  layer: Layer;
  head: number;
  edges: Edges;
}

export async function lessonOf(model: LiveModel, example: Example): Promise<Lesson> {
  const { card, change } = model;
  const text = textOf(example, card);
  const prediction = await model.predicted(text, change);
  const chosen = chosenOf(prediction, card);
  const written = chosen.map(({ id, logits }) => {
    const [name, share] = [tokenWords(model.name(id), id, card), probabilities(logits)[id]];
    return { text: name, share, said: `${name}: ${percent(share)}` };
  });
  const layer = example.layers.findLast(({ kind }) => kind === "cross")!;
  const heads = Array.from({ length: layer.heads }, (_, head) => head);
  const all = await Promise.all(heads.map((head) => example.edges(layer, head, 0)));
  const head = sharpest(all);
  const read = layer.keyTokens;
  const one = read.every((token) => isSign(token) || Array.from(token).length === 1);
  const unit = one ? "character" : "token";
  const of = { layer, head, edges: all[head] };
  return { example, text, read, unit, prediction, chosen, written, ...of };
}

/** The head with the lowest mean entropy. */
export function sharpest(heads: readonly Pick<Edges, "entropy">[]): number {
  const entropies = heads.map(meanEntropy);
  return entropies.indexOf(Math.min(...entropies));
}

const meanEntropy = ({ entropy }: Pick<Edges, "entropy">) =>
  entropy.reduce((a, b) => a + b, 0) / Math.max(entropy.length, 1);

/** How many keys a row looks at: e to the mean entropy. */
export const spread = (edges: Pick<Edges, "entropy">) => minus(Math.exp(meanEntropy(edges)), 1);

/** The row whose strongest weight is the largest, on a key that is no separator; not the end. */
export function clearest(layer: Pick<Layer, "rows" | "separators">, edges: Pick<Edges, "row">) {
  let best = 0,
    most = -1;
  for (let row = 0; row < layer.rows - 1; row++) {
    const [first] = edges.row(row);
    if (!first || layer.separators.includes(first.key) || first.weight <= most) continue;
    [best, most] = [row, first.weight];
  }
  return best;
}

/** The row whose strongest weight is the smallest. */
export function mixed({ rows }: Pick<Layer, "rows">, edges: Pick<Edges, "row">): number {
  const strongest = Array.from({ length: rows }, (_, row) => edges.row(row)[0]?.weight ?? 1);
  return strongest.indexOf(Math.min(...strongest));
}

/** A matrix as shades around 128, the number that is largest in size as 0 or 255. */
export function shadesOf(matrix: Float32Array): Uint8Array {
  const most = matrix.reduce((a, b) => Math.max(a, Math.abs(b)), 1e-30);
  return Uint8Array.from(matrix, (number) => Math.round(127.5 + (127.5 * number) / most));
}

/** How many characters of a text are those of another, place by place. */
export const agreeing = (one: string, other: string) =>
  Array.from(other).filter((letter, n) => Array.from(one)[n] === letter).length;

/** Whether a token stands for no text: the beginning or the end. */
export const isSign = (token: string) => /^<.+>$/.test(token);

/** A token in a sentence. */
export const quoted = (token: string) => (isSign(token) ? token : `“${visible(token, 24)}”`);

/** A positive number of any size with three digits, a large one in words. */
export function about(number: number): string {
  if (number < 1000) return significant3(number);
  if (number >= 1e15) return number.toExponential(2).replace("e+", " × 10^");
  const words = number < 1e6 ? {} : ({ notation: "compact", compactDisplay: "long" } as const);
  return number.toLocaleString("en", { maximumSignificantDigits: 3, ...words });
}

/** A weight in four digits. */
export const weightWords = (weight: number) =>
  weight > 0 && weight < 5e-5 ? "<\u00a00.0001" : minus(weight, 4);

/** The table of the vectors of all tokens, and how many numbers a vector has. */
export function vectorsOf({ card, names }: LiveModel): { name: string; width: number } | null {
  const table = card.tensors.find(
    ({ name, count }) => name.includes("embedding") && count % names.length === 0,
  );
  return table ? { name: table.name, width: table.count / names.length } : null;
}

/** What the head of a lesson was at a step of the training; none: as trained. */
export interface Past {
  /** What the model writes with the matrices of then. */
  output: string;
  /** W_Q, W_K and W_V as shades, (rows, columns). */
  matrices: { name: string; shades: Uint8Array; rows: number; columns: number }[];
  /** The weights of the head as shades, for the output of the trained model; and its edges. */
  weights: { shades: Uint8Array; rows: number; columns: number };
  edges: Edges;
}

export async function pastOf(
  model: LiveModel,
  { text, prediction, layer, head }: Lesson,
  snapshot: number | undefined,
): Promise<Past> {
  const rule = model.card.layers[layer.number];
  const columns = vectorsOf(model)?.width ?? 1;
  const matrices = ["Q", "K", "V"].map(async (part) => {
    const matrix = await model.tensor(`${rule.name}.w_${part.toLowerCase()}.weight`, snapshot);
    const size = matrix.length / (part === "Q" ? rule.heads : rule.kvHeads);
    const start = size * (part === "Q" ? head : keyHead(rule, head));
    const shades = shadesOf(matrix.subarray(start, start + size));
    return { name: `W_${part}`, shades, rows: size / columns, columns };
  });
  const change = { ...model.change, snapshot };
  const tokens = prediction.ids[model.card.sequences[1]].length + 4;
  const output = await model.generate(text, { ...change, tokens });
  const { number, description } = await model.read(text, { ...change, target: prediction.output });
  const [, queries, keys] = description.layers[layer.number].shape;
  const piece = (path: string) =>
    model.piece<ArrayBuffer>(number, `layers/${layer.number}/${path}`);
  const means = new Uint8Array(await piece("means"));
  const edges = new Edges(await piece(`heads/${head}/edges/0`), queries, keys);
  await model.drop(number);
  const blocks = blocksOf({ rows: queries, columns: keys }, description.side);
  const size = blocks.rows * blocks.columns;
  const weights = { ...blocks, shades: means.subarray(head * size, (head + 1) * size) };
  return { output, matrices: await Promise.all(matrices), weights, edges };
}
