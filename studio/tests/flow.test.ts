import { describe, expect, test } from "vitest";
import { Network } from "../src/flow";
import { Mean } from "../src/graphEdges";
import type { FlowKind, Layer } from "../src/description";

const KIND: FlowKind = {
  kind: "encoder",
  layers: [0, 1],
  queries: "tokens",
  keys: "tokens",
  note: null,
};
const LAYER = { queries: "tokens", keys: "tokens", rows: 2, columns: 2 } as Layer;

/** The mean of a layer of two tokens, one edge a row: to key 0, of this weight, or none. */
function mean(weights: number[], missing: number[]): Mean {
  const buffer = new ArrayBuffer(4 * 6);
  new Float32Array(buffer, 0, 2).set(weights);
  new Float32Array(buffer, 8, 2).set(missing);
  const keys = weights.map((weight) => (weight ? 0 : 4294967295));
  new Uint32Array(buffer, 16, 2).set(keys);
  return new Mean(buffer, 2);
}

describe("what a token holds", () => {
  test("ends where a row may look at no key, and nothing of it is unknown", () => {
    const none = mean([1, 0], [0, 0]);
    const network = new Network(KIND, [LAYER, LAYER], [none, none]);
    const { sums, unknown } = network.flow(1);
    expect([sums, unknown]).toEqual([[0.25, 0.5, 1], 0]);
    expect(network.paths(1, 1)).toMatchObject({ all: 0.25 });
  });

  test("is unknown where edges were not kept", () => {
    const some = mean([1, 0.75], [0, 0.25]);
    const network = new Network(KIND, [LAYER, LAYER], [some, some]);
    // 1/8 in the last layer, 1/8 of the half that stays in the first.
    expect(network.flow(1).unknown).toBeCloseTo(0.1875, 12);
    expect(network.paths(1, 1)).toMatchObject({ all: 0.25 });
  });
});
