// What is looked at: a collection of traces, their layers, and the edges of a head.

import { rising } from "./axisTicks";
import type { FlowKind } from "./flow";
import type { Theme } from "./colour";
import { Overview, Pictures } from "./overview";
import type { Source } from "./source";
import { counted, grouped, visible } from "./text";

export interface Opening {
  title: string;
  headloom: string;
  summary: [string, string][];
  examples: string[];
  /** Of each the digest of its manifest; "": it is in memory alone. */
  digests: string[];
  history: boolean;
  /** Which of the traces cannot be read, and why. */
  damaged: string[];
  live: boolean;
  /** The name of a model that reads new texts, where one is open. */
  asks: string | null;
  /** Whether it can be asked what a prediction comes from. */
  relevance?: boolean;
  /** What it read first; null: it has examples instead. */
  read: string | null;
  /** Digits of the numbers of an exported page, and of the means of heads. */
  digits?: number;
  digits_of_means?: number;
}

/** How far the numbers of an exported page are rounded; "": as far as those of a trace. */
export function roundedWords({ live, digits = 7, digits_of_means: means = digits }: Opening) {
  if (live || digits >= 7) return "";
  return `rounded to ${digits} digits${means < digits ? `, means of heads to ${means}` : ""}`;
}

export type Kind = "encoder" | "decoder" | "cross";

interface LayerDescription {
  name: string;
  kind: Kind;
  index: number;
  shape: [number, number, number];
  queries: string;
  keys: string;
  mask: string | null;
  /** Whether score(i, j) = score(j, i), as the trace says. */
  symmetric?: boolean;
  deviation: number | null;
  exact?: boolean;
  /** Its small pictures: exact at once, exact after a while, or of the kept edges alone. */
  picture: "means" | "later" | "kept";
  values?: boolean;
}

export interface Description {
  name: string;
  model: Record<string, unknown>;
  sequences: Record<string, string[]>;
  /** By sequence the places of its separators. */
  separators: Record<string, number[]>;
  /** By sequence the moment of each position of a sound. */
  seconds?: Record<string, number[]>;
  /** The sequences some of whose tokens are patches of an image. */
  patches?: string[];
  deviation: number | null;
  /** Whether there are so many heads that there are smaller pictures of them all. */
  small: boolean;
  /** Whether the means of the layers are pieces: see src/headloom/studio/means.py. */
  local: boolean;
  /** Through which layers a token can be followed. */
  flows: FlowKind[];
  /** Whether a model that is open read the text. */
  read?: boolean;
  /** How the whole trace was held against the model: see src/headloom/formats/verification.py. */
  verification: {
    unverified?: string;
    difference?: number;
    tokens?: number;
    whole?: boolean;
  } | null;
  layers: LayerDescription[];
}

export interface Layer extends LayerDescription {
  number: number;
  heads: number;
  rows: number;
  columns: number;
  queryTokens: string[];
  keyTokens: string[];
  /** The moments of queries and keys in a sound; null: they are none. */
  querySeconds: number[] | null;
  keySeconds: number[] | null;
  /** The keys that end or part texts. */
  separators: number[];
  /** Whether queries and keys are the same tokens. */
  one: boolean;
}

/** What a role is called and how it is drawn: see src/headloom/analysis/heads/scores.py. */
export interface RoleWords {
  name: string;
  title: string;
  /** What follows "Each token looks". */
  phrase: string;
  colours: Record<Theme, string>;
}

/** What is known of one head: see src/headloom/studio/heads.py. */
export interface HeadScores {
  role: string;
  scores: Record<string, number>;
  /** Which of them are lower bounds, of the kept edges alone. */
  bounds: string[];
  chance: Record<string, [mean: number, deviation: number]>;
}

