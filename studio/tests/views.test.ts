import { describe, expect, test } from "vitest";
import type { Kind, Layer } from "../src/description";
import { blocksOf, dotOf, massOf } from "../src/overview";
import { fromTo, sparkline, stepEnds, stepline } from "../src/parts/sparkline";
import { APART, arrange, LABEL, roomFor } from "../src/views/arrangement";
import { groupInOrder, groupsByKind, notesOf } from "../src/views/headGroups";

const layerOf = (number: number, kind: Kind, heads: number) =>
  ({ number, kind, index: number, heads, queries: "target", keys: "source" }) as Layer;

describe("arrange", () => {
  const room = { height: 1000, most: 168, gap: 10 };

  test("tiles are as large as the width and the height let them", () => {
    const { tile } = arrange([{ rows: 2, columns: 4 }], 400, room, 26);
    expect(tile).toBe(Math.floor((400 - LABEL) / 4 - 10));
    expect(arrange([{ rows: 9, columns: 4 }], 4000, { ...room, height: 300 }, 26).tile).toBe(38);
    expect(arrange([{ rows: 1, columns: 1 }], 4000, room, 26).tile).toBe(168);
  });

  test("groups stand side by side where that makes tiles larger", () => {
    const groups = [
      { rows: 6, columns: 4 },
      { rows: 6, columns: 4 },
    ];
    const flat = { ...room, height: 500 };
    expect(arrange(groups, 2000, flat, 26).across).toBe(2);
    expect(arrange(groups, 300, { ...room, height: Infinity }, 26).across).toBe(1);
    const { tile } = arrange(groups, 900, { ...room, height: Infinity }, 26);
    expect(tile).toBeLessThanOrEqual((900 - 2 * LABEL - APART) / 4);
  });

  test("a narrow studio scrolls", () => {
    expect(roomFor(900, 500)).toMatchObject({ height: Infinity, most: 104 });
    expect(roomFor(901, 500)).toMatchObject({ height: 500, most: 168 });
    expect(roomFor(560, 500).gap).toBeLessThan(roomFor(561, 500).gap);
  });
});

describe("groups of heads", () => {
  const layers = [layerOf(0, "encoder", 2), layerOf(1, "cross", 3), layerOf(2, "encoder", 2)];

  test("each kind apart, layers as rows", () => {
    const groups = groupsByKind(layers);
    expect(groups.map(({ title, columns }) => [title, columns])).toEqual([
      ["Encoder", 2],
      ["Cross", 3],
    ]);
    expect(groups[0].rows.map(({ label }) => label)).toEqual(["L0", "L2"]);
  });

  test("what a kind does, in the names of its sequences", () => {
    const [encoder, cross] = groupsByKind(layers);
    expect(encoder.note).toBe("the target looks at itself");
    expect(cross.note).toBe("the target looks at the source");
    const of = (queries: string, keys = queries) => [{ queries, keys }];
    expect(notesOf("encoder", of("patches"))).toBe("the patches look at each other");
    expect(notesOf("decoder", of("tokens"))).toBe("each token looks at those before it");
    expect(notesOf("decoder", of("patches"))).toBe("each patch looks at those before it");
    expect(notesOf("decoder", of("target"))).toBe("the target looks back at itself");
    expect(notesOf("cross", of("tokens", "patches"))).toBe("the tokens look at the patches");
    expect(notesOf("encoder", [...of("text"), ...of("patches"), ...of("text")])).toBe(
      "the text looks at itself; the patches look at each other",
    );
  });

  test("all in an order of their own", () => {
    const [group] = groupInOrder(layers, "", (one, other) => other.head - one.head);
    const cells = group.rows.flatMap((row) => row.cells);
    expect(cells.map(({ head }) => head)).toEqual([2, 1, 1, 1, 0, 0, 0]);
    expect(group.rows[0].cells).toHaveLength(group.columns);
  });
});

describe("overview", () => {
  test("at most 128 blocks along a side", () => {
    expect(blocksOf({ rows: 480, columns: 100 }, 128)).toEqual({
      rows: 120,
      columns: 100,
      down: 4,
      across: 1,
    });
  });

  test("what a dot is", () => {
    expect(dotOf(blocksOf({ rows: 100, columns: 100 }, 128))).toBe("each dot is a weight");
    expect(dotOf(blocksOf({ rows: 200, columns: 100 }, 128))).toBe(
      "each dot is a weight, averaged over 2 rows",
    );
    expect(dotOf(blocksOf({ rows: 100, columns: 300 }, 128))).toContain("a row’s mass in 3 keys");
  });

  test("shades are the fourth root of a mass", () => {
    expect([massOf(0), massOf(255)]).toEqual([0, 1]);
    expect(massOf(255 / 2)).toBeCloseTo(1 / 16);
  });
});

test("a sparkline is scaled to its numbers and broken where one is missing", () => {
  const { path, x, y } = sparkline([1, null, 3, 2], 3, 30, 12);
  expect(path).toBe("M0,10ZM20,2L30,6");
  expect([x, y]).toEqual([30, 6]);
  expect(sparkline([1, null], 1, 30, 12).y).toBeNull();
});

test("beside a sparkline stands where it begins and ends, not its least and its largest", () => {
  const ranks = [30.000042, 30.5, 25, 28.749939];
  expect(sparkline(ranks, 1, 30, 12).ends).toBe("from 30.0 to 28.7");
  expect(fromTo([30, null])).toBe("from 30.0 to none");
  expect([fromTo([2, 2]), fromTo([null, null]), fromTo([2, 3, 2])]).toEqual([
    "",
    "",
    "from 2.00 to 2.00",
  ]);
  // Along steps of which not each was measured, from the first that was to the last.
  expect(stepline([null, 5, 7, 6, null], [0, 1, 2, 3, 4], 4, 30, 12).ends).toBe(
    "from 5.00 to 6.00",
  );
});

test("what stands at the ends of an axis of steps", () => {
  expect(stepEnds(0, 60_000)).toEqual(["step 0", "60,000"]);
  expect(stepEnds(7, 7)).toEqual(["step 7"]);
});
