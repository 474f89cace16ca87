import { expect, test } from "vitest";
import { fromBase85, unpacked } from "../src/unpacked";

/** First bytes of all numbers first, then the second ones, ...: as a page has them. */
function planes(numbers: number[], width: number): number[] {
  const found: number[] = [];
  for (let plane = 0; plane < width; plane++)
    for (const number of numbers) found.push(Math.floor(number / 256 ** plane) % 256);
  return found;
}

const bits = (value: number) => new Uint32Array(new Float32Array([value]).buffer)[0];

/** What Python's base64.b85encode gives, with , . and / for & < and >. */
test.each([
  ["", []],
  ["009C61O)~M", [0, 1, 2, 3, 4, 5, 6, 7]],
  ["|NsC0|NsC0", [255, 255, 255, 255, 255, 255, 255, 255]],
  ["P5", [78]],
  ["$N/", [200, 1]],
  ["2mc8", [7, 255, 9]],
])("base 85: %s", (text, bytes) => {
  expect([...fromBase85(text)]).toEqual(bytes);
});

test("numbers are put together again", () => {
  const numbers = [1, 256, 0xfedcba98];
  const found = unpacked(new Uint8Array(planes(numbers, 4)), "4:12");
  expect([...new Uint32Array(found)]).toEqual(numbers);
  expect([...new Uint8Array(unpacked(new Uint8Array([3, 1, 2]), "1:3"))]).toEqual([3, 1, 2]);
});

test.each([
  [0, 2, 65535],
  [8, 4, 4294967295],
])("edges come strongest first, keys of %d bits less and %d bytes", (leftOut, width, none) => {
  // Two rows of three edges; the second has one edge alone.
  const weights = [0.125, 0.5, 0.25, 1, 0, 0];
  // Of the keys 2, 5, 300 and 7.
  const steps = [2, 3, 295, 7, none - 7, 0];
  const facts = [1, 2, 3, 4, 5, 6, 2, 1];
  const content = [
    ...planes(
      weights.map((weight) => Math.floor(bits(weight) / 2 ** leftOut)),
      4,
    ),
    ...planes(facts, 4),
    ...planes(steps, width),
  ];
  const found = unpacked(new Uint8Array(content), `edges:2,3,${leftOut},${width},4`);
  expect([...new Float32Array(found, 0, 6)]).toEqual([0.5, 0.25, 0.125, 1, 0, 0]);
  expect([...new Uint32Array(found, 24, 8)]).toEqual(facts);
  const Keys = width === 2 ? Uint16Array : Uint32Array;
  expect([...new Keys(found, 56, 6)]).toEqual([5, 300, 2, 7, none, none]);
});

test("dots of pictures are put on those above them", () => {
  // Two pictures of 2 x 3 dots, one below the other; the differences wrap at 256.
  const found = unpacked(new Uint8Array([9, 200, 0, 1, 100, 0, 250, 0, 7, 0, 0, 1]), "below:3,12");
  expect([...new Uint8Array(found)]).toEqual([9, 200, 0, 10, 44, 0, 4, 44, 7, 4, 44, 8]);
  expect(unpacked(new Uint8Array([]), "below:0,0").byteLength).toBe(0);
});

test("edges of equal weight stand by their keys", () => {
  const half = bits(0.5);
  const content = [...planes([half, half], 4), ...planes([0, 0, 0, 2], 4), ...planes([4, 5], 2)];
  const found = unpacked(new Uint8Array(content), "edges:1,2,0,2,4");
  expect([...new Uint16Array(found, 24, 2)]).toEqual([4, 9]);
});
