import { expect, test } from "vitest";
import type { Card } from "../src/live/card";
import { Continued } from "../src/live/continued";
import { edgeNumbers, throughNumbers } from "../src/live/edge";
import type { Feeds, Graphs, Run } from "../src/live/graphs";
import { layerWeights, type LayerInputs, type Rule } from "../src/live/weights";

// Two heads over one head of keys; scores are ln 2 q . k, so weights are powers of 2.
const LN2 = Math.log(2);
const rule: Rule = {
  heads: 2,
  kvHeads: 1,
  scale: LN2,
  causal: true,
  window: null,
  softcap: null,
  sinks: [-Infinity, 0],
};
const inputs: LayerInputs = {
  rows: 3,
  columns: 3,
  depth: 2,
  valueDepth: 2,
  queries: Float32Array.from([0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 1, 0]),
  keys: Float32Array.from([1, 5, 2, 5, 0, 5]),
  values: Float32Array.from([1, 0, 0, 1, 7, 7]),
  bias: null,
};
const layer = layerWeights(rule, inputs);
const at = { head: 0, row: 2, key: 1 };

test("an edge number by number", () => {
  const edge = edgeNumbers(rule, inputs, layer, "", at);
  // The scores of the last row are 1, 2 and 0, in units of ln 2: weights of 2, 4 and 1 sevenths.
  expect(edge.products).toEqual([2, 0]);
  expect(edge.terms.map(([name, , , result]) => [name, result])).toEqual([
    ["q · k", 2],
    ["scaled", 2 * LN2],
  ]);
  expect(edge.scaling).toBe("× 0.693147");
  expect(edge.weight).toBeCloseTo(4 / 7, 12);
  expect(edge.softmax.total).toBeCloseTo(7 / 4, 12);
  expect(edge.softmax.lse).toBeCloseTo(Math.log(7), 12);
  expect(edge.listed.keys).toEqual([0, 1, 2]);
  expect(edge.trace.rank).toBe(1);
  expect(edge.trace.weight).toBeCloseTo(edge.weight, 6);
});

test("a hidden key, and a sink", () => {
  const hidden = edgeNumbers(rule, inputs, layer, "", { head: 1, row: 0, key: 2 });
  expect(hidden.terms.at(-1)!.slice(0, 1)).toEqual(["mask"]);
  expect([hidden.weight, hidden.score, hidden.trace.hidden]).toEqual([0, null, true]);
  // One key of score 0 and the sink's logit 0 share the row.
  expect(hidden.listed.weights).toEqual([0.5, 0]);
  expect(hidden.softmax.sink_exponential).toBe(1);
});

test("values and their sum", () => {
  const wording = { steps: [], turned: false };
  const { z, values } = throughNumbers(rule, inputs, layer, wording, at);
  expect(values).toEqual([
    [1, 0],
    [0, 1],
    [7, 7],
  ]);
  expect(z!.map((one) => +one.toFixed(5))).toEqual([9 / 7, 11 / 7].map((one) => +one.toFixed(5)));
});

test("a longer text goes on from the keys and values of the shorter", async () => {
  /** A graph of one layer whose queries, keys and values are ten times the ids, by head. */
  const runs: number[][] = [];
  const graphs = {
    depth: () => 1,
    run: async (_: string, feeds: Feeds): Promise<Run> => {
      const ids = Array.from(feeds.input_ids[0], Number);
      runs.push([feeds["past_keys.0"][1][2], ...ids]);
      const [keys, values] = ["past_keys.0", "past_values.0"].map((name) =>
        Float32Array.from([...(feeds[name][0] as Float32Array), ...ids.map((id) => 10 * id)]),
      );
      const queries = Float32Array.from([...ids, ...ids.map((id) => -id)]);
      const [rows, columns] = [ids.length, keys.length];
      const made = { rows, columns, depth: 1, valueDepth: 1, queries, keys, values, bias: null };
      return { output: Float32Array.of(0), shape: [1, 1, 1], layers: new Map([[0, made]]) };
    },
  } as unknown as Graphs;
  const card = { layers: [{ heads: 2, kvHeads: 1, number: 0, bias: false }] } as unknown as Card;
  const continued = new Continued(card, graphs);
  await continued.read([1, 2, 3], {});
  const { layers } = await continued.read([1, 2, 4, 5], {});
  expect([...layers.get(0)!.queries]).toEqual([1, 2, 4, 5, -1, -2, -4, -5]);
  expect([...layers.get(0)!.keys]).toEqual([10, 20, 40, 50]);
  expect(layers.get(0)!.rows).toBe(4);
  await continued.read([1, 2, 4, 5], {}); // the last token runs again: its logits are wanted
  await continued.read([1, 2, 4, 5], { off: [[0, 1]] }); // another model: nothing is kept
  expect(runs).toEqual([
    [0, 1, 2, 3],
    [2, 4, 5],
    [3, 5],
    [0, 1, 2, 4, 5],
  ]);
});
