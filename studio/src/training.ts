// A training's history, as src/headloom/studio/training.py describes it.

import type { Ticks } from "./colour";
import { headName, layerName, type Kind } from "./description";
import type { Source } from "./source";
import { grouped, minus, notShown, significant3 } from "./text";

interface HistoryLayer {
  name: string;
  kind: Kind;
  index: number;
  queries: string;
  keys: string;
  shape: [number, number, number];
  weights: boolean;
  norm?: (number | null)[][];
  effective_rank?: (number | null)[][];
  symmetry?: (number | null)[][];
  left_out?: (number | null)[][];
  product_size?: number;
  product_scale?: number;
  product_beyond?: boolean;
}

/** Measures of a training with headloom.monitor: see studio/training.py. */
export interface Watched {
  steps: number[];
  layers: Record<WatchedMeasure, (number | null)[][]>[];
  warnings: [number, string][];
  notes: string[];
}

/** The measures of a head at each step of a watched training. */
export const WATCHED = {
  entropy: "entropy (nats)",
  largest_score: "largest score",
  first_token: "on the first token",
} as const;
type WatchedMeasure = keyof typeof WATCHED;

interface Description {
  steps: number[];
  losses: (number | null)[];
  curves: Record<string, [number, number][]>;
  sequences: Record<string, string[]>;
  layers: HistoryLayer[];
  /** Of the run; null: not known. */
  state: "training" | "finished" | null;
  watched?: Watched;
}

export class Training {
  private constructor(
    readonly description: Description,
    private readonly weights: (Uint8Array | null)[],
    private readonly products: (Uint8Array | null)[],
  ) {}

  static async load(source: Source): Promise<Training> {
    const description = await source.json<Description>("history");
    const all = (name: string, has: (layer: HistoryLayer) => boolean) =>
      Promise.all(
        description.layers.map(async (layer, number) =>
          has(layer)
            ? new Uint8Array(await source.bytes(`history/layers/${number}/${name}`))
            : null,
        ),
      );
    return new Training(
      description,
      await all("weights", (layer) => layer.weights),
      await all("products", (layer) => layer.product_size !== undefined),
    );
  }

  /** The probe's attention in a head at a snapshot, 255 sqrt(weight). */
  attention(layer: number, head: number, snapshot: number): Uint8Array | null {
    const [heads, rows, columns] = this.description.layers[layer].shape;
    const start = (snapshot * heads + head) * rows * columns;
    return this.weights[layer]?.subarray(start, start + rows * columns) ?? null;
  }

  /** The share of mass missing in the picture of a head at a snapshot; null: almost none. */
  leftOut(layer: number, head: number, snapshot: number): number | null {
    const share = this.description.layers[layer].left_out?.[snapshot][head] ?? 0;
    return share > 0.005 ? share : null;
  }

  /** The mass missing in the pictures of a snapshot, in words. */
  unshown(snapshot: number): string {
    const heads = this.description.layers.flatMap((layer, number) =>
      Array.from({ length: layer.weights ? layer.shape[0] : 0 }, (_, head) =>
        this.leftOut(number, head, snapshot),
      ),
    );
    const shares = heads.filter((share) => share !== null);
    if (!shares.length) return "";
    return `${notShown(shares, heads.length)}.`;
  }

  /** The probe's strongest key of each row of a head at a snapshot; null: it looks at none. */
  strongest(layer: number, head: number, snapshot: number) {
    const shades = this.attention(layer, head, snapshot);
    if (!shades) return [];
    const [, rows, columns] = this.description.layers[layer].shape;
    return Array.from({ length: rows }, (_, row) => {
      const start = row * columns;
      let key = 0;
      for (let n = 1; n < columns; n++) if (shades[start + n] > shades[start + key]) key = n;
      const weight = (shades[start + key] / 255) ** 2;
      return { row, key: weight > 0 ? key : null, weight };
    });
  }

  /** Whether its layers are of several kinds. */
  get several(): boolean {
    return new Set(this.description.layers.map(({ kind }) => kind)).size > 1;
  }

  /** A head. */
  name(number: number, head: number): string {
    return headName(this, { ...this.description.layers[number], number }, head);
  }

  /** A measure of a head at every snapshot; null: there is none. */
  series(layer: number, head: number, measure: "norm" | "effective_rank" | "symmetry") {
    return this.description.layers[layer][measure]?.map((row) => row[head]) ?? null;
  }

