import { describe, expect, test } from "vitest";
import type { Layer } from "../src/description";
import type { Row } from "../src/model";
import {
  columnsOf,
  curve,
  keptEnough,
  linesBetween,
  meanSharesOfKeys,
  present,
  sharesOfKeys,
  sharesOfQueries,
  together,
  type Choice,
} from "../src/threads";

const all: Choice = { share: 1, sinks: null, values: null, valued: null, sink: null };

/** A row of weights on keys 0, 1, ...; count: how many keys it may look at. */
function rowOf(weights: number[], count = weights.length): Row {
  const edges = weights.map((weight, key) => ({ key, weight, score: Math.log(weight), rank: 0 }));
  edges.sort((a, b) => b.weight - a.weight);
  const rest = 1 - weights.reduce((sum, weight) => sum + weight, 0);
  return { edges, entropy: 0, rest, lse: 0, count };
}

describe("present", () => {
  test("draws edges, the strongest first, until they hold the share", () => {
    const { threads, rest } = present(rowOf([0.1, 0.6, 0.3]), { ...all, share: 0.9 });
    expect(threads.map(({ key }) => key)).toEqual([1, 2]);
    expect(rest).toBeCloseTo(0.1);
  });

  test("hides sinks, whose mass is a stub", () => {
    const row = rowOf([0.5, 0.3, 0.2]);
    const { threads, hidden, rest } = present(row, { ...all, sinks: new Set([0]) });
    expect(threads.map(({ key }) => key)).toEqual([1, 2]);
    expect(hidden).toBeCloseTo(0.5);
    expect(rest).toBeCloseTo(0);
  });

  test("tells what is on weaker edges from what a sink has that is no key", () => {
    const { threads, rest, sink } = present(rowOf([0.1, 0.3, 0.2]), { ...all, share: 0.5 });
    expect(threads.map(({ key }) => key)).toEqual([1]);
    expect(rest).toBeCloseTo(0.3);
    expect(sink).toBeCloseTo(0.4);
    // Of a row that is not whole the sink's logit tells; without it nobody knows.
    const known = present(rowOf([0.1, 0.3, 0.2], 4), { ...all, sink: Math.log(0.25) });
    expect(known.sink).toBeCloseTo(0.25);
    expect(known.rest).toBeCloseTo(0.15);
    expect(present(rowOf([0.1, 0.3, 0.2], 4), all)).toMatchObject({ sink: 0 });
  });

  test("weighs by the norms of values", () => {
    const values = Float32Array.of(1, 3);
    const { threads } = present(rowOf([0.75, 0.25]), { ...all, values, valued: 1.5 });
    expect(threads.map(({ share }) => share)).toEqual([0.5, 0.5]);
  });

  test("by norms of all keys, where what they sum to is known", () => {
    const values = Float32Array.of(1, 1, 4);
    const known = present(rowOf([0.5, 0.25], 3), { ...all, values, valued: 1.25 });
    expect(known.threads[0].share).toBeCloseTo(0.4);
  });

  test("of a row that may look at no key nothing is left", () => {
    expect(present(rowOf([]), all)).toMatchObject({ threads: [], rest: 0, whole: true });
  });
});

describe("several heads", () => {
  const first = present(rowOf([0.5, 0.5]), all);
  const second = present(rowOf([0.9], 2), all);

  test("together: the mean over heads", () => {
    const means = together([
      [3, first],
      [7, second],
    ]);
    expect(means.map(({ place, heads }) => [place, heads])).toEqual([
      [0, [3, 7]],
      [1, [3]],
    ]);
    expect(means[0].weight).toBeCloseTo(0.7);
  });

  test("what keys get from a query, and queries give to a key", () => {
    const shares = sharesOfKeys(2, [
      [3, first],
      [7, second],
    ]);
    expect([...shares]).toEqual([0.7, 0.25]);
    expect([...sharesOfQueries(2, new Map([[3, [first, second]]]), 1)]).toEqual([0.5, 0]);
  });

  test("what keys get on average: kept edges, or the exact sums", () => {
    const layer = { rows: 1, columns: 2 } as Layer;
    const shown = new Map([[3, [second]]]);
    expect([...meanSharesOfKeys(layer, shown, null)]).toEqual([0.9, 0]);
    const exact = meanSharesOfKeys(layer, shown, () => Float32Array.of(0.75, 0.25));
    expect([...exact]).toEqual([0.75, 0.25]);
  });

  test("whether rows kept what is to be drawn", () => {
    const shown = new Map([[3, [first, second]]]);
    expect(keptEnough(shown, 0.9)).toBe(true);
    expect(keptEnough(shown, 0.95)).toBe(false);
  });
});

describe("geometry", () => {
  test("rows fill the height within bounds, the shorter column in the middle", () => {
    const columns = columnsOf(2, 4, 250);
    expect([columns.row, columns.tall]).toEqual([50, 200]);
    expect(columns.y(0, 4)).toBe(25);
    expect(columns.y(0, 2)).toBe(75);
    expect(columnsOf(100, 100, 250).row).toBe(17);
    expect(columnsOf(1, 1, 2500).row).toBe(52);
  });

  test("a thread from each query to its keys, a stub for what is on none", () => {
    const between = {
      layer: { rows: 1, columns: 2 } as Layer,
      shown: new Map([[3, [present(rowOf([0.2, 0.6], 3), all)]]]),
      query: -1,
      key: -1,
      columns: columnsOf(1, 2, 150),
      across: 100,
      colourOf: (head: number) => `head ${head}`,
      focus: false,
    };
    const [strong, weak, stub] = linesBetween(between);
    expect([strong.y1, strong.y2, strong.x2]).toEqual([50, 75, 100]);
    expect(strong.width).toBeGreaterThan(weak.width);
    expect(stub.x2).toBeCloseTo(3 + 0.16 * 100 * 0.2);
    expect(stub.colour).toBe("head 3");
    const focused = linesBetween({ ...between, key: 0, focus: true });
    expect(focused.map(({ y2 }) => y2)).toEqual([25]);
  });

  test("a curve ends where its line does", () => {
    const line = { x1: 0, y1: 5, x2: 100, y2: 9, width: 1, opacity: 1, colour: "" };
    expect(curve(line)).toEqual([45, 5, 55, 9, 100, 9]);
  });
});
