import { describe, expect, test } from "vitest";
import {
  directionOf,
  MOST_TOKENS,
  nodesOf,
  partOf,
  type GraphEdge,
  type WeightGraph,
} from "../src/graph";
import { arrowOf, curveOf, layoutOf, nearestCurve, pointOf } from "../src/graphLayout";
import type { Layer } from "../src/description";

const layerOf = (rows: number, more: Partial<Layer> = {}) =>
  ({
    rows,
    columns: rows,
    one: true,
    queryTokens: Array.from({ length: rows }, (_, n) => `t${n}`),
    keyTokens: Array.from({ length: rows }, (_, n) => `t${n}`),
    mask: "all",
    ...more,
  }) as Layer;
const edge = (from: number, to: number, weight: number): GraphEdge => ({
  from,
  to,
  weight,
  score: null,
});
const graphWith = (edges: GraphEdge[], mass: number, cut = false): WeightGraph => ({
  mass,
  kept: edges.reduce((sum, one) => sum + one.weight, 0),
  count: edges.length,
  edges,
  cut,
  received: () => 0,
});

describe("the part that is drawn", () => {
  const graph = graphWith([edge(0, 0, 1), edge(1, 0, 0.75), edge(1, 1, 0.25)], 2);

  test("the fewest edges that together hold the share", () => {
    expect(partOf(graph, layerOf(2), 0.5)).toMatchObject({ mass: 1, end: "share" });
    expect(partOf(graph, layerOf(2), 0.51).edges).toHaveLength(2);
    expect(partOf(graph, layerOf(2), 1)).toMatchObject({ mass: 2, end: "share" });
  });

  test("what the trace kept, and no more", () => {
    const kept = graphWith([edge(0, 0, 1), edge(1, 0, 0.75)], 2);
    expect(partOf(kept, layerOf(2), 1)).toMatchObject({ mass: 1.75, end: "kept" });
    expect(partOf({ ...kept, cut: true }, layerOf(2), 1).end).toBe("room");
  });

  test("of a long text so many tokens as can be read", () => {
    const many = Array.from({ length: 400 }, (_, n) => edge(n, n, 0.9));
    const part = partOf(graphWith(many, 400), layerOf(400), 1);
    expect([part.edges.length, part.end]).toEqual([MOST_TOKENS, "room"]);
    const nodes = nodesOf(layerOf(400), part.edges, 399);
    expect(nodes.map((node) => node.id)).toEqual([...Array(MOST_TOKENS).keys(), 399]);
  });
});

test("which way edges lead", () => {
  expect(directionOf(layerOf(2, { mask: "causal" }))).toContain("no edge leads forward");
  expect(directionOf(layerOf(2, { mask: null }))).toContain("does not record the mask");
});

describe("layout", () => {
  const room = { width: 800, height: 700 };
  const nodes = (count: number) => nodesOf(layerOf(count), [], -1);

  test("a circle while labels can be read, else a line", () => {
    expect(layoutOf(nodes(12), room, 60, "").form).toBe("circle");
    expect(layoutOf(nodes(300), room, 60, "").form).toBe("line");
    for (const count of [10, 60, 150, 300])
      for (const form of ["", "circle", "line"] as const) {
        const { nodes: placed, space } = layoutOf(nodes(count), room, 60, form);
        expect(space).toBeGreaterThanOrEqual(12 - 1e-9);
        const [one, other] = placed;
        expect(Math.hypot(one.x - other.x, one.y - other.y)).toBeGreaterThan(11.5);
        expect(Math.min(...placed.map(({ x, y }) => Math.min(x, y)))).toBeGreaterThan(0);
      }
  });

  test("labels of few letters stand upright on a circle, and no other is upside down", () => {
    const named = (token: string, count: number) =>
      nodes(count).map((node) => ({ ...node, token }));
    const turns = (token: string, count: number) =>
      layoutOf(named(token, count), room, 60, "circle").nodes.map(({ turn }) => turn);
    expect(new Set(turns("d", 40))).toEqual(new Set([0]));
    expect(new Set(turns("und", 20))).toEqual(new Set([0]));
    for (const [token, count] of [
      ["under", 20],
      ["und", 300],
    ] as const) {
      const upright = turns(token, count).map((turn) => Math.cos((turn * Math.PI) / 180));
      expect(Math.min(...upright)).toBeGreaterThan(-1e-9);
      expect(Math.min(...upright)).toBeLessThan(0.5);
    }
  });

  test("edges begin and end at their tokens, and the two ways are two curves", () => {
    for (const form of ["circle", "line"] as const) {
      const layout = layoutOf(nodes(20), room, 60, form);
      const [a, b] = [layout.nodes[3], layout.nodes[9]];
      const [back, ahead] = [curveOf(layout, b, a), curveOf(layout, a, b)];
      expect([back[0], back[1], back[6], back[7]]).toEqual([b.x, b.y, a.x, a.y]);
      const [one, other] = [pointOf(back, 0.5), pointOf(ahead, 0.5)];
      expect(Math.hypot(one.x - other.x, one.y - other.y)).toBeGreaterThan(4);
      expect(nearestCurve([back, ahead], other, 6)).toBe(1);
      expect(nearestCurve([back, ahead], { x: 1, y: 1 }, 6)).toBe(-1);
      const [tip] = arrowOf(back, 5, 6);
      expect(Math.hypot(tip.x - a.x, tip.y - a.y)).toBeCloseTo(5, 6);
    }
  });
});
