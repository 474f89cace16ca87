import { expect, test } from "vitest";
import type { Card, Prediction } from "../src/live/card";
import {
  chancesOf,
  chosenOf,
  differenceWords,
  headsOff,
  logProbability,
  switched,
} from "../src/live/prediction";

const layers = [{ heads: 2 }, { heads: 4 }];

test("heads that are off are those of the link that there are", () => {
  expect(headsOff("1.3-0.1", layers)).toEqual([
    [1, 3],
    [0, 1],
  ]);
  expect(headsOff("0.2-2.0-1.x-1-", layers)).toEqual([]);
  expect(switched(switched("", 0, 1), 1, 3)).toBe("0.1-1.3");
  expect(switched("0.1-1.3", 0, 1)).toBe("1.3");
});

const prediction = (rows: number[][], ids: Record<string, number[]>): Prediction => ({
  ids,
  tokens: {},
  output: "",
  logits: Float32Array.from(rows.flat()),
  columns: rows[0].length,
});

test("a translation is its tokens and the next, others the most probable token", () => {
  const rows = [
    [0, Math.log(3)],
    [0, 0],
  ];
  const card = { kind: "translator", sequences: ["source", "target"] } as Card;
  const chosen = chosenOf(prediction(rows, { source: [4], target: [2, 1] }), card);
  expect(chosen.map(({ id }) => id)).toEqual([1, 0]);
  const other = chosenOf(prediction([[0, 5, 1]], {}), { ...card, kind: "classifier" });
  expect(other.map(({ id }) => id)).toEqual([1]);
  // 3 / (1 + 3), then 1 / 2.
  const of = rows.map((row) => ({ logits: Float32Array.from(row) }));
  expect(Math.exp(logProbability([1, 0], of))).toBeCloseTo(3 / 8, 6);
});

test("chances are those of the most probable tokens, now or before", () => {
  const [now, before] = [Float64Array.of(0.9, 0.1, 0, 0), Float64Array.of(0, 0, 0.2, 0.8)];
  const found = chancesOf(now, before, 1);
  expect(found.map(({ id }) => id)).toEqual([0, 3, 2]);
  expect(found[0]).toEqual({ id: 0, now: 0.9, before: 0 });
  // Of those without a chance there are three at most.
  expect(chancesOf(Float64Array.of(1, 0, 0, 0, 0), null, 5)).toHaveLength(3);
});

test("how exact the model is", () => {
  const difference = { weights: 0.0312, output: 1, texts: 1 };
  const words = "8 bits: weights differ from 32 bits by up to 4e−2, measured on 1 text.";
  expect(differenceWords({ bits: 8, difference } as Card)).toBe(words);
});
