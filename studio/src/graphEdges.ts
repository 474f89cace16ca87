// The edges of a graph: those of a head, of the mean of a layer's heads, and of one token.

import { MOST_EDGES, massOf, nodesOf, undirected, type GraphEdge, type WeightGraph } from "./graph";
import { BLOCK, type Edges, type Example, type Layer } from "./model";

/** The mean of a layer's heads: see src/headloom/studio/means.py. */
export class Mean {
  readonly kept: number;
  readonly weights: Float32Array;
  readonly missing: Float32Array;
  readonly partial: Uint32Array;
  readonly keys: Uint32Array;

  constructor(
    buffer: ArrayBuffer,
    readonly rows: number,
  ) {
    this.kept = rows ? (buffer.byteLength / rows - 8) / 8 : 0;
    const places = rows * this.kept;
    this.weights = new Float32Array(buffer, 0, places);
    this.missing = new Float32Array(buffer, 4 * places, rows);
    this.partial = new Uint32Array(buffer, 4 * (places + rows), rows);
    this.keys = new Uint32Array(buffer, 4 * (places + 2 * rows), places);
  }

  /** Calls back with every edge of a row, strongest first. */
  row(row: number, visit: (key: number, weight: number) => void): void {
    for (let n = row * this.kept; n < (row + 1) * this.kept && this.keys[n] !== NO_KEY; n++)
      visit(this.keys[n], this.weights[n]);
  }
}
const NO_KEY = 4294967295;

export function meanOf(example: Example, layer: Layer): Promise<Mean> {
  const path = example.path(`layers/${layer.number}/mean`);
  return example.once(path, async () => new Mean(await example.source.bytes(path), layer.rows));
}

/** Rows up to which a head's edges are all read. */
const LONG = 4 * BLOCK;

export const isLong = (example: Example, layer: Layer, head: number | null) =>
  head === null ? !example.description.local : example.source.live && layer.rows > LONG;

/** A head's graph; of null, that of the mean of all heads. */
export async function graphOf(
  example: Example,
  layer: Layer,
  head: number | null,
): Promise<WeightGraph> {
  if (isLong(example, layer, head)) return longGraph(example, layer, head);
  const found = new Collected(layer);
  if (head === null) {
    const mean = await meanOf(example, layer);
    for (let row = 0; row < layer.rows; row++) {
      mean.row(row, (key, weight) => found.add(row, key, weight, mean.partial[row] === 1));
      found.elsewhere += mean.missing[row];
      found.partial ||= mean.partial[row] === 1 || mean.missing[row] > 1e-5;
    }
    return found.graph();
  }
  for (let block = 0; block * BLOCK < layer.rows; block++) {
    const edges = await example.edges(layer, head, block);
    found.blocks.push(edges);
    edges.each((row, key, weight) => found.add(row + block * BLOCK, key, weight, false));
    for (let row = 0; row < edges.rows; row++) {
      const missing = edges.missing(row);
      found.elsewhere += missing;
      found.partial ||= missing > 1e-5;
    }
  }
  return found.graph();
}

/** Edges as they come, of which the strongest become objects. */
class Collected {
  /** The mass on keys that are not here. */
  elsewhere = 0;
  /** Whether there is some. */
  partial = false;
  readonly blocks: Edges[] = [];
  private readonly from: number[] = [];
  private readonly to: number[] = [];
  private readonly weights: number[] = [];
  private readonly least: boolean[] = [];
  private readonly strength: Float64Array;

  constructor(private readonly layer: Layer) {
    this.strength = new Float64Array(layer.columns);
  }

  add(row: number, key: number, weight: number, least: boolean): void {
    if (Number.isNaN(weight)) return;
    this.from.push(row);
    this.to.push(key);
    this.weights.push(weight);
    this.least.push(least);
    this.strength[key] += weight;
  }

  /** log-sum-exp of a row; null: of a mean there is none. */
  private lse(row: number): number | null {
    return this.blocks[Math.floor(row / BLOCK)]?.lse[row % BLOCK] ?? null;
  }

