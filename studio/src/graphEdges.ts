// The edges of a graph: those of a head, of the mean of a layer's heads, and of one token.

import { MOST_EDGES, nodesOf, type GraphEdge, type WeightGraph } from "./graph";
import type { Layer } from "./description";
import { BLOCK, type Edges, type Example } from "./model";

/** The mean of a layer's heads: see src/headloom/studio/sums.py. */
export class Mean {
  readonly kept: number;
  readonly weights: Float32Array;
  readonly missing: Float32Array;
  readonly keys: Uint32Array;

  constructor(
    buffer: ArrayBuffer,
    readonly rows: number,
  ) {
    this.kept = rows ? (buffer.byteLength / rows - 4) / 8 : 0;
    const places = rows * this.kept;
    this.weights = new Float32Array(buffer, 0, places);
    this.missing = new Float32Array(buffer, 4 * places, rows);
    this.keys = new Uint32Array(buffer, 4 * (places + rows), places);
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

/** A head's graph; of null, that of the mean of all heads. */
export async function graphOf(
  example: Example,
  layer: Layer,
  head: number | null,
): Promise<WeightGraph> {
  const found = new Collected(layer);
  if (head === null) {
    const mean = await meanOf(example, layer);
    for (let row = 0; row < layer.rows; row++) {
      mean.row(row, (key, weight) => found.add(row, key, weight));
      found.elsewhere += mean.missing[row];
    }
    return found.graph();
  }
  for (let block = 0; block * BLOCK < layer.rows; block++) {
    const edges = await example.edges(layer, head, block);
    found.blocks.push(edges);
    edges.each((row, key, weight) => found.add(row + block * BLOCK, key, weight));
    for (let row = 0; row < edges.rows; row++) found.elsewhere += edges.missing(row);
  }
  return found.graph();
}

/** Collects edges; only the strongest become objects. */
class Collected {
  /** The mass on keys that are not here. */
  elsewhere = 0;
  readonly blocks: Edges[] = [];
  private readonly from: number[] = [];
  private readonly to: number[] = [];
  private readonly weights: number[] = [];
  private readonly strength: Float64Array;

  constructor(layer: Layer) {
    this.strength = new Float64Array(layer.columns);
  }

  add(row: number, key: number, weight: number): void {
    if (Number.isNaN(weight)) return;
    this.from.push(row);
    this.to.push(key);
    this.weights.push(weight);
    this.strength[key] += weight;
  }

  /** log-sum-exp of a row; null: of a mean there is none. */
  private lse(row: number): number | null {
    return this.blocks[Math.floor(row / BLOCK)]?.lse[row % BLOCK] ?? null;
  }

  graph(): WeightGraph {
    const { weights, strength } = this;
    const order = Array.from(weights, (_, n) => n).sort((a, b) => weights[b] - weights[a] || a - b);
    const edges = order.slice(0, MOST_EDGES).map((n): GraphEdge => {
      const lse = this.lse(this.from[n]);
      return {
        from: this.from[n],
        to: this.to[n],
        weight: weights[n],
        score: lse === null ? null : Math.log(weights[n]) + lse,
      };
    });
    const kept = weights.reduce((sum, weight) => sum + weight, 0);
    const mass = kept + this.elsewhere;
    return {
      mass,
      kept: Math.min(kept, mass),
      count: weights.length,
      edges,
      cut: weights.length > MOST_EDGES,
      received: (key) => strength[key],
    };
  }
}

/** The kept edges of a node, strongest first. */
export async function edgesAt(
  example: Example,
  layer: Layer,
  head: number | null,
  id: number,
): Promise<GraphEdge[]> {
  const { place, side } = nodesOf(layer, [], id).find((node) => node.id === id)!;
  const edges: GraphEdge[] = [];
  const add = (from: number, to: number, weight: number, score: number | null) =>
    edges.push({ from, to, weight, score });
  if (head === null) {
    const mean = await meanOf(example, layer);
    for (let row = 0; row < layer.rows; row++)
      mean.row(row, (key, weight) => {
        if ((side !== "key" && row === place) || (side !== "query" && key === place))
          add(row, key, weight, null);
      });
  } else {
    if (side !== "key")
      for (const { key, weight, score } of (await example.row(layer, head, place)).edges)
        add(place, key, weight, score);
    if (side !== "query")
      for (const { row, weight } of await example.queriesOf(layer, head, place))
        if (side === "key" || row !== place) add(row, place, weight, null);
  }
  return edges.sort((a, b) => b.weight - a.weight);
}
