import { expect, test } from "vitest";
import { layerName, lengthWords, verifiedWords, type Description } from "../src/description";

const said = (difference: number) =>
  verifiedWords({
    verification: { difference },
    deviation: null,
    layers: [],
  } as unknown as Description);

test("a bound is rounded up", () => {
  expect([0, 1e-8, 1.0000000117e-7, 1.5e-8, 1.2e-8, 9.4e-8, 0.2].map(said)).toEqual([
    "exact, matches the model to 0",
    "exact, matches the model to 1e−8",
    "exact, matches the model to 1e−7",
    "exact, matches the model to 2e−8",
    "exact, matches the model to 2e−8",
    "exact, matches the model to 1e−7",
    "differs from the model by up to 2e−1",
  ]);
});

test("a class token is no patch", () => {
  const patches = ["patch 0,0", "patch 0,1", "patch 1,0", "patch 1,1"];
  expect(lengthWords("patches", patches)).toBe("4 patches");
  expect(lengthWords("patches", ["[CLS]", ...patches])).toBe("4 patches and [CLS]");
  expect(lengthWords("patches", ["[CLS]", "[DISTILL]", ...patches])).toBe(
    "4 patches and 2 other tokens",
  );
  expect(lengthWords("tokens", ["a"])).toBe("1 token");
  expect(lengthWords("source", ["a", "b"])).toBe("2 source tokens");
  expect(lengthWords("nodes", ["a", "b"])).toBe("2 nodes");
});

test("layers are named as on the command line", () => {
  const layer = { kind: "cross", index: 1, number: 5 } as const;
  expect([layerName({ several: true }, layer), layerName({ several: false }, layer)]).toEqual([
    "L5 (cross 1)",
    "L1",
  ]);
});
