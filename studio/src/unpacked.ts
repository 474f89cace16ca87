// Bytes of a page as the server gives them: see src/weft/studio/pack.py.

/** The bytes that a form says: numbers of a width, or a block of edges. */
export function unpacked(planes: Uint8Array<ArrayBuffer>, form: string): ArrayBuffer {
  const [kind, said] = form.split(":");
  if (kind !== "edges") return joined(planes, [[Number(kind), planes.length]]);
  const [rows, kept, leftOut, width] = said.split(",").map(Number);
  const parts = [
    [4, 4 * rows * kept],
    [4, 16 * rows],
    [width, width * rows * kept],
  ];
  const bytes = joined(planes, parts);
  const weights = new Uint32Array(bytes, 0, rows * kept);
  const where = 4 * rows * (kept + 4);
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
