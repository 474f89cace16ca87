// A token through all layers, and the strongest paths between two tokens, from the means of the
// layers.
//
//     A_l = 1/2 I + 1/2 W_l,   W_l the weights of layer l averaged over its heads
//     shares: row i of A_L ... A_l for each level l;   a path's product: of its cells of A
//
// as src/headloom/analysis/graphs/paths.py says, where the search is explained.

import { meanOf, type Mean } from "./graphEdges";
import type { FlowKind, Layer } from "./description";
import type { Example } from "./model";
import { significant3 } from "./text";

const RESIDUAL = 0.5;
/** Tokens and edges of a layer that are drawn at most, and paths that are found. */
const MOST_TOKENS = 120,
  MOST_EDGES = 400,
  PATHS = 8;
/** Edges that carry less than this of a token are not drawn. */
const FAINT = 2e-4;

/** A position of a sequence. */
export type Place = [sequence: string, place: number];

export interface TokenFlow {
  /** Those that are drawn, in reading order, one sequence after the other. */
  tokens: Place[];
  /** By level, from the input up, how much of the token comes through each of these. */
  shares: number[][];
  /** By layer, from the first: from a token above to one below, strongest first. */
  edges: [above: number, below: number, share: number][][];
  /** By level the sum over all tokens; the rest is unknown, or lost where no layer passes it on. */
  sums: number[];
  /** What positions of the token's own sequence hold at the input, where that is another sequence;
   * else 0. */
  own?: number;
  /** The share that came along edges that are not known; else 0. */
  unknown?: number;
}

export interface PathFound {
  product: number;
  /** From the last layer to the input. */
  steps: Place[];
}

export interface PathsBetween {
  paths: PathFound[];
  /** The sum over all paths along known edges. */
  all: number;
}

/** A_l, row by row, over the nodes of all sequences. */
class Step {
  constructor(
    readonly mean: Mean,
    readonly own: number,
    readonly end: number,
    private readonly keys: number,
  ) {}

  /** Calls back with each node that a node takes from, and how much; one may come twice. */
  row(node: number, visit: (from: number, weight: number) => void): void {
    if (node < this.own || node >= this.end) {
      visit(node, 1);
      return;
    }
    visit(node, RESIDUAL);
    this.mean.row(node - this.own, (key, weight) =>
      visit(this.keys + key, (1 - RESIDUAL) * weight),
    );
  }

  /** How much of a node comes along edges that are not known. */
  unknown(node: number): number {
    const own = node >= this.own && node < this.end;
    return own ? (1 - RESIDUAL) * this.mean.missing[node - this.own] : 0;
  }

  /** The sum of the weights from each node. */
  merged(node: number): Map<number, number> {
    const found = new Map<number, number>();
    this.row(node, (from, weight) => found.set(from, (found.get(from) ?? 0) + weight));
    return found;
  }
}

/** The layers of one kind as steps between the positions of all sequences that take part. */
export class Network {
  readonly nodes: number;
  private readonly first = new Map<string, number>();

  constructor(
    readonly kind: FlowKind,
    layers: Layer[],
    private readonly means: Mean[],
  ) {
    const sizes = new Map<string, number>();
    for (const { queries, rows, keys, columns } of layers)
      sizes.set(queries, rows).set(keys, columns);
    let nodes = 0;
    for (const [name, size] of sizes) {
      this.first.set(name, nodes);
      nodes += size;
    }
    this.nodes = nodes;
    this.steps = layers.map(({ queries, rows, keys }, n) => {
      const own = this.first.get(queries)!;
      return new Step(this.means[n], own, own + rows, this.first.get(keys)!);
    });
  }
  private readonly steps: Step[];

  node = (sequence: string, place: number) => this.first.get(sequence)! + place;

  place(node: number): Place {
    const [name, first] = [...this.first].filter(([, first]) => first <= node).at(-1)!;
    return [name, node - first];
  }

  /** By level, from the input up, how much of a node of the last layer comes through each node. */
  shares(start: number): Float64Array[] {
    let above = new Float64Array(this.nodes);
    above[start] = 1;
    const found = [above];
    for (const step of [...this.steps].reverse()) {
      const below = new Float64Array(this.nodes);
      above.forEach((share, node) => {
        if (share > 0) step.row(node, (from, weight) => (below[from] += share * weight));
      });
      found.unshift(below);
      above = below;
    }
    return found;
  }

  /** How much of a node of the last layer comes along edges that are not known. */
  private unknown(shares: Float64Array[]): number {
    let sum = 0;
    this.steps.forEach((step, n) =>
      shares[n + 1].forEach((share, node) => {
        if (share > 0) sum += share * step.unknown(node);
      }),
    );
    return sum;
  }

  /** What the last layer's sequence holds of the input, where that is another sequence; else 0. */
  private own(input: Float64Array): number {
    const { queries, keys } = this.kind;
    if (queries === keys) return 0;
    const { own, end } = this.steps.at(-1)!;
    return input.slice(own, end).reduce((sum, share) => sum + share, 0);
  }

