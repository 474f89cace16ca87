// What the ways to draw threads are given: of a short text, of a long one, and in words.

import type { Layer } from "../description";
import type { Example, Row, Sums } from "../model";
import type { Studio } from "../studio.svelte";
import type { Choice } from "../threads";

export interface ThreadProps {
  studio: Studio;
  example: Example;
  layer: Layer;
  chosen: number[];
  query: number;
  key: number;
  /** By head all rows of a short text; of a long one the row in question alone. */
  rows: ReadonlyMap<number, Row[]>;
  sinks: Set<number> | null;
  /** The exact sums, where they are known. */
  sums: Sums | null;
  /** How a row's threads are chosen. */
  choice: (head: number, row: number) => Choice;
}

/** By head the rows that look at the token in question. */
export type QueriesOfKey = Map<number, { row: number; weight: number }[]>;

type Place = { query?: number; key?: number };

/** How a word is pointed at, or kept. */
export interface Pointing {
  point: (change: Place) => void;
  lock: (change: Place) => void;
}
