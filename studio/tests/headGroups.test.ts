import { describe, expect, test } from "vitest";
import { UNMEASURED, type Layer } from "../src/description";
import { groupsInOrder, neighbour } from "../src/views/headGroups";

const layer = (number: number, heads: number): Layer =>
  ({
    number, index: number, kind: "decoder", heads, rows: 8, columns: 8,
    queries: "tokens", keys: "tokens",
  }) as Layer; // prettier-ignore
const layers = [layer(0, 3), layer(1, 2)];
const groups = groupsInOrder("layer", layers, UNMEASURED);

describe("arrows among the heads", () => {
  test("lead to the next head, and stop at the end of a row", () => {
    expect(neighbour(groups, { layer: 0, head: 0 }, "ArrowRight")).toEqual({ layer: 0, head: 1 });
    expect(neighbour(groups, { layer: 0, head: 2 }, "ArrowRight")).toEqual({ layer: 0, head: 2 });
    expect(neighbour(groups, { layer: 0, head: 0 }, "ArrowUp")).toEqual({ layer: 0, head: 0 });
  });
  test("lead to the last head of a shorter row", () => {
    expect(neighbour(groups, { layer: 0, head: 2 }, "ArrowDown")).toEqual({ layer: 1, head: 1 });
  });
  test("are no other keys", () => {
    expect(neighbour(groups, { layer: 0, head: 0 }, "Enter")).toBeNull();
  });
});

test("by entropy the sharpest head comes first; heads without one stay as they are", () => {
  const measured = (entropy: number) => ({ role: "mixed", scores: { entropy } });
  const heads = {
    ...UNMEASURED,
    heads: [
      [measured(2), measured(0.5), measured(1)],
      [measured(0.1), measured(3)],
    ],
  } as unknown as typeof UNMEASURED;
  const order = (table: typeof UNMEASURED) =>
    groupsInOrder("entropy", layers, table)
      .flatMap((group) => group.rows.flatMap((row) => row.cells))
      .map(({ layer: number, head }) => `${number}.${head}`);
  expect(order(heads)).toEqual(["1.0", "0.1", "0.2", "0.0", "1.1"]);
  expect(order(UNMEASURED)).toEqual(["0.0", "0.1", "0.2", "1.0", "1.1"]);
});
