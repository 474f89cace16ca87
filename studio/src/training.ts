// A training's history, as src/weft/studio/training.py describes it.

import type { Kind } from "./model";
import type { Source } from "./source";
import { counted, percent } from "./text";

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
}

interface Description {
  steps: number[];
  losses: (number | null)[];
  curves: Record<string, [number, number][]>;
  sequences: Record<string, string[]>;
  layers: HistoryLayer[];
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

  /** What the picture of a head at a snapshot leaves out of its mass; null: next to nothing. */
  leftOut(layer: number, head: number, snapshot: number): number | null {
    const share = this.description.layers[layer].left_out?.[snapshot][head] ?? 0;
    return share > 0.005 ? share : null;
  }

  /** What the pictures of a snapshot leave out, in words. */
  unshown(snapshot: number): string {
    const heads = this.description.layers.flatMap((layer, number) =>
      Array.from({ length: layer.weights ? layer.shape[0] : 0 }, (_, head) =>
        this.leftOut(number, head, snapshot),
      ),
    );
    const shares = heads.filter((share) => share !== null);
    if (!shares.length) return "";
    const [least, most] = [percent(Math.min(...shares)), percent(Math.max(...shares))];
    return `Drawn from the kept edges${shares.length < heads.length ? ` in ${counted(shares.length, "head")}` : ""}: ${least === most ? least : `${least} to ${most}`} of the mass is not shown.`;
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