  /** A measure of a head at every step that was measured; null: there is none. */
  watched(layer: number, head: number, measure: WatchedMeasure) {
    const rows = this.description.watched?.layers[layer][measure].map((row) => row[head]);
    return rows?.some((value) => value !== null) ? rows : null;
  }

  /** The first snapshot in words, or the step of another. */
  step(at: number): string {
    const { steps, watched } = this.description;
    if (at > 0 || steps[0] > 0) return `step ${grouped(steps[at])}`;
    return watched ? "step 0: before training" : "step 0: random matrices";
  }

  /** A snapshot in words. */
  when(at: number): string {
    const { steps, state } = this.description;
    const trained = at > 0 && at === steps.length - 1 && state !== "training";
    return `${this.step(at)}${trained ? ": trained" : ""}`;
  }

  /** The picture of a head at a snapshot: W_Q W_K^T, or the probe's attention. */
  picture(layer: number, head: number, snapshot: number, product: boolean) {
    const { shape, product_size: size = 1 } = this.description.layers[layer];
    const [, rows, columns] = product ? [0, size, size] : shape;
    const shades = product
      ? this.product(layer, head, snapshot)
      : this.attention(layer, head, snapshot);
    return { shades, rows, columns };
  }

  /** W_Q W_K^T of a head at a snapshot as shades, 128 standing for 0. */
  product(layer: number, head: number, snapshot: number): Uint8Array | null {
    const { shape, product_size: size = 0 } = this.description.layers[layer];
    const start = (snapshot * shape[0] + head) * size * size;
    const found = this.products[layer]?.subarray(start, start + size * size);
    // Signed bytes, moved to where the middle of the ramp is.
    return found ? found.map((byte) => (byte + 128) & 255) : null;
  }
}

/** The colours of W_Q W_K^T, square roots of its entries by what 999 of 1,000 of its layer do not
 * exceed. */
export function productRamp(training: Training, layer: number): { ticks: Ticks; title: string } {
  const { layers } = training.description;
  const { product_scale: largest = 1, product_beyond: beyond } = layers[layer];
  const ends: Record<number, string> = beyond ? { [-1]: "≤ ", 1: "≥ " } : {};
  const of =
    layers.length > 1 ? ` in ${layerName(training, { ...layers[layer], number: layer })}` : "";
  return {
    ticks: [-1, -0.25, 0, 0.25, 1].map((share) => [
      (1 + Math.sign(share) * Math.sqrt(Math.abs(share))) / 2,
      `${ends[share] ?? ""}${share > 0 ? "+" : ""}${significant3(share * largest)}`,
    ]),
    title:
      `entries of W_Q W_Kᵀ${of}, square-root scale` +
      (beyond ? "; 0.1 % of entries are beyond its ends" : ""),
  };
}

/** The change of a norm, in words that follow "has". */
export function normChange(first: number, now: number): string {
  if (first === 0) return now === 0 ? "stayed 0" : `grown from 0 to a norm of ${significant3(now)}`;
  const ratio = significant3(now / first);
  if (Number(ratio) === 1) return "kept its norm";
  return `${now > first ? "grown" : "shrunk"} to ${ratio} times its initial norm`;
}

/** How a head's matrices differ at a snapshot from those at the first. */
export function trainingSentence(
  training: Training,
  layer: number,
  head: number,
  at: number,
): string {
  if (at === 0 && training.description.watched) return "The matrices when monitoring began.";
  if (at === 0) return "Randomly initialised matrices: their attention has no meaning yet.";
  const norm = training.series(layer, head, "norm");
  const [first, now] = [norm?.[0], norm?.[at]];
  if (first == null || now == null) return "";
  const says = [`Since the first snapshot, W_Q W_Kᵀ has ${normChange(first, now)}`];
  const rank = training.series(layer, head, "effective_rank");
  const [before, after] = [rank?.[0], rank?.[at]];
  if (before != null && after != null) {
    const [start, end] = [before.toFixed(1), after.toFixed(1)];
    says.push(
      `its effective rank ${start === end ? `stayed at ${end}` : `went from ${start} to ${end}`}`,
    );
  }
  const symmetry = training.series(layer, head, "symmetry")?.[at];
  if (symmetry != null)
    says.push(`its symmetry is ${minus(symmetry, 2)} (random: 0, symmetric: 1)`);
  return `${says.join("; ")}.`;
}
