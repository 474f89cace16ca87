import { expect, test } from "vitest";
import { rampColour, RAMPS, SCALES } from "../src/colour";

/** The luminance of a pixel, roughly as an eye sees it. */
const light = (pixel: number) =>
  0.2126 * (pixel & 255) + 0.7152 * ((pixel >> 8) & 255) + 0.0722 * ((pixel >> 16) & 255);

test("more weight is darker on light ground, brighter on dark", () => {
  for (let n = 1; n < 256; n++) {
    expect(light(RAMPS.light.weight[n])).toBeLessThanOrEqual(
      light(RAMPS.light.weight[n - 1]) + 0.8,
    );
    expect(light(RAMPS.dark.weight[n])).toBeGreaterThanOrEqual(
      light(RAMPS.dark.weight[n - 1]) - 0.8,
    );
  }
});

test("a difference of 0 is the ground, both signs are alike in lightness", () => {
  const { difference } = RAMPS.light;
  expect(light(difference[128])).toBeGreaterThan(245);
  expect(Math.abs(light(difference[64]) - light(difference[191]))).toBeLessThan(25);
});

test("values past the ends take the colours of the ends", () => {
  expect(rampColour("light", -1)).toBe(rampColour("light", 0));
  expect(rampColour("light", 2)).toBe(rampColour("light", 1));
});

test("each scale takes 0 to 0 and 1 to 1, and rises", () => {
  for (const { to } of Object.values(SCALES)) {
    expect([to(0), to(1)]).toEqual([0, 1]);
    for (let n = 1; n <= 100; n++) expect(to(n / 100)).toBeGreaterThan(to((n - 1) / 100));
  }
});
