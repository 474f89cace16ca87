// Bytes of a page as the server gives them: see src/headloom/studio/pack.py.

/** The digits of base 85, as in src/headloom/studio/pack.py. */
const LETTERS =
  "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%,()*+-;.=/?@^_`{|}~";
const DIGITS = new Uint8Array(128);
Array.from(LETTERS, (letter, digit) => (DIGITS[letter.charCodeAt(0)] = digit));

/** Bytes of a text in base 85: five digits for four bytes, n + 1 for the n that are left over. */
export function fromBase85(text: string): Uint8Array<ArrayBuffer> {
  const over = text.length % 5;
  const bytes = new Uint8Array(4 * Math.ceil(text.length / 5));
  for (let from = 0, to = 0; from < text.length; from += 5, to += 4) {
    let number = 0;
    for (let n = from; n < from + 5; n++)
      // What is cut off at the end stands for the highest digits.
      number = 85 * number + (n < text.length ? DIGITS[text.charCodeAt(n)] : 84);
    bytes[to] = number >>> 24;
    bytes[to + 1] = number >>> 16;
    bytes[to + 2] = number >>> 8;
    bytes[to + 3] = number;
  }
  return over ? bytes.subarray(0, bytes.length - 5 + over) : bytes;
}

/** The bytes that a form says: numbers of a width, pictures, or rows of edges. */
export function unpacked(planes: Uint8Array<ArrayBuffer>, form: string): ArrayBuffer {
  const [kind, said] = form.split(":");
  if (kind === "below") {
    const [columns] = said.split(",").map(Number);
    for (let n = columns; n < planes.length; n++) planes[n] += planes[n - columns];
    return planes.buffer;
  }
  if (kind !== "edges") return joined(planes, [[Number(kind), planes.length]]);
  const [rows, kept, leftOut, width, facts] = said.split(",").map(Number);
  const parts = [
    [4, 4 * rows * kept],
    [4, 4 * rows * facts],
    [width, width * rows * kept],
  ];
  const bytes = joined(planes, parts);
  const weights = new Uint32Array(bytes, 0, rows * kept);
  const where = 4 * rows * (kept + facts);
  const keys =
    width === 2
      ? new Uint16Array(bytes, where, rows * kept)
      : new Uint32Array(bytes, where, rows * kept);
  for (let row = 0; row < rows; row++) strongestFirst(weights, keys, row * kept, kept, leftOut);
  return bytes;
}

/** Puts the bytes of numbers together again: first bytes came first, then second ones, ... */
function joined(planes: Uint8Array, parts: number[][]): ArrayBuffer {
  const result = new Uint8Array(planes.length);
  let start = 0;
  for (const [width, length] of parts) {
    const count = length / width;
    for (let plane = 0; plane < width; plane++)
      for (let n = 0, from = start + plane * count, to = start + plane; n < count; n++, to += width)
        result[to] = planes[from + n];
    start += length;
  }
  return result.buffer;
}

/** A row's edges, whose keys are steps, in the order of their weights; of equal ones by key. */
function strongestFirst(
  weights: Uint32Array,
  keys: Uint16Array | Uint32Array,
  start: number,
  kept: number,
  leftOut: number,
): void {
  const order = new Array<number>(kept);
  const own = new Float64Array(kept);
  const steps = keys.slice(start, start + kept);
  for (let n = 0; n < kept; n++) {
    if (n) steps[n] += steps[n - 1];
    own[n] = weights[start + n] * 2 ** leftOut;
    order[n] = n;
  }
  // Bits of floats that are not negative are in the order of the floats.
  order.sort((a, b) => own[b] - own[a] || a - b);
  for (let n = 0; n < kept; n++) {
    weights[start + n] = own[order[n]];
    keys[start + n] = steps[order[n]];
  }
}
