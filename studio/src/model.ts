// A trace of the collection: its layers, the edges of its heads, and other data on demand.

import { rising } from "./axisTicks";
import type { Description, Layer } from "./description";
import { Overview, Pictures } from "./overview";
import type { Source } from "./source";

export interface Edge {
  key: number;
  weight: number;
  score: number;
  rank: number;
}

export const BLOCK = 1024;

/** The kept edges of up to 1,024 rows of a head; see `edges` in src/headloom/studio/arrays.py. */
export class Edges {
  readonly rows: number;
  readonly kept: number;
  readonly weights: Float32Array;
  readonly keys: Uint16Array | Uint32Array;
  readonly lse: Float32Array;
  readonly entropy: Float32Array;
  readonly rest: Float32Array;
  readonly count: Uint32Array;
  private readonly none: number;

  constructor(buffer: ArrayBuffer, rows: number, columns: number) {
    const short = columns < 65535;
    this.rows = rows;
    this.none = short ? 65535 : 4294967295;
    const kept = rows ? (buffer.byteLength / rows - 16) / (short ? 6 : 8) : 0;
    this.kept = kept;
    this.weights = new Float32Array(buffer, 0, rows * kept);
    const after = (n: number) => 4 * (rows * kept + n * rows);
    this.lse = new Float32Array(buffer, after(0), rows);
    this.entropy = new Float32Array(buffer, after(1), rows);
    this.rest = new Float32Array(buffer, after(2), rows);
    this.count = new Uint32Array(buffer, after(3), rows);
    this.keys = short
      ? new Uint16Array(buffer, after(4), rows * kept)
      : new Uint32Array(buffer, after(4), rows * kept);
  }

  /** The edges of a row of the block, strongest first. */
  row(row: number): Edge[] {
    const found: Edge[] = [];
    for (let n = row * this.kept; n < (row + 1) * this.kept && this.keys[n] !== this.none; n++)
      found.push({
        key: this.keys[n],
        weight: this.weights[n],
        score: Math.log(this.weights[n]) + this.lse[row], // weight = exp(score - lse)
        rank: found.length + 1,
      });
    return found;
  }

  /** The mass of a row on keys that were not kept, of which a sink may have some where its logit is
   * not known; of weights that are not numbers all of it. */
  missing(row: number): number {
    return Number.isNaN(this.lse[row]) ? 1 : this.rest[row];
  }

  /** Calls back with every edge of the block. */
  each(visit: (row: number, key: number, weight: number) => void): void {
    for (let row = 0; row < this.rows; row++)
      for (let n = row * this.kept; n < (row + 1) * this.kept && this.keys[n] !== this.none; n++)
        visit(row, this.keys[n], this.weights[n]);
  }
}

/** Exact sums of each head: see src/headloom/studio/sums.py. */
export interface Sums {
  /** By key: the mass it receives from all queries. */
  received: (head: number) => Float32Array;
  /** By query: its weights times the norms of the values. */
  valued: ((head: number) => Float32Array) | null;
  /** By key: the mass it receives when weights are multiplied by the norms of the values. */
  given: ((head: number) => Float32Array) | null;
  /** By head the logit of its sink; null: it has none. */
  sinks: Float32Array | null;
}

/** A row of one head, as the threads show it. */
export interface Row {
  edges: Edge[];
  entropy: number;
  rest: number;
  lse: number;
  count: number;
}

/** One cell of the matrix. */
export interface CellValue {
  weight: number | null;
  score: number | null;
  rank: number | null;
  count: number;
  /** For a weight that was not kept: the mass of all edges of its row that were not. */
  rest: number | null;
  hidden: boolean;
}

/** One trace of the collection. */
export class Example {
  private readonly pieces = new Map<string, Promise<unknown>>();
  private readonly overviews = new Map<number, Overview>();
  readonly layers: Layer[];
  /** The pictures of all heads. */
  readonly pictures: Pictures;
  /** Whether its layers are of several kinds. */
  readonly several: boolean;

  constructor(
    readonly source: Source,
    readonly number: number,
    readonly description: Description,
  ) {
    this.layers = description.layers.map((layer, place) => ({
      ...layer,
      number: place,
      heads: layer.shape[0],
      rows: layer.shape[1],
      columns: layer.shape[2],
      queryTokens: description.sequences[layer.queries],
      keyTokens: description.sequences[layer.keys],
      querySeconds: rising(description.seconds?.[layer.queries]),
      keySeconds: rising(description.seconds?.[layer.keys]),
      separators: description.separators[layer.keys] ?? [],
      one: layer.queries === layer.keys,
    }));
    this.several = new Set(this.layers.map(({ kind }) => kind)).size > 1;
    this.pictures = new Pictures(this.layers.map((layer) => this.overview(layer)));
  }

