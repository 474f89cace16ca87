// Props shared by the threads of short texts, of long texts, and their panel.

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
  /** By head all rows of a short text; for a long one only the selected row. */
  rows: ReadonlyMap<number, Row[]>;
  sinks: Set<number> | null;
  /** The exact sums, where they are known. */
  sums: Sums | null;
  /** How a row's threads are chosen. */
  choice: (head: number, row: number) => Choice;
}

/** By head the rows that look at the selected token. */
export type QueriesOfKey = Map<number, { row: number; weight: number }[]>;

type Place = { query?: number; key?: number };

/** Functions that point at a word, or pin it. */
export interface Pointing {
  point: (change: Place) => void;
  lock: (change: Place) => void;
}
