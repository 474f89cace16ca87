import { describe, expect, test } from "vitest";
import { layerWeights, type LayerInputs, type Rule } from "../src/live/weights";

const LN2 = Math.log(2);
const rule: Rule = {
  heads: 1,
  kvHeads: 1,
  scale: LN2,
  causal: false,
  window: null,
  softcap: null,
  sinks: null,
};
/** Vectors of one number: the score of q and k is ln 2 q k, so weights are powers of 2. */
const inputs = (
  queries: number[],
  keys: number[],
  more: Partial<LayerInputs> = {},
): LayerInputs => ({
  rows: queries.length,
  columns: keys.length,
  depth: 1,
  valueDepth: 1,
  queries: Float32Array.from(queries),
  keys: Float32Array.from(keys),
  values: Float32Array.from(keys),
  bias: null,
  ...more,
});
const rounded = (numbers: ArrayLike<number>) => Array.from(numbers, (one) => +one.toFixed(6));

describe("weights", () => {
  test("of powers of 2", () => {
    const { weights, lse, entropy, count } = layerWeights(rule, inputs([1], [2, 1, 1]));
    expect(rounded(weights)).toEqual([0.5, 0.25, 0.25]);
    expect(rounded(lse)).toEqual(rounded([Math.log(8)]));
    expect(rounded(entropy)).toEqual(rounded([1.5 * LN2]));
    expect([...count]).toEqual([3]);
  });
  test("causal: later keys have none", () => {
    const { weights, count } = layerWeights({ ...rule, causal: true }, inputs([1, 1], [1, 0]));
    expect(rounded(weights)).toEqual(rounded([1, 0, 2 / 3, 1 / 3]));
    expect([...count]).toEqual([1, 2]);
  });
  test("causal, after keys of a past", () => {
    const { weights } = layerWeights({ ...rule, causal: true }, inputs([0, 0], [0, 0, 0]));
    expect(rounded(weights)).toEqual(rounded([1 / 2, 1 / 2, 0, 1 / 3, 1 / 3, 1 / 3]));
  });
  test("window: a query sees itself and the keys just before it", () => {
    const local = { ...rule, causal: true, window: 2 };
    const { weights } = layerWeights(local, inputs([0, 0, 0], [0, 0, 0]));
    expect(rounded(weights)).toEqual([1, 0, 0, 0.5, 0.5, 0, 0, 0.5, 0.5]);
  });
  test("softcap: c tanh(s / c)", () => {
    const { lse } = layerWeights({ ...rule, scale: 1, softcap: 2 }, inputs([1], [3]));
    expect(lse[0]).toBeCloseTo(2 * Math.tanh(1.5), 12);
  });
  test("a sink takes a share and has no key", () => {
    const { weights, lse } = layerWeights({ ...rule, sinks: [LN2] }, inputs([1], [0, 0]));
    expect(rounded(weights)).toEqual([0.25, 0.25]);
    expect(rounded(lse)).toEqual(rounded([Math.log(4)]));
  });
  test("grouped heads read the same keys", () => {
    const grouped = { ...rule, heads: 2, kvHeads: 1 };
    const { weights } = layerWeights(grouped, inputs([1, 0], [1, 0], { rows: 1 }));
    expect(rounded(weights)).toEqual(rounded([2 / 3, 1 / 3, 1 / 2, 1 / 2]));
    const four = { ...rule, heads: 4, kvHeads: 2 };
    const two = inputs([1, 1, 1, 1], [1, 0, 0, 1], { rows: 1, columns: 2 });
    const third = 1 / 3;
    const [low, high] = [
      [2 * third, third],
      [third, 2 * third],
    ];
    expect(rounded(layerWeights(four, two).weights)).toEqual(
      rounded([...low, ...low, ...high, ...high]),
    );
  });
  test("a bias is added to the scaled scores; minus infinity hides a key", () => {
    const bias = Float32Array.from([LN2, -Infinity, 0]);
    const { weights, count } = layerWeights(rule, inputs([0], [1, 1, 1], { bias }));
    expect(rounded(weights)).toEqual(rounded([2 / 3, 0, 1 / 3]));
    expect([...count]).toEqual([2]);
  });
  test("a row without keys has no weights", () => {
    const bias = Float32Array.from([-Infinity]);
    const { weights, lse, entropy, count } = layerWeights(rule, inputs([1], [1], { bias }));
    expect([...weights, ...lse, ...entropy, ...count]).toEqual([0, -Infinity, 0, 0]);
  });
});
