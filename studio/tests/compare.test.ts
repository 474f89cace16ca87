import { expect, test } from "vitest";
import { ofBoth } from "../src/compare";
import type { Layer } from "../src/description";

test("a token that differs has both names, another has its own", () => {
  const layer = (tokens: string[]) => ({ queryTokens: tokens, keyTokens: tokens }) as Layer;
  const named = ofBoth(layer(["too", "tired", "."]), layer(["too", "wide"]));
  expect(named.queryTokens).toEqual(["too", "tired/wide", "."]);
  expect(named.keyTokens).toEqual(named.queryTokens);
  expect(ofBoth(layer([" John", "a "]), layer([" Mary", "b"])).keyTokens).toEqual([
    " John/␣Mary",
    "a␣/b",
  ]);
});
