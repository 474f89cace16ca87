import { expect, test } from "vitest";
import { curveWords, loggedAt, lossAxes } from "../src/losses";

const points: [number, number][] = [
  [20, 5.426],
  [40, 1.901],
  [60, 0.4],
];

test("a loss between two reports is not made up", () => {
  expect(loggedAt(points, 3)).toBe(null);
  expect(loggedAt(points, 26)).toEqual([20, 5.426]);
  expect(loggedAt(points, 30)).toEqual([20, 5.426]);
  expect(loggedAt(points, 31)).toEqual([40, 1.901]);
  expect(loggedAt(points, 99)).toEqual([60, 0.4]);
  expect(loggedAt([], 26)).toBe(null);
});

test("what was logged closest has its step", () => {
  const words = (step: number) => curveWords(["training loss", points], step);
  expect(words(3)).toBe("training loss: from 5.43 to 0.400");
  expect(words(31)).toBe(`${words(3)}, nearest logged 1.90 at step 40`);
  expect(words(40)).toBe(`${words(3)}, now 1.90`);
});

test("axes have ends, and a short training has them too", () => {
  const room = { left: 40, right: 340, top: 8, bottom: 76 };
  const { x, y, ticks } = lossAxes([["loss", points]], 60, room);
  expect([x(0), x(60), y(0)]).toEqual([40, 340, 76]);
  expect(ticks.map(({ text }) => text)).toEqual(["step 0", "10", "60"]);
  expect(lossAxes([], 1, room).ticks.map(({ text }) => text)).toEqual(["step 0", "1"]);
});
