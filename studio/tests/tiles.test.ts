import { expect, test } from "vitest";
import { signedLookup } from "../src/compare";
import { half, lookup, whole } from "../src/tiles";

test("half precision: numbers with 11 bits come back as they were", () => {
  for (const number of [0, 1, 0.5, 0.25, 0.75, 1023 / 1024, 2 ** -14, 2 ** -23, 3 * 2 ** -20])
    expect(whole(half(number))).toBe(number);
});

test("half precision: known bits", () => {
  expect([half(1), half(0.5), half(2 ** -14), half(2 ** -23)]).toEqual([0x3c00, 0x3800, 0x400, 2]);
  expect(whole(0x3555)).toBe(0.333251953125);
});

test("half precision: others are off by less than a unit of the last place", () => {
  for (let n = 1; n < 1000; n++) {
    const weight = (n / 1000) ** 3;
    const unit = Math.max(2 ** (Math.floor(Math.log2(weight)) - 10), 2 ** -24);
    expect(Math.abs(whole(half(weight)) - weight)).toBeLessThanOrEqual(unit);
  }
});

test("half precision: nothing below 0, and NaN", () => {
  expect([half(-1), half(NaN), half(1e-9)]).toEqual([0, 0x7e00, 0]);
  expect([0x7e00, 0xfe00, 0x7c00].map(whole)).toEqual([NaN, NaN, NaN]);
});

test("each half-precision number has the colour of its weight", () => {
  const table = Uint32Array.from({ length: 256 }, (_, shade) => shade);
  const colours = lookup(table, Math.sqrt, 999);
  expect([colours[half(0)], colours[half(0.25)], colours[half(1)]]).toEqual([0, 128, 255]);
  // Above 1, as rounding may have it, the strongest.
  expect(colours[half(1) + 1]).toBe(255);
});

test("what is no number has a colour of its own, whatever its sign", () => {
  const table = Uint32Array.from({ length: 256 }, (_, shade) => shade);
  const none = [0x7c00, 0x7e00, 0x7fff, 0xfc00, 0xfe00, 0xffff];
  for (const colours of [lookup(table, Math.sqrt, 999), signedLookup(table, "root", 999)]) {
    expect(none.map((bits) => colours[bits])).toEqual(none.map(() => 999));
    expect(colours.filter((colour) => colour === 999).length).toBe(2048);
  }
});