  /** The data of a path, requested once. */
  once<T>(path: string, make: () => Promise<T>): Promise<T> {
    let found = this.pieces.get(path) as Promise<T> | undefined;
    if (!found) {
      found = make();
      this.pieces.set(path, found);
      // A failed request is repeated when it is next needed.
      found.catch(() => this.pieces.delete(path));
    }
    return found;
  }

  path(rest: string): string {
    return `examples/${this.number}/${rest}`;
  }

  /** The pictures of a layer's heads, as they become known. */
  overview(layer: Layer): Overview {
    let found = this.overviews.get(layer.number);
    if (!found) {
      found = new Overview(
        this.source,
        (name) => this.path(`layers/${layer.number}/${name}`),
        layer,
        this.description.side,
      );
      this.overviews.set(layer.number, found);
    }
    return found;
  }

  /** Sums over all weights of a layer; null where there are its kept edges alone. */
  async sums(layer: Layer): Promise<Sums | null> {
    if (layer.picture === "kept") return null;
    const path = this.path(`layers/${layer.number}/sums`);
    return this.once(path, async () => {
      const all = new Float32Array(await this.source.bytes(path));
      const { heads, rows, columns } = layer;
      const keys = heads * columns;
      const by = (array: Float32Array, length: number) => (head: number) =>
        array.subarray(head * length, (head + 1) * length);
      const end = layer.values ? 2 * keys + heads * rows : keys;
      const sinks = all.length > end ? all.subarray(end) : null;
      const received = by(all, columns);
      if (!layer.values) return { received, valued: null, given: null, sinks };
      const [valued, given] = [
        all.subarray(keys, keys + heads * rows),
        all.subarray(keys + heads * rows, end),
      ];
      return { received, valued: by(valued, rows), given: by(given, columns), sinks };
    });
  }

  /** The norm of every key's value vector, (heads, keys), where the trace kept them. */
  values(layer: number): Promise<Float32Array> {
    const path = this.path(`layers/${layer}/values`);
    return this.once(path, async () => new Float32Array(await this.source.bytes(path)));
  }

  edges(layer: Layer, head: number, block: number): Promise<Edges> {
    const path = this.path(`layers/${layer.number}/heads/${head}/edges/${block}`);
    return this.once(path, async () => {
      const rows = Math.min(BLOCK, layer.rows - block * BLOCK);
      return new Edges(await this.source.bytes(path), rows, layer.columns);
    });
  }

  async row(layer: Layer, head: number, row: number): Promise<Row> {
    const edges = await this.edges(layer, head, Math.floor(row / BLOCK));
    const at = row % BLOCK;
    return {
      edges: edges.row(at),
      entropy: edges.entropy[at],
      rest: edges.rest[at],
      lse: edges.lse[at],
      count: edges.count[at],
    };
  }

  /** One weight: exact from a server, of the kept edges in a page. */
  async cell(layer: Layer, head: number, row: number, column: number): Promise<CellValue> {
    if (this.source.live) {
      const path = `layers/${layer.number}/heads/${head}/cells/${row}/${column}`;
      return this.source.json<CellValue>(this.path(path));
    }
    const { edges, count, rest } = await this.row(layer, head, row);
    const edge = edges.find((one) => one.key === column);
    const hidden = !edge && (layer.mask === "causal" ? column >= count : edges.length >= count);
    return {
      weight: edge?.weight ?? null,
      score: edge?.score ?? null,
      rank: edge?.rank ?? null,
      count,
      rest: edge ? null : rest,
      hidden,
    };
  }

  /** The rows that look at a key, over the kept edges, strongest first. */
  async queriesOf(
    layer: Layer,
    head: number,
    key: number,
  ): Promise<{ row: number; weight: number }[]> {
    const found: { row: number; weight: number }[] = [];
    if (this.source.live && layer.rows > 4 * BLOCK) {
      const path = this.path(`layers/${layer.number}/heads/${head}/queries/${key}`);
      const pairs = await this.once(path, () => this.source.bytes(path));
      const half = pairs.byteLength / 8;
      const rows = new Uint32Array(pairs, 0, half);
      const weights = new Float32Array(pairs, 4 * half, half);
      rows.forEach((row, n) => found.push({ row, weight: weights[n] }));
      return found;
    }
    for (let block = 0; block * BLOCK < layer.rows; block++)
      (await this.edges(layer, head, block)).each((row, to, weight) => {
        if (to === key) found.push({ row: row + block * BLOCK, weight });
      });
    return found.sort((a, b) => b.weight - a.weight);
  }
}
