// Tiles of a head's matrix: 256 x 256 numbers of half precision, of cells (level 0) or of blocks
// of 2^level x 2^level cells; each is painted once and again when the colours change.

import { nonePixel, RAMPS, SCALES, type Theme } from "./colour";
import type { Layer } from "./description";
import { BLOCK, type Example } from "./model";
import { weight2 } from "./text";

export const SIDE = 256;

export interface Tile {
  rows: number;
  columns: number;
  halves: Uint16Array;
  canvas: HTMLCanvasElement | null;
  painted: Uint32Array | null;
  used: number;
}

const single = new Float32Array(1);
const bits = new Uint32Array(single.buffer);

/** The bits of infinity, the smallest that are not a number, and those of NaN. */
export const NONE = 0x7c00,
  NAN = 0x7e00;

/** A weight of 0 to 1, or NaN, as the bits of a half-precision number. */
export function half(weight: number): number {
  if (Number.isNaN(weight)) return NAN;
  if (!(weight > 6e-8)) return 0;
  single[0] = weight;
  const exponent = (bits[0] >>> 23) - 112;
  const mantissa = bits[0] & 0x7fffff;
  if (exponent <= 0) return (mantissa | 0x800000) >>> (14 - exponent);
  return (exponent << 10) + ((mantissa + 0x1000) >>> 13);
}

/** The number that bits of half precision stand for, whatever its sign; NaN: none. */
export function whole(bits: number): number {
  if ((bits & NONE) === NONE) return NaN;
  const exponent = (bits >>> 10) & 31;
  const mantissa = bits & 1023;
  return exponent ? (1 + mantissa / 1024) * 2 ** (exponent - 15) : mantissa * 2 ** -24;
}

/** A colour for each half-precision number from 0 to 1, and one for NaN. */
export function lookup(
  table: Uint32Array,
  to: (weight: number) => number,
  none: number,
): Uint32Array {
  const found = new Uint32Array(65536).fill(table[255]).fill(none, NONE, 0x8000);
  found.fill(none, 0x8000 | NONE);
  for (let n = 0; n <= half(1); n++)
    found[n] = table[Math.round(255 * Math.min(Math.max(to(whole(n)), 0), 1))];
  return found;
}

const HELD = 400; // tiles in memory, 128 kB each and its picture

export class Tiles {
  private readonly tiles = new Map<string, Tile>();
  private readonly awaited = new Set<string>();
  private readonly failed = new Set<string>();
  private readonly left = new AbortController();
  private clock = 0;
  readonly top: number;
  problem = "";

  constructor(
    protected readonly example: Example,
    readonly layer: Layer,
    readonly head: number,
    protected readonly of: "max" | "mass",
    private readonly arrived: () => void,
  ) {
    this.top = Math.max(0, Math.ceil(Math.log2(Math.max(layer.rows, layer.columns, 1) / SIDE)));
  }

  /** A colour for each number that a tile can hold. */
  colours(theme: Theme, scale: keyof typeof SCALES): Uint32Array {
    return lookup(RAMPS[theme].weight, SCALES[scale].to, nonePixel(theme));
  }

  /** The number of a cell as it stands in it. */
  word(bits: number): string {
    const weight = whole(bits);
    return Number.isNaN(weight) ? "NaN" : weight2(weight);
  }

  /** Where the server has a tile. */
  protected path(level: number, row: number, column: number): string {
    const head = `layers/${this.layer.number}/heads/${this.head}`;
    return this.example.path(`${head}/matrix/${this.of}/${level}/${row}/${column}`);
  }

  get waiting(): number {
    return this.awaited.size;
  }

  /** A tile, or null while it is on its way. */
  get(level: number, row: number, column: number, ask = true): Tile | null {
    const name = `${level}/${row}/${column}`;
    const found = this.tiles.get(name);
    if (found) {
      found.used = ++this.clock;
      return found;
    }
    if (ask && !this.awaited.has(name) && !this.failed.has(name) && this.awaited.size < 6) {
      this.awaited.add(name);
      this.read(level, row, column).then(
        (tile) => {
          this.awaited.delete(name);
          this.tiles.set(name, tile);
          this.forget();
          this.arrived();
        },
        (error) => {
          if (this.left.signal.aborted) return;
          // Not asked for again by itself: the view says what went wrong.
          this.awaited.delete(name);
          this.failed.add(name);
          this.problem = error.message;
          this.arrived();
        },
      );
    }
    return null;
  }

  /** Cancels pending requests: another matrix is shown. */
  leave(): void {
    this.left.abort();
  }

  private forget(): void {
    if (this.tiles.size <= HELD) return;
    const oldest = [...this.tiles].sort((a, b) => a[1].used - b[1].used).slice(0, HELD / 4);
    for (const [name] of oldest) if (!name.startsWith(`${this.top}/`)) this.tiles.delete(name);
  }

  private async read(level: number, row: number, column: number): Promise<Tile> {
    const size = 2 ** level;
    const rows = Math.min(SIDE, Math.ceil(this.layer.rows / size) - row * SIDE);
    const columns = Math.min(SIDE, Math.ceil(this.layer.columns / size) - column * SIDE);
    const path = this.path(level, row, column);
    const halves = this.example.source.live
      ? new Uint16Array(await this.example.source.bytes(path, this.left.signal))
      : await this.gathered(size, row * SIDE, column * SIDE, rows, columns);
    return { rows, columns, halves, canvas: null, painted: null, used: ++this.clock };
  }

  /** A tile made of the kept edges; what was not kept counts as 0. */
  private async gathered(
    size: number,
    row: number,
    column: number,
    rows: number,
    columns: number,
  ): Promise<Uint16Array> {
    const found = new Float32Array(rows * columns);
    const last = Math.min((row + rows) * size, this.layer.rows);
    for (let block = Math.floor((row * size) / BLOCK); block * BLOCK < last; block++)
      (await this.example.edges(this.layer, this.head, block)).each((i, j, weight) => {
        const y = Math.floor((i + block * BLOCK) / size) - row;
        const x = Math.floor(j / size) - column;
        if (y < 0 || y >= rows || x < 0 || x >= columns) return;
        const at = y * columns + x;
        if (this.of === "max") found[at] = Math.max(found[at], weight);
        else found[at] += weight / Math.min(size, this.layer.rows - (row + y) * size);
      });
    return Uint16Array.from(found, half);
  }
}

/** The picture of a tile in the colours of a lookup table. */
export function painted(tile: Tile, colours: Uint32Array): HTMLCanvasElement {
  if (tile.canvas && tile.painted === colours) return tile.canvas;
  const canvas = (tile.canvas ??= document.createElement("canvas"));
  canvas.width = tile.columns;
  canvas.height = tile.rows;
  const context = canvas.getContext("2d")!;
  const image = context.createImageData(tile.columns, tile.rows);
  const pixels = new Uint32Array(image.data.buffer);
  for (let n = 0; n < pixels.length; n++) pixels[n] = colours[tile.halves[n]];
  context.putImageData(image, 0, 0);
  tile.painted = colours;
  return canvas;
}
