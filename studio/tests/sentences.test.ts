import { describe, expect, test } from "vitest";
import { UNMEASURED, type Heads, type Layer } from "../src/description";
import {
  barsOf,
  besideToken,
  leftOut,
  measureOf,
  measuresOf,
  roleBar,
  roleColour,
  roleOf,
  sentenceOf,
  stateOf,
} from "../src/sentences";
import { sinksOf } from "../src/threads";

const words = (name: string, phrase: string) => ({
  name,
  title: `${name} head`,
  phrase,
  colours: { light: `light ${name}`, dark: `dark ${name}` },
});
const heads: Heads = {
  measures: { previous: "weight on the token before", broad: "keys", distance: "mean distance" },
  roles: [words("previous", "at the one before it"), words("broad", "almost everywhere")],
  kept: [8],
  unkept: [[0.25, 0]],
  state: "known",
  heads: [
    [
      {
        role: "previous",
        scores: { previous: 0.875, broad: 0.1 },
        chance: { previous: [0.125, 0.01] },
      },
      { role: "broad", scores: { previous: 0.1, broad: 0.5 }, chance: {} },
    ],
  ],
};
const layer = { number: 0, one: true } as Layer;

test("a bar and an axis of one name show the same number", () => {
  const [bar] = barsOf(heads, 0, 0);
  expect(bar).toEqual({ name: "previous", value: 0.875, random: [0.125, 0.01] });
  expect(measureOf(heads, 0, 0, "previous")).toBe(bar.value);
});

test("axes: measures that apply to some head", () => {
  expect(measuresOf(heads)).toEqual([
    ["previous", "weight on the token before"],
    ["broad", "keys"],
  ]);
});

describe("a head in a sentence", () => {
  test("with a role that is a measure", () => {
    expect(sentenceOf(heads, layer, 0)).toBe(
      "Each token looks at the one before it: mean weight 0.875 " +
        "(random weights: 0.125 ± 0.010).",
    );
    expect(roleBar(heads, 0, 0)?.name).toBe("previous");
  });

  test("with a role that is none", () => {
    expect(sentenceOf(heads, { ...layer, one: false } as Layer, 1)).toMatch(
      /almost everywhere: its weight is spread over about 50\s% of the keys/,
    );
    expect(roleBar(heads, 0, 1)).toBeNull();
  });

  test("not measured yet, or never", () => {
    expect(sentenceOf(UNMEASURED, layer, 0)).toBe("measuring …");
    expect([roleOf(UNMEASURED, 0, 0), barsOf(UNMEASURED, 0, 0)]).toEqual(["", []]);
    expect(stateOf({ ...UNMEASURED, state: "failed: no memory" })).toContain("no memory");
    expect(stateOf(heads)).toBe("");
  });
});

test("colours are the server's", () => {
  expect(roleColour(heads, "dark", "previous")).toBe("dark previous");
  expect(roleColour(heads, "light", "")).toBe("light broad");
});

test("what a picture leaves out", () => {
  const kept = { shades: new Uint8Array(), exact: false };
  expect(leftOut(heads, 0, 0, kept)).toBe(0.25);
  expect(leftOut(heads, 0, 1, kept)).toBeNull();
  expect(leftOut(heads, 0, 0, { ...kept, exact: true })).toBeNull();
});

test("sinks are the first token and the separators of the trace", () => {
  expect([...sinksOf({ columns: 5, separators: [4] })]).toEqual([0, 4]);
  expect([...sinksOf({ columns: 0, separators: [] })]).toEqual([]);
});

test("a weight beside a token is never left out for being small", () => {
  expect([0.123, 0.0044, 0].map(besideToken)).toEqual(["0.12", "<.01", ""]);
});
