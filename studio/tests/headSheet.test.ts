import { expect, test } from "vitest";
import { blocksOf, joined, massOf, pooling } from "../src/overview";
import { arrange } from "../src/views/arrangement";
import { groupsByKind } from "../src/views/headGroups";
import { factorOf, sheetOf } from "../src/views/headSheet";
import type { Layer } from "../src/description";

const layers = (count: number, heads: number) =>
  Array.from(
    { length: count },
    (_, number) =>
      ({
        number,
        index: number,
        kind: "decoder",
        heads,
        queries: "tokens",
        keys: "tokens",
      }) as Layer,
  );
const room = { height: 730, most: 168, gap: 10 };

test("80 layers of 64 heads stand on one screen, apart from each other", () => {
  const [group] = groupsByKind(layers(80, 64));
  const fit = arrange([{ rows: 80, columns: 64 }], 1000, room, 0, 8, 5);
  const sheet = sheetOf(group, fit, 0, fit.spare);
  expect(sheet.cells.length).toBe(5120);
  expect(sheet.width).toBeLessThanOrEqual(1000);
  expect(sheet.height).toBeLessThanOrEqual(730);
  expect(fit.tile).toBeGreaterThanOrEqual(5);
  const places = new Set(sheet.cells.map(({ x, y }) => `${x} ${y}`));
  expect(places.size).toBe(5120);
  const columns = [...new Set(sheet.cells.map(({ x }) => x))].sort((a, b) => a - b);
  expect(Math.min(...columns.slice(1).map((x, n) => x - columns[n]))).toBeGreaterThan(fit.tile);
});

test("a tile, what is under it and the gaps fit in the height, whatever the size", () => {
  for (let rows = 1; rows <= 80; rows++) {
    const [group] = groupsByKind(layers(rows, 16));
    const shapes = [
      { rows: 12, columns: 12 },
      { rows, columns: 16 },
    ];
    const fit = arrange(shapes, 970, room, 0, 8, 5);
    const sheet = sheetOf(group, fit, 0, fit.spare);
    // Side by side, below a title of 29 pixels; of two in a column each takes its part.
    if (fit.across === 2) expect([rows, sheet.height + 29 <= 730]).toEqual([rows, true]);
  }
});

test("30 layers of 9 heads stand in several parts, in larger tiles", () => {
  const groups = [{ rows: 30, columns: 9 }];
  const whole = arrange(groups, 1000, room, 0, 1, 5);
  const parted = arrange(groups, 1000, room, 0, 8, 5);
  expect(parted.parts).toBeGreaterThan(1);
  expect(parted.tile).toBeGreaterThan(1.5 * whole.tile);
  const [group] = groupsByKind(layers(30, 9));
  const sheet = sheetOf(group, parted, 0, parted.spare);
  expect(sheet.rows.map(({ text }) => text)).toEqual(Array.from({ length: 30 }, (_, n) => `L${n}`));
  expect(sheet.width).toBeGreaterThan(600);
  expect(sheet.height).toBeLessThanOrEqual(730);
});

test("blocks are joined until a tile has room for them", () => {
  expect(factorOf(blocksOf({ rows: 128, columns: 128 }, 32), 6)).toBe(4);
  expect(factorOf(blocksOf({ rows: 100, columns: 100 }, 128), 66)).toBe(2);
  expect(factorOf(blocksOf({ rows: 12, columns: 12 }, 128), 60)).toBe(1);
});

test("joined blocks hold a row's share in their keys, the mean of their rows", () => {
  // 5 rows by 7 columns in blocks of one cell, joined two by two; the last have fewer cells.
  const layer = { rows: 5, columns: 7 };
  const shades = Uint8Array.from({ length: 35 }, (_, n) => (n * 37) % 150);
  const blocks = blocksOf(layer, 128);
  const pooled = pooling(layer, blocks, 2)(shades);
  const { rows, columns } = joined(blocks, 2);
  expect([rows, columns]).toEqual([3, 4]);
  for (let row = 0; row < rows; row++)
    for (let column = 0; column < columns; column++) {
      const cells: number[] = [];
      for (let i = 2 * row; i < Math.min(2 * row + 2, 5); i++)
        for (let j = 2 * column; j < Math.min(2 * column + 2, 7); j++)
          cells.push(massOf(shades[7 * i + j]));
      const mean = cells.reduce((sum, one) => sum + one, 0) / cells.length;
      const expected = 255 * Math.min(2 * mean, 1) ** 0.25;
      expect(Math.abs(pooled[row * columns + column] - expected)).toBeLessThanOrEqual(0.51);
    }
});
