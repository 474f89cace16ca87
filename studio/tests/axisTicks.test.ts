import { expect, test } from "vitest";
import { momentOf, nice, rising, ticksOf } from "../src/axisTicks";

test("nice steps are 1, 2 or 5 times a power of ten", () => {
  expect([0.3, 1, 1.5, 3, 7, 12, 60, 201].map(nice)).toEqual([1, 1, 2, 5, 10, 20, 100, 500]);
});

test("ticks of positions", () => {
  expect(ticksOf(3, 1200, 400)).toEqual([
    { at: 500, text: "500" },
    { at: 1000, text: "1,000" },
  ]);
});

test("ticks of seconds stand where the seconds are", () => {
  // Whisper's positions, 0.02 s apart: 5 s are 250 of them.
  const whisper = Array.from({ length: 1500 }, (_, n) => 0.02 * n);
  const found = ticksOf(0, 1499, 200, whisper);
  expect(found.map(({ text }) => text)).toEqual(["0 s", "5 s", "10 s", "15 s", "20 s", "25 s"]);
  found.forEach(({ at }, n) => expect(at).toBeCloseTo(250 * n, 6));
  // Where the first has its middle at 0.0125 s, 0.1 s lies between two positions.
  const wave = Array.from({ length: 49 }, (_, n) => 0.0125 + 0.02 * n);
  const [first] = ticksOf(0, 48, 5, wave);
  expect(first.text).toBe("0.1 s");
  expect(first.at).toBeCloseTo((0.1 - 0.0125) / 0.02, 6);
  expect(ticksOf(7.5, 7.9, 1, wave)).toEqual([]);
});

test("moments that do not rise are none", () => {
  expect(rising([0, 0.5, 0.5])).toBeNull();
  expect(rising([])).toBeNull();
  expect(rising(undefined)).toBeNull();
  expect(momentOf(rising([0, 0.5]), 1)).toBe("0.50 s");
  expect(momentOf(null, 1)).toBe("");
});
