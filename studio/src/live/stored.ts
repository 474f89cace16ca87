// The model's tensors as the page stores them, and the buffers that ONNX Runtime reads.

import type { Card, Tensors } from "./card";

/** Numbers of some tensors, one after the other. */
export interface Stored {
  /** All tensors of 32 bits, and the scales of those of 8. */
  floats: Float32Array;
  bytes: Int8Array;
}

/** Where each tensor starts: its floats or scales, and its bytes. */
function places(tensors: Tensors): { float: number; byte: number }[] {
  let float = 0,
    byte = 0;
  return tensors.map(({ count, rows, bits }) => {
    const place = { float, byte };
    float += bits === 8 ? rows : count;
    byte += bits === 8 ? count : 0;
    return place;
  });
}

/** Writes a tensor as float32. */
function write(
  { count, rows, bits }: Tensors[number],
  { floats, bytes }: Stored,
  { float, byte }: { float: number; byte: number },
  into: Float32Array,
): void {
  if (bits === 32) {
    into.set(floats.subarray(float, float + count));
    return;
  }
  const columns = count / rows;
  for (let row = 0, n = 0; row < rows; row++) {
    const scale = floats[float + row];
    for (const end = n + columns; n < end; n++) into[n] = scale * bytes[byte + n];
  }
}

/** The numbers of one of some tensors. */
export function tensorOf(tensors: Tensors, index: number, stored: Stored): Float32Array {
  const found = new Float32Array(tensors[index].count);
  write(tensors[index], stored, places(tensors)[index], found);
  return found;
}

/** The external data of a graph. snapshot: of another step, for the tensors that it has. */
export function externalData(
  card: Card,
  name: string,
  trained: Stored,
  snapshot: Stored | null = null,
): Uint8Array<ArrayBuffer> {
  const graph = card.graphs[name];
  const data = new ArrayBuffer(graph.bytes);
  const own = places(card.tensors);
  const changed = card.snapshots?.tensors ?? [];
  const table = card.snapshots?.table ?? [];
  const others = places(table);
  for (const [index, offset] of graph.tensors) {
    const tensor = card.tensors[index];
    const into = new Float32Array(data, offset, tensor.count);
    const other = snapshot ? changed.indexOf(index) : -1;
    if (other < 0) write(tensor, trained, own[index], into);
    else write(table[other], snapshot!, others[other], into);
  }
  return new Uint8Array(data);
}
