import { expect, test } from "vitest";
import { shadesOf, topOf } from "../src/images";

test("the strongest colour is the largest weight's where it stands out", () => {
  const weights = [0.9, 0.1, ...Array<number>(14).fill(0)];
  expect(topOf(weights)).toBe(0.9);
  expect(shadesOf(weights)[0]).toBe(1);
  expect(shadesOf(weights)[1]).toBeCloseTo(1 / 3);
});

test("an even map is faint, one of little mass fainter, and one of nothing is empty", () => {
  const even = Array<number>(16).fill(1 / 16);
  expect(topOf(even)).toBeCloseTo(9 / 16);
  for (const shade of shadesOf(even)) expect(shade).toBeCloseTo(1 / 3);
  for (const shade of shadesOf(even.map((n) => n / 4))) expect(shade).toBeCloseTo(1 / 6);
  expect(shadesOf([0, 0])).toEqual([0, 0]);
  // A weight is at most 1.
  expect(topOf([0.5, 0.5])).toBe(1);
});

test("a map has as many pixels as the picture", () => {
  expect(topOf(Array<number>(1_000_000).fill(1e-6))).toBeCloseTo(9e-6, 9);
});
