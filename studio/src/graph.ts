// The weights of a head, or of the mean of a layer's heads, as a graph of tokens: which edges and
// tokens are drawn, and what they hold of the mass. The edges come from graphEdges.ts.

import type { Layer } from "./description";

/** Edges and tokens that are drawn at most: of longer texts those that the strongest edges join. */
export const MOST_EDGES = 3000,
  MOST_TOKENS = 300;

export interface GraphEdge {
  /** The place of the query, and of the key. */
  from: number;
  to: number;
  weight: number;
  /** Before the softmax; null: of a mean there is none. */
  score: number | null;
}

export interface WeightGraph {
  /** The sum of all weights: 1 for each row with a visible key. */
  mass: number;
  /** The mass and the number of the kept edges. */
  kept: number;
  count: number;
  /** The strongest, strongest first. */
  edges: GraphEdge[];
  /** Whether there are weaker ones. */
  cut: boolean;
  /** The mass that a key receives along the kept edges. */
  received: (key: number) => number;
}

/** The edges that are drawn: the fewest that together hold a share of the mass. */
export interface Part {
  edges: GraphEdge[];
  /** Their mass. */
  mass: number;
  /** Why no more are drawn: the share is reached, the trace kept no more, or no room is left. */
  end: "share" | "kept" | "room";
}

export function partOf(graph: WeightGraph, layer: Layer, share: number): Part {
  const whole = tokensOf(layer) <= MOST_TOKENS;
  const ends = new Set<number>();
  const edges: GraphEdge[] = [];
  let mass = 0;
  for (const edge of graph.edges) {
    if (mass >= share * graph.mass - 1e-6 * graph.mass) return { edges, mass, end: "share" };
    if (!whole) {
      const more = [edge.from, keyNode(layer, edge.to)].filter((node) => !ends.has(node));
      if (ends.size + new Set(more).size > MOST_TOKENS) return { edges, mass, end: "room" };
      for (const node of more) ends.add(node);
    }
    edges.push(edge);
    mass += edge.weight;
  }
  if (mass >= share * graph.mass - 1e-6 * graph.mass) return { edges, mass, end: "share" };
  return { edges, mass, end: graph.cut ? "room" : "kept" };
}

const tokensOf = (layer: Layer) => (layer.one ? layer.rows : layer.rows + layer.columns);
/** Queries and keys of two sequences are nodes of their own, queries first. */
const keyNode = (layer: Layer, key: number) => (layer.one ? key : layer.rows + key);

/** A token in the graph. */
export interface Node {
  id: number;
  token: string;
  place: number;
  side: "query" | "key" | "both";
}

/** The tokens that are drawn, in reading order: all, or in a long text the ends of edges. */
export function nodesOf(layer: Layer, edges: GraphEdge[], more: number): Node[] {
  const all = tokensOf(layer);
  let ids = Array.from({ length: Math.min(all, MOST_TOKENS) }, (_, id) => id);
  if (all > MOST_TOKENS) {
    const ends = new Set(edges.flatMap(({ from, to }) => [from, keyNode(layer, to)]));
    if (more >= 0) ends.add(more);
    ids = [...ends].sort((a, b) => a - b);
  }
  return ids.map((id) => {
    if (layer.one) return { id, token: layer.queryTokens[id], place: id, side: "both" };
    if (id < layer.rows) return { id, token: layer.queryTokens[id], place: id, side: "query" };
    const place = id - layer.rows;
    return { id, token: layer.keyTokens[place], place, side: "key" };
  });
}

/** The nodes at the ends of an edge. */
export const endsOf = (layer: Layer, edge: GraphEdge): [from: number, to: number] => [
  edge.from,
  keyNode(layer, edge.to),
];

/** The direction of the edges, and the mask of the trace, in words. */
export function directionOf(layer: Layer): string {
  const { one, mask } = layer;
  if (!one)
    return (
      `Directed: an edge leads from a token of the ${layer.queries} to the token of the ` +
      `${layer.keys} it looks at.`
    );
  const leads = "Directed: an edge leads from a token to the token it looks at.";
  const loops = "Causal mask: no edge leads forward; a loop is a token that looks at itself.";
  if (mask === "causal") return `${leads} ${loops}`;
  if (mask === "all") return `${leads} No mask: edges lead both ways.`;
  if (mask === null) return `${leads} The trace does not record the mask.`;
  return `${leads} Mask: “${mask}”.`;
}
