// Every head of a layer as a small picture of block means: see src/headloom/studio/overviews.py.

import { nonePixel, RAMPS, SCALES, type Theme } from "./colour";
import type { Layer } from "./model";
import type { Source } from "./source";

export interface Picture {
  shades: Uint8Array;
  /** Whether it is made of every cell; else of the kept edges alone. */
  exact: boolean;
}

/** Blocks along a side at most, and where there are many heads, as in
 * src/headloom/studio/overviews.py. */
const MOST = 128,
  SMALL = 32;

/** How the cells of a layer are put together: rows and columns of blocks, and cells of a block. */
export interface Blocks {
  rows: number;
  columns: number;
  down: number;
  across: number;
}

export function blocksOf(layer: { rows: number; columns: number }, most = MOST): Blocks {
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

/** What a dot of such a picture is, in words. */
export function dotOf({ down, across }: Blocks): string {
  if (down * across === 1) return "each dot is a weight";
  const cells = across === 1 ? "a weight" : `the mass of a row in ${across} keys`;
  return `each dot is ${cells}${down === 1 ? "" : `, the mean of ${down} rows`}`;
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
 * rows. What it gives is good until it is asked again. */
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

const WAIT = 300;
const LONGEST_WAIT = 4000;

/** Who looks at something that comes bit by bit. */
interface Watcher<Found> {
  show: (found: Found) => void;
  failed: (error: Error) => void;
}

/** The pictures of a layer: of the kept edges at first where exact ones take long. */
export class Overview {
  private pictures: Picture[] = [];
  private readonly watchers = new Set<Watcher<Picture[]>>();
  private asking = false;
  private whole = false;

  constructor(
    private readonly source: Source,
    private readonly path: (name: string) => string,
    private readonly layer: Layer,
  ) {}

  /** Calls back with the best pictures there are, and with better ones, or with why there are none;
   * returns how to stop. */
  watch(show: (pictures: Picture[]) => void, failed: (error: Error) => void): () => void {
    const watcher = { show, failed };
    this.watchers.add(watcher);
    if (this.pictures.length) show(this.pictures);
    if (!this.whole && !this.asking)
      this.ask().catch((error) => {
        for (const one of this.watchers) one.failed(error);
      });
    return () => this.watchers.delete(watcher);
  }

  /** Takes the first pictures of all its heads, where they are there already. */
  give(bytes: ArrayBuffer): void {
    this.take(bytes, this.layer.picture === "means");
    this.whole = this.layer.picture !== "later";
  }

  private async ask(): Promise<void> {
    this.asking = true;
    try {
      if (this.layer.picture !== "means" && !this.pictures.length)
        this.take(await this.source.bytes(this.path("kept")), false);
      if (this.layer.picture === "kept") this.whole = true;
      for (
        let wait = WAIT;
        !this.whole && this.watchers.size;
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
    for (const { show } of this.watchers) show(this.pictures);
  }
}

type Every = (Picture[] | null)[];

/** The pictures of all heads, by layer: smaller ones where there are many heads. */
export class Pictures {
  private found: Every;
  private readonly watchers = new Set<Watcher<Every>>();
  private readonly stops: (() => void)[] = [];
  private asking = false;
  private whole = false;
  private due = 0;
  /** The first layer that is to be asked for. */
  private next = 0;

  constructor(
    private readonly source: Source,
    private readonly path: (name: string) => string,
    private readonly layers: Layer[],
    private readonly small: boolean,
    private readonly overview: (layer: Layer) => Overview,
    /** Those of the first layers, where they are there already. */
    given?: ArrayBuffer,
  ) {
    this.found = layers.map(() => null);
    if (!given) return;
    if (small) this.next = this.take(given, 0, true);
    else this.give(given);
  }

  /** How the cells of a layer are put together. */
  blocks(layer: Layer): Blocks {
    return blocksOf(layer, this.small ? SMALL : MOST);
  }

  /** Calls back with what there is, at most once a frame, or with why there is no more; returns how
   * to stop. */
  watch(show: (found: Every) => void, failed: (error: Error) => void): () => void {
    const watcher = { show, failed };
    this.watchers.add(watcher);
    if (!this.asking) {
      this.asking = true;
      this.whole = false;
      if (this.small)
        this.ask("quick", this.next).catch((error) => {
          // Who looks again asks again.
          this.asking = false;
          this.whole = true;
          this.fail(error);
        });
      else this.watchLayers();
    }
    show(this.found);
    return () => {
      this.watchers.delete(watcher);
      if (this.watchers.size || this.small) return;
      for (const stop of this.stops.splice(0)) stop();
      this.asking = false;
    };
  }

  private fail(error: Error): void {
    for (const { failed } of this.watchers) failed(error);
  }

  private watchLayers(): void {
    // What is there at once is shown at once.
    let later = false;
    for (const layer of this.layers)
      this.stops.push(
        this.overview(layer).watch(
          (pictures) => {
            this.found[layer.number] = pictures;
            if (later) this.tell();
          },
          (error) => this.fail(error),
        ),
      );
    later = true;
  }

  /** Resolves when those that were asked for are shown, or nobody waits for any. */
  async shown(): Promise<void> {
    const frame = () => new Promise((done) => requestAnimationFrame(done));
    do await frame();
    while (this.watchers.size && this.small && !this.whole);
    // Those of the last answer are painted in the frame after it.
    await frame();
  }

  private tell(): void {
    this.due ||= requestAnimationFrame(() => {
      this.due = 0;
      this.found = [...this.found];
      for (const { show } of this.watchers) show(this.found);
    });
  }

  /** Bytes of a layer's pictures. */
  private sizeOf(layer: Layer): number {
    const { rows, columns } = this.blocks(layer);
    return layer.heads * rows * columns;
  }

  /** Hands each of the first layers its own. */
  private give(bytes: ArrayBuffer): void {
    let start = 0;
    for (const layer of this.layers) {
      const end = start + this.sizeOf(layer);
      if (end === start || end > bytes.byteLength) return;
      this.overview(layer).give(bytes.slice(start, end));
      start = end;
    }
  }

  /** Takes those of a layer and of as many after it as there are bytes, or of all; returns which
   * layer is next. */
  private take(bytes: ArrayBuffer, first: number, quick: boolean, all = false): number {
    let start = 0;
    for (; first < this.layers.length && (start < bytes.byteLength || all); first++) {
      const layer = this.layers[first];
      const exact = layer.picture === "means" || (!quick && layer.picture === "later");
      const size = this.sizeOf(layer) / layer.heads;
      this.found[first] = Array.from({ length: layer.heads }, (_, head) => ({
        shades: new Uint8Array(bytes, start + head * size, size),
        exact,
      }));
      start += layer.heads * size;
    }
    return first;
  }

  /** Asks for layer after layer, as many at a time as are made. */
  private async ask(name: "quick" | "best", first = 0): Promise<void> {
    for (let wait = WAIT; first < this.layers.length;) {
      const { bytes, whole } = await this.source.soFar(this.path(`small/${name}/${first}`));
      first = this.take(bytes, first, name === "quick", whole);
      this.tell();
      if (whole) break;
      if (name === "quick") continue;
      await new Promise((done) => setTimeout(done, wait));
      wait = Math.min(1.5 * wait, LONGEST_WAIT);
    }
    this.whole = true;
    if (name === "best" || !this.layers.some((layer) => layer.picture === "later")) return;
    // Megabytes that are no better yet, perhaps, must not hold up those that are there.
    await this.shown();
    await this.ask("best");
  }
}