/** What is known of every head: see `Example.heads` in src/headloom/studio/collection.py. */
export interface Heads {
  measures: Record<string, string>;
  roles: RoleWords[];
  /** By layer, how many edges a row keeps at most. */
  kept: number[];
  /** By layer and head, the mean mass of a row on no kept edge. */
  unkept: number[][];
  /** "measuring", "known", or "failed: ..." */
  state: string;
  heads: HeadScores[][] | null;
}

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
  /** By key: what it gets from all queries. */
  received: (head: number) => Float32Array;
  /** By query: its weights times the norms of the values. */
  valued: ((head: number) => Float32Array) | null;
  /** By key: what it gets when weights are weighed by the norms of the values. */
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
  /** The weight is at most this, where it was not kept. */
  below: number | null;
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
    /** The first pictures of its heads, where they came with it. */
    pictures?: ArrayBuffer,
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
    this.pictures = new Pictures(
      source,
      (name) => this.path(name),
      this.layers,
      description.small,
      (layer) => this.overview(layer),
      pictures,
    );
  }

  /** What a path holds, asked for once. */
  once<T>(path: string, make: () => Promise<T>): Promise<T> {
    let found = this.pieces.get(path) as Promise<T> | undefined;
    if (!found) {
      found = make();
      this.pieces.set(path, found);
      // What failed is asked for again when it is next needed.
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
    const below = Math.min(edges.at(-1)?.weight ?? 1, rest);
    return {
      weight: edge?.weight ?? null,
      score: edge?.score ?? null,
      rank: edge?.rank ?? null,
      count,
      below: edge ? null : below,
      hidden,
    };
  }

  /** Which rows look at a key, over the kept edges, strongest first. */
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

export const KINDS: Record<Kind, string> = {
  encoder: "Encoder",
  decoder: "Decoder",
  cross: "Cross",
};

/** What layers of a kind do, in the names of their sequences: "the target looks at the source". */
export function noteOf(kind: Kind, queries: string, keys: string): string {
  const many = queries.endsWith("s") && queries.length > 1;
  if (kind === "cross") return `the ${queries} ${many ? "look" : "looks"} at the ${keys}`;
  if (kind === "encoder")
    return many ? `the ${queries} look at each other` : `the ${queries} looks at itself`;
  return many
    ? `each ${queries.replace(/(?<=ch)es$|s$/, "")} looks at those before it`
    : `the ${queries} looks back at itself`;
}

/** A layer by its kind and its number among them: "Encoder L2". */
export const kindName = (layer: { kind: Kind; index: number }) =>
  `${KINDS[layer.kind] ?? layer.kind} L${layer.index}`;

export function headName(example: Example, layer: Layer, head: number): string {
  return `${example.several ? kindName(layer) : `L${layer.index}`} H${head}`;
}

/** How long a sequence is: "12 tokens", "3 source tokens", "6 patches and [CLS]". */
export function lengthWords(name: string, tokens: string[]): string {
  const others = tokens.filter((token) => !token.startsWith("patch "));
  const patches = tokens.length - others.length;
  if (patches && name.startsWith("patches")) {
    const more =
      others.length === 1 ? visible(others[0], 20) : counted(others.length, "other token");
    return `${counted(patches, "patch", "patches")}${others.length ? ` and ${more}` : ""}`;
  }
  return name.endsWith("s") && name !== "tokens"
    ? `${grouped(tokens.length)} ${name}`
    : counted(tokens.length, name === "tokens" ? "token" : `${name} token`);
}

/** One digit that a number is not above. */
function bound(number: number): string {
  const near = number.toExponential(0);
  if (!Number.isFinite(number) || number <= Number(near) * (1 + 1e-6)) return near;
  const [digit, power] = near.split("e");
  return Number(`${Number(digit) + 1}e${power}`).toExponential(0);
}

/** From here on a difference from the model is no rounding. */
const FAR = 0.05;

/** How far the weights were verified; "exact" only where every picture is of the whole matrix. */
export function verifiedWords({ description }: Example): string {
  const { verification, deviation, layers } = description;
  if (verification?.unverified) return `not verified: ${visible(verification.unverified, 100)}`;
  const found = [verification?.difference, deviation].filter(
    (one): one is number => typeof one === "number",
  );
  if (!found.length) return "";
  const most = Math.max(...found);
  const number = most === 0 ? "0" : bound(most).replace("e-", "e−").replace("e+0", "");
  if (!(most < FAR)) return `differs from the model by up to ${number}`;
  const whole = layers.every((layer) => layer.picture === "means");
  return `${whole ? "exact" : "kept edges"}, verified to ${number}`;
}

/** What is known of the heads before the first answer: nothing. */
export const UNMEASURED: Heads = {
  measures: { distance: "mean distance, tokens", entropy: "entropy of a row, nats" },
  roles: [],
  kept: [],
  unkept: [],
  state: "measuring",
  heads: null,
};
