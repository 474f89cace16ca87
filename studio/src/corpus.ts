// One head over many texts: the server's results so far.

import type { Layer } from "./description";
import type { Source } from "./source";

export interface Exemplar {
  example: number;
  name: string;
  query: number;
  key: number;
  weight: number;
  score: number;
  /** Tokens around its ends, and the place of the first: both at once where they are near. */
  pieces: Partial<Record<"both" | "query" | "key", [tokens: string[], first: number]>>;
}

/** See `Spread` in src/headloom/analysis/heads/corpus.py. */
export interface Spread {
  values: number;
  mean: number;
  quantiles: number[];
  low: number;
  high: number;
  counts: number[];
  lowest: number;
  highest: number;
}

/** See `Corpus.head` in src/headloom/studio/corpus.py. */
export interface CorpusHead {
  texts: number;
  taken: number;
  /** Whether all that are taken were read. */
  whole: boolean;
  read: number;
  others: number;
  failed: number;
  problems: string[];
  quantiles: number[];
  exemplars: Exemplar[];
  spreads: Record<string, Spread>;
  words: [word: string, share: number, count: number, mean: number][];
  /** Whether shares of words are lower bounds, because edges were not kept. */
  bounds: boolean;
}

/** Polls until all texts are read. Returns a function that stops it. */
export function watchCorpus(
  source: Source,
  example: number,
  layer: Layer,
  head: number,
  sinks: boolean,
  show: (found: CorpusHead) => void,
  fail: (error: Error) => void,
): () => void {
  let stopped = false;
  const of = `corpus/${example}/layers/${layer.number}/heads/${head}`;
  const path = `${of}/${sinks ? "all" : "without-sinks"}`;
  async function ask() {
    for (let wait = 250; !stopped; wait = Math.min(wait * 1.5, 1500)) {
      const found = await source.json<CorpusHead>(path);
      if (stopped) return;
      show(found);
      if (found.whole) return;
      await new Promise((done) => setTimeout(done, wait));
    }
  }
  ask().catch((error) => stopped || fail(error as Error));
  return () => (stopped = true);
}

/** Heights of bars, 0 to 1, on a square-root scale so that single texts are seen. */
export function barsOfCounts(counts: number[]): number[] {
  const most = Math.max(...counts, 1);
  return counts.map((count) => Math.sqrt(count / most));
}

/** The end of an edge that stands at a place of a piece. */
export function endAt(one: Exemplar, side: string, place: number): "query" | "key" | "" {
  if (side !== "key" && place === one.query) return "query";
  if (side !== "query" && place === one.key) return "key";
  return "";
}
