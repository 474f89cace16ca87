// The attention of a row over an image, from the server, and the patch under the pointer.

import type { Layer } from "./description";
import type { Example } from "./model";

/** By sequence the row, the column and the image of each token; −1: it is no patch. */
export interface Patches {
  sequences: Record<string, { rows: number[]; columns: number[]; images: number[] | null }>;
  images: number;
}

/** See `looks` in src/headloom/studio/images.py. */
export interface Looks {
  problem: null;
  rows: number;
  columns: number;
  weights: number[];
  mass: number;
  outside: number;
  /** Rows and columns of pixels of the picture that the map covers; null: it is of patches. */
  pixels: [number, number] | null;
  of_original: boolean;
  best: [position: number, row: number, column: number, weight: number][];
}

export const patchesOf = (example: Example) =>
  example.source.json<Patches>(example.path("patches"));

/** head −1: the mean of all. size: of the picture that is drawn, where one is. */
export const looksOf = (
  example: Example,
  layer: Layer,
  head: number,
  query: number,
  image: number,
  size: [rows: number, columns: number] | null,
) => {
  const name = head < 0 ? "mean" : head;
  const [rows, columns] = size ?? [0, 0];
  return example.source.json<Looks | { problem: string }>(
    example.path(`layers/${layer.number}/looks/${name}/${query}/${image}/${rows}/${columns}`),
  );
};

/** The patch of a sequence at a row and a column; −1: there is none. */
export const patchAt = (of: Patches["sequences"][string], row: number, column: number) =>
  of.rows.findIndex((other, n) => other === row && of.columns[n] === column);

/** The weight of the strongest colour: the largest, or nine times that of an even row where none is
 * so large, so that an even map is faint, and one of little mass fainter; at most 1. */
export function topOf(weights: number[]): number {
  const even = 1 / (weights.length || 1);
  return weights.reduce((one, other) => Math.max(one, other), Math.min(9 * even, 1));
}

/** The opacity of each cell: square roots of weights by that of the strongest colour. */
export function shadesOf(weights: number[]): number[] {
  const most = topOf(weights);
  return weights.map((weight) => (most > 0 ? Math.sqrt(Math.max(weight, 0) / most) : 0));
}
