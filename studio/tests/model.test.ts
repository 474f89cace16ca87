import { expect, test } from "vitest";
import { verifiedWords, type Example } from "../src/model";

const said = (difference: number) =>
  verifiedWords({
    description: { verification: { difference }, deviation: null, layers: [] },
  } as unknown as Example);

test("a bound is rounded up", () => {
  expect([0, 1e-8, 1.0000000117e-7, 1.5e-8, 1.2e-8, 9.4e-8, 0.2].map(said)).toEqual([
    "exact, verified to 0",
    "exact, verified to 1e−8",
    "exact, verified to 1e−7",
    "exact, verified to 2e−8",
    "exact, verified to 2e−8",
    "exact, verified to 1e−7",
    "differs from the model by up to 2e−1",
  ]);
});
