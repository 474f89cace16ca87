// Every head of a layer as a small picture of block means: see src/headloom/studio/overviews.py.

import { nonePixel, RAMPS, SCALES, type Theme } from "./colour";
import type { Layer } from "./description";
import type { Source } from "./source";

export interface Picture {
  shades: Uint8Array;
  /** Whether it is made of every cell; else of the kept edges alone. */
  exact: boolean;
}

/** How the cells of a layer are put together: rows and columns of blocks, and cells of a block. */
export interface Blocks {
  rows: number;
  columns: number;
  down: number;
  across: number;
}

/** most: blocks along a side, as the trace says. */
export function blocksOf(layer: { rows: number; columns: number }, most: number): Blocks {
  const down = Math.max(1, Math.ceil(layer.rows / most));
  const across = Math.max(1, Math.ceil(layer.columns / most));
  return {
    rows: Math.ceil(layer.rows / down),
    columns: Math.ceil(layer.columns / across),
    down,
    across,
  };
}

/** The shade of a block with a weight that is no number. */
const NONE = 1;

/** The share of a row's mass that a shade stands for; NaN: it is no number. */
export const massOf = (shade: number) => (shade === NONE ? NaN : (shade / 255) ** 4);

/** The colour of each shade. */
export function overviewTable(theme: Theme, scale: keyof typeof SCALES = "root"): Uint32Array {
  const { to } = SCALES[scale];
  const found = Uint32Array.from(
    { length: 256 },
    (_, shade) =>
      RAMPS[theme].weight[Math.round(255 * Math.min(Math.max(to(massOf(shade)), 0), 1))],
  );
  found[NONE] = nonePixel(theme);
  return found;
}

/** The meaning of a dot of such a picture, in words. */
export function dotOf({ down, across }: Blocks): string {
  if (down * across === 1) return "each dot is a weight";
  const cells = across === 1 ? "a weight" : `a row’s mass in ${across} keys`;
  return `each dot is ${cells}${down === 1 ? "" : `, averaged over ${down} rows`}`;
}

/** Blocks joined `factor` by `factor`. */
export const joined = (blocks: Blocks, factor: number): Blocks => ({
  rows: Math.ceil(blocks.rows / factor),
  columns: Math.ceil(blocks.columns / factor),
  down: blocks.down * factor,
  across: blocks.across * factor,
});

/** The shade of a mass: not the one that stands for no number. */
function shadeOf(mass: number): number {
  const shade = Math.round(255 * Math.sqrt(Math.sqrt(Math.min(mass, 1))));
  return shade === NONE ? 0 : shade;
}

const MASSES = Float64Array.from({ length: 256 }, (_, shade) => massOf(shade));

/** Makes pictures of `factor` times larger blocks: the mass of a row in them, the mean of their
 * rows. The result is valid until the next call. */
export function pooling(
  layer: { rows: number; columns: number },
  blocks: Blocks,
  factor: number,
): (shades: Uint8Array) => Uint8Array {
  const { rows, columns } = joined(blocks, factor);
  /** Cells of each block along a side: the last may have fewer. */
  const cells = (count: number, block: number, length: number) =>
    Array.from({ length: count }, (_, n) => Math.min(block, length - n * block));
  const tall = cells(blocks.rows, blocks.down, layer.rows),
    wide = cells(blocks.columns, blocks.across, layer.columns);
  const down = cells(rows, blocks.down * factor, layer.rows),
    across = cells(columns, blocks.across * factor, layer.columns);
  const sums = new Float64Array(rows * columns),
    found = new Uint8Array(rows * columns);
  return (shades) => {
    sums.fill(0);
    for (let row = 0, at = 0; row < blocks.rows; row++) {
      const into = Math.floor(row / factor) * columns;
      for (let column = 0; column < blocks.columns; column++, at++)
        sums[into + Math.floor(column / factor)] += MASSES[shades[at]] * tall[row] * wide[column];
    }
    for (let row = 0, at = 0; row < rows; row++)
      for (let column = 0; column < columns; column++, at++) {
        const mass = (factor * sums[at]) / (down[row] * across[column]);
        found[at] = Number.isNaN(mass) ? NONE : shadeOf(mass);
      }
    return found;
  };
}

/** Watchers of a value that arrives in parts. */
interface Watcher<Found> {
  show: (found: Found) => void;
  failed: (error: Error) => void;
}

/** Slow requests run one layer after the other, so that visible ones are not delayed. */
let busy: Promise<unknown> = Promise.resolve();

/** The pictures of a layer: of the kept edges at first where exact ones take long. */
export class Overview {
  readonly blocks: Blocks;
  private pictures: Picture[] = [];
  private readonly watchers = new Set<Watcher<Picture[]>>();
  private asked: "nothing" | "now" | "all" = "nothing";

  constructor(
    private readonly source: Source,
    private readonly path: (name: string) => string,
    private readonly layer: Layer,
    side: number,
  ) {
    this.blocks = blocksOf(layer, side);
  }

  /** Calls back with the best pictures there are, and with better ones, or with why there are none;
   * returns how to stop. */
  watch(show: (pictures: Picture[]) => void, failed: (error: Error) => void): () => void {
    const watcher = { show, failed };
    this.watchers.add(watcher);
    if (this.pictures.length) show(this.pictures);
    if (this.asked === "nothing") {
      this.asked = "now";
      this.ask().catch((error) => {
        // A later watcher requests them again.
        this.asked = "nothing";
        for (const one of this.watchers) one.failed(error);
      });
    }
    return () => this.watchers.delete(watcher);
  }

  private async ask(): Promise<void> {
    const { picture } = this.layer;
    if (picture !== "means" && !this.pictures.length)
      this.take(await this.source.bytes(this.path("kept")), false);
    if (picture !== "kept") {
      const bytes = () => this.source.bytes(this.path("means"));
      const coming = picture === "later" ? busy.then(bytes, bytes) : bytes();
      if (picture === "later") busy = coming;
      this.take(await coming, true);
    }
    this.asked = "all";
  }

  private take(bytes: ArrayBuffer, exact: boolean): void {
    const size = this.blocks.rows * this.blocks.columns;
    this.pictures = Array.from({ length: this.layer.heads }, (_, head) => ({
      shades: new Uint8Array(bytes, head * size, size),
      exact,
    }));
    for (const { show } of this.watchers) show(this.pictures);
  }
}

/** The pictures of all heads, by layer; null: not there yet. */
export class Pictures {
  private found: (Picture[] | null)[];

  constructor(private readonly overviews: Overview[]) {
    this.found = overviews.map(() => null);
  }

  /** Calls back with what there is, at most once a frame, or with why there is no more; returns how
   * to stop. */
  watch(show: (found: (Picture[] | null)[]) => void, failed: (error: Error) => void): () => void {
    let due = 0;
    const tell = () => {
      due = 0;
      show((this.found = [...this.found]));
    };
    const stops = this.overviews.map((overview, number) =>
      overview.watch((pictures) => {
        this.found[number] = pictures;
        due ||= requestAnimationFrame(tell);
      }, failed),
    );
    show(this.found);
    return () => {
      cancelAnimationFrame(due);
      for (const stop of stops) stop();
    };
  }
}