  /** The part of the flow of a last-layer node that is drawn. */
  flow(start: number): TokenFlow {
    const shares = this.shares(start);
    const most = (node: number) => Math.max(...shares.map((level) => level[node]));
    const ranked = Array.from({ length: this.nodes }, (_, node) => ({ node, most: most(node) }));
    if (ranked.length > MOST_TOKENS) ranked.sort((a, b) => b.most - a.most || a.node - b.node);
    const chosen = ranked
      .slice(0, MOST_TOKENS)
      .map(({ node }) => node)
      .sort((a, b) => a - b);
    const drawn = new Map(chosen.map((node, n) => [node, n]));
    const edges = this.steps.map((step, n) => {
      const found: TokenFlow["edges"][0] = [];
      chosen.forEach((node, above) => {
        const share = shares[n + 1][node];
        if (share < FAINT) return;
        for (const [from, weight] of step.merged(node)) {
          const below = drawn.get(from);
          if (below !== undefined && share * weight >= FAINT)
            found.push([above, below, share * weight]);
        }
      });
      return found.sort((a, b) => b[2] - a[2]).slice(0, MOST_EDGES);
    });
    return {
      tokens: chosen.map((node) => this.place(node)),
      shares: shares.map((level) => chosen.map((node) => level[node])),
      edges,
      sums: shares.map((level) => level.reduce((sum, share) => sum + share, 0)),
      own: this.own(shares[0]),
      unknown: this.unknown(shares),
    };
  }

  /** The strongest paths from a node of the last layer to one of the input. */
  paths(start: number, target: number): PathsBetween {
    const { steps } = this;
    const best = [new Float64Array(this.nodes)];
    best[0][target] = 1;
    for (const step of steps) {
      const before = best.at(-1)!;
      const next = before.slice();
      for (let node = step.own; node < step.end; node++) {
        let most = 0;
        for (const [from, weight] of step.merged(node))
          most = Math.max(most, weight * before[from]);
        next[node] = most;
      }
      best.push(next);
    }
    const waiting = new Heap();
    if (best[steps.length][start] > 0) waiting.push({ left: 1, product: 1, path: [start] });
    const paths: PathFound[] = [];
    while (waiting.size && paths.length < PATHS) {
      const { path, product } = waiting.pop();
      const level = steps.length + 1 - path.length;
      if (level === 0) {
        paths.push({ product, steps: path.map((node) => this.place(node)) });
        continue;
      }
      for (const [from, weight] of steps[level - 1].merged(path.at(-1)!)) {
        // To 12 digits: rounding must not tell equal products apart.
        const left = Number((product * weight * best[level - 1][from]).toPrecision(12));
        if (left > 0) waiting.push({ left, product: product * weight, path: [...path, from] });
      }
    }
    return { paths, all: this.shares(start)[0][target] };
  }
}

/** The beginning of a path. */
interface Candidate {
  /** The largest product that the path can reach. */
  left: number;
  product: number;
  path: number[];
}

/** Priority queue of candidates: the largest first, of equal ones the first positions. */
class Heap {
  private readonly all: Candidate[] = [];

  get size(): number {
    return this.all.length;
  }

  private before(one: Candidate, other: Candidate): boolean {
    if (one.left !== other.left) return one.left > other.left;
    for (let n = 0; n < Math.min(one.path.length, other.path.length); n++)
      if (one.path[n] !== other.path[n]) return one.path[n] < other.path[n];
    return one.path.length < other.path.length;
  }

  push(candidate: Candidate): void {
    const { all } = this;
    let at = all.push(candidate) - 1;
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (!this.before(all[at], all[parent])) break;
      [all[at], all[parent]] = [all[parent], all[at]];
      at = parent;
    }
  }

  pop(): Candidate {
    const { all } = this;
    const first = all[0];
    const last = all.pop()!;
    if (!all.length) return first;
    all[0] = last;
    for (let at = 0; ;) {
      let next = at;
      for (const child of [2 * at + 1, 2 * at + 2])
        if (child < all.length && this.before(all[child], all[next])) next = child;
      if (next === at) return first;
      [all[at], all[next]] = [all[next], all[at]];
      at = next;
    }
  }
}

/** The layers of a kind, once their means are there. */
export async function networkOf(example: Example, kind: FlowKind): Promise<Network> {
  const layers = kind.layers.map((number) => example.layers[number]);
  const means = await Promise.all(layers.map((layer) => meanOf(example, layer)));
  return new Network(kind, layers, means);
}

/** The shares of a token from the input and from its own sequence; "": they are the same. */
export function ofBoth(kind: FlowKind, { sums, own = 0 }: TokenFlow): string {
  if (kind.queries === kind.keys) return "";
  return (
    `In total, ${significant3(sums[0] - own)} comes from the ${kind.keys}, ` +
    `${significant3(own)} from the ${kind.queries} itself.`
  );
}

/** The edges of a layer that together carry a share of what its tokens carry. */
export function strongestOf(
  edges: TokenFlow["edges"][0],
  share: number,
): { drawn: TokenFlow["edges"][0]; held: number } {
  let held = 0;
  const drawn = edges.filter(([, , flow]) => {
    if (held >= share - 1e-6) return false;
    held += flow;
    return true;
  });
  return { drawn, held };
}
