import { expect, test } from "vitest";
import type { Card } from "../src/live/card";
import * as guide from "../src/views/guide";

const rows = (strongest: [key: number, weight: number][]) => ({
  row: (row: number) =>
    strongest.slice(row, row + 1).map(([key, weight]) => ({ key, weight, score: 0, rank: 1 })),
});

test("the guide follows the head whose rows are the sharpest", () => {
  const heads = [
    [1, 2],
    [0.1, 0.3],
    [0, 0.5],
  ].map((all) => ({ entropy: Float32Array.from(all) }));
  expect(guide.sharpest(heads)).toBe(1);
  // e to the mean, 0.2.
  expect(guide.spread(heads[1])).toBe("1.2");
});

test("it begins at the clearest place that looks at the text, and knows the least clear", () => {
  const edges = rows([
    [0, 0.6],
    [3, 0.99],
    [1, 0.8],
    [2, 1],
  ]);
  expect(guide.clearest({ rows: 4, separators: [3] }, edges)).toBe(2);
  expect(guide.mixed({ rows: 4 }, edges)).toBe(0);
});

test("shades of a matrix are around the middle", () => {
  expect([...guide.shadesOf(Float32Array.of(-2, 0, 1, 2))]).toEqual([0, 128, 191, 255]);
  expect([...guide.shadesOf(new Float32Array(2))]).toEqual([128, 128]);
});

test("how much of an answer is right", () => {
  expect(guide.agreeing("201-0101", "2024-03-17")).toBe(2);
  expect(guide.agreeing("", "2024")).toBe(0);
});

test("numbers for people", () => {
  expect([124627352151, 2015195, 61844, 22.46, 0.00713, 4e20].map(guide.about)).toEqual([
    "125 billion",
    "2.02 million",
    "61,800",
    "22.5",
    "0.00713",
    "4.00 × 10^20",
  ]);
  expect([1, 0.99999999, 2e-7, 0].map(guide.weightWords)).toEqual([
    "1.0000",
    "1.0000",
    "<\u00a00.0001",
    "0.0000",
  ]);
  expect(["a", "<end>", " "].map(guide.quoted)).toEqual(["“a”", "<end>", "“␣”"]);
});

test("a page with dates and snapshots has a guide", () => {
  const description = { sequences: { target: ["<start>", ..."2024-03-17"] } };
  const card = {
    kind: "translator",
    snapshots: { steps: [0] },
    description,
    sequences: ["source", "target"],
  };
  expect(guide.isGuided(card as unknown as Card)).toBe(true);
  expect(guide.writesDates(card as unknown as Card)).toBe(true);
  expect(guide.isGuided({ ...card, snapshots: null } as unknown as Card)).toBe(false);
});
