// Every head of a layer as a small picture of block means: see src/weft/studio/overviews.py.

import { RAMPS, SCALES, type Theme } from "./colour";
import type { Layer } from "./model";
import type { Source } from "./source";

export interface Picture {
  shades: Uint8Array;
  /** Whether it is made of every cell; else of the kept edges alone. */
  exact: boolean;
}

/** Blocks along a side at most, as in src/weft/studio/overviews.py. */
const MOST = 128;

/** How the cells of a layer are put together: rows and columns of blocks, and cells of a block. */
export function blocksOf(layer: { rows: number; columns: number }) {
  const down = Math.max(1, Math.ceil(layer.rows / MOST));
  const across = Math.max(1, Math.ceil(layer.columns / MOST));
  return {
    rows: Math.ceil(layer.rows / down),
    columns: Math.ceil(layer.columns / across),
    down,
    across,
  };
}

/** The share of a row's mass that a shade stands for. */
export const massOf = (shade: number) => (shade / 255) ** 4;

/** The colour of each shade. */
export function overviewTable(theme: Theme, scale: keyof typeof SCALES = "root"): Uint32Array {
  const { to } = SCALES[scale];
  return Uint32Array.from(
    { length: 256 },
    (_, shade) =>
      RAMPS[theme].weight[Math.round(255 * Math.min(Math.max(to(massOf(shade)), 0), 1))],
  );
}

/** What a dot of such a picture is, in words. */
export function dotOf(layer: { rows: number; columns: number }): string {
  const { down, across } = blocksOf(layer);
  if (down * across === 1) return "each dot is a weight";
  const cells = across === 1 ? "a weight" : `the mass of a row in ${across} keys`;
  return `each dot is ${cells}${down === 1 ? "" : `, the mean of ${down} rows`}`;
}

const WAIT = 300;
const LONGEST_WAIT = 4000;

/** The pictures of a layer: of the kept edges at first where exact ones take long. */
export class Overview {
  private pictures: Picture[] = [];
  private readonly listeners = new Set<(pictures: Picture[]) => void>();
  private asking = false;
  private whole = false;
  private problem: Error | null = null;

  constructor(
    private readonly source: Source,
    private readonly path: (name: string) => string,
    private readonly layer: Layer,
  ) {}

  /** Calls back with the best pictures there are, and with better ones; returns how to stop. */
  watch(show: (pictures: Picture[]) => void, failed: (error: Error) => void): () => void {
    this.listeners.add(show);
    if (this.pictures.length) show(this.pictures);
    if (!this.whole && !this.asking) this.ask().catch((error) => failed((this.problem = error)));
    else if (this.problem) failed(this.problem);
    return () => this.listeners.delete(show);
  }

  private async ask(): Promise<void> {
    this.asking = true;
    try {
      if (this.layer.picture !== "means" && !this.pictures.length)
        this.take(await this.source.bytes(this.path("kept")), false);
      if (this.layer.picture === "kept") this.whole = true;
      for (
        let wait = WAIT;
        !this.whole && this.listeners.size;
        wait = Math.min(1.5 * wait, LONGEST_WAIT)
      ) {
        const { bytes, whole } = await this.source.soFar(this.path("means"));
        this.whole = whole;
        this.take(bytes, true);
        if (!whole) await new Promise((done) => setTimeout(done, wait));
      }
    } finally {
      this.asking = false;
    }
  }

  /** Pictures of the first heads, in the place of those that were there. */
  private take(bytes: ArrayBuffer, exact: boolean): void {
    const { rows, columns } = blocksOf(this.layer);
    const size = rows * columns;
    const before = this.pictures;
    const count = size ? bytes.byteLength / size : this.layer.heads;
    if (exact && before.filter((one) => one.exact).length === count && count < this.layer.heads)
      return;
    this.pictures = Array.from({ length: Math.max(count, before.length) }, (_, head) =>
      head < count ? { shades: new Uint8Array(bytes, head * size, size), exact } : before[head],
    );
    for (const show of this.listeners) show(this.pictures);
  }
}