  graph(): WeightGraph {
    const { layer, weights, strength } = this;
    const order = Array.from(weights, (_, n) => n).sort((a, b) => weights[b] - weights[a] || a - b);
    const edges = order.slice(0, MOST_EDGES).map((n): GraphEdge => {
      const lse = this.lse(this.from[n]);
      return {
        from: this.from[n],
        to: this.to[n],
        weight: weights[n],
        back: null,
        score: lse === null ? null : Math.log(weights[n]) + lse,
        least: this.least[n],
      };
    });
    let kept = weights.reduce((sum, weight) => sum + weight, 0);
    const mass = kept + this.elsewhere;
    const both = undirected(layer);
    if (both) {
      const known = new Map(this.from.map((row, n) => [row * layer.columns + this.to[n], n]));
      const back = (edge: GraphEdge) => {
        const n = known.get(edge.to * layer.columns + edge.from);
        if (n !== undefined) return weights[n];
        const lse = this.lse(edge.to);
        return lse === null || edge.score === null ? null : Math.exp(edge.score - lse);
      };
      for (const edge of edges) {
        const weight = back(edge);
        if (!known.has(edge.to * layer.columns + edge.from)) kept += weight ?? 0;
        edge.back = edge.from === edge.to ? null : weight;
      }
    }
    return {
      directed: !both,
      mass,
      kept: Math.min(kept, mass),
      count: weights.length,
      edges: both ? pairs(edges) : edges,
      cut: weights.length > MOST_EDGES,
      received: (key) => strength[key],
      least: this.partial,
    };
  }
}

/** Of two edges between the same tokens one, strongest first. */
function pairs(edges: GraphEdge[]): GraphEdge[] {
  const found = new Map<string, GraphEdge>();
  for (const edge of edges) {
    const name = `${Math.min(edge.from, edge.to)} ${Math.max(edge.from, edge.to)}`;
    if (!found.has(name)) found.set(name, edge);
  }
  return [...found.values()].sort((a, b) => massOf(b) - massOf(a));
}

/** See `strongest_edges` in src/headloom/studio/strongest.py. */
interface Strongest {
  mass: number;
  kept: number;
  count: number;
  queries: number[];
  keys: number[];
  weights: number[];
  scores: number[];
  back: number[];
  partial: number[];
  received: [token: number, mass: number][];
  exact: boolean;
}

async function longGraph(
  example: Example,
  layer: Layer,
  head: number | null,
): Promise<WeightGraph> {
  const of = head === null ? "" : `heads/${head}/`;
  const path = example.path(`layers/${layer.number}/${of}strongest`);
  const found = await example.once(path, () => example.source.json<Strongest>(path));
  const both = undirected(layer);
  const edges = found.weights.map((weight, n): GraphEdge => {
    const [from, to] = [found.queries[n], found.keys[n]];
    const back = both && from !== to ? (found.back[n] ?? null) : null;
    const least = found.partial[n] === 1;
    return { from, to, weight, back, score: found.scores[n] ?? null, least };
  });
  const received = new Map(found.received);
  return {
    directed: !both,
    mass: found.mass,
    kept: found.kept,
    count: found.count,
    edges: both ? pairs(edges) : edges,
    cut: found.count > edges.length,
    received: (key) => received.get(key) ?? null,
    least: !found.exact,
  };
}

/** The kept edges of a node, strongest first; `all`: whether they are all that were kept. */
export async function edgesAt(
  example: Example,
  layer: Layer,
  head: number | null,
  graph: WeightGraph,
  id: number,
): Promise<{ edges: GraphEdge[]; all: boolean }> {
  const { place, side } = nodesOf(layer, [], id).find((node) => node.id === id)!;
  const own = graph.edges.filter(
    ({ from, to }) => (side !== "key" && from === place) || (side !== "query" && to === place),
  );
  if (!graph.directed || (head === null && isLong(example, layer, null)))
    return { edges: own, all: !graph.cut };
  const edges: GraphEdge[] = [];
  const add = (from: number, to: number, weight: number, score: number | null, least: boolean) =>
    edges.push({ from, to, weight, back: null, score, least });
  if (head === null) {
    const mean = await meanOf(example, layer);
    for (let row = 0; row < layer.rows; row++)
      mean.row(row, (key, weight) => {
        if ((side !== "key" && row === place) || (side !== "query" && key === place))
          add(row, key, weight, null, mean.partial[row] === 1);
      });
  } else {
    if (side !== "key")
      for (const { key, weight, score } of (await example.row(layer, head, place)).edges)
        add(place, key, weight, score, false);
    if (side !== "query")
      for (const { row, weight } of await example.queriesOf(layer, head, place))
        if (side === "key" || row !== place) add(row, place, weight, null, false);
  }
  return { edges: edges.sort((a, b) => b.weight - a.weight), all: true };
}
