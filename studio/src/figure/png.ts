// The resolution of a PNG: its chunk pHYs, which browsers do not write.

/** The cyclic redundancy check of a chunk: ISO 3309, as the PNG specification has it. */
function check(bytes: Uint8Array): number {
  let crc = 0xffffffff;
  for (const byte of bytes) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0xedb88320 : crc >>> 1;
  }
  return (crc ^ 0xffffffff) >>> 0;
}

/** The same PNG with a resolution in dots per inch. */
export function withDots(png: Uint8Array<ArrayBuffer>, dots: number): Uint8Array<ArrayBuffer> {
  const chunk = new Uint8Array(21);
  const view = new DataView(chunk.buffer);
  const metre = Math.round(dots / 0.0254);
  view.setUint32(0, 9);
  chunk.set(new TextEncoder().encode("pHYs"), 4);
  view.setUint32(8, metre);
  view.setUint32(12, metre);
  chunk[16] = 1; // dots a metre
  view.setUint32(17, check(chunk.subarray(4, 17)));
  // After the signature, of 8 bytes, and the header, the first chunk, of 25.
  const said = new Uint8Array(png.length + chunk.length);
  said.set(png.subarray(0, 33));
  said.set(chunk, 33);
  said.set(png.subarray(33), 54);
  return said;
}
