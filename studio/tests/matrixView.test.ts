import { expect, test } from "vitest";
import { levelOf, turnOf } from "../src/matrixCanvas";
import { cellAt, held, marginOf, plot, showing, wholeZoom, zoomed } from "../src/matrixView";
import type { Layer } from "../src/description";

const extent = { width: 512, height: 262, margin: { left: 100, top: 50, right: 12 } };
const layer = { rows: 1000, columns: 400 } as Layer;

test("the plot is what the margins leave", () => {
  expect(plot(extent)).toEqual({ wide: 400, high: 200 });
  expect(plot({ ...extent, width: 10, height: 10 })).toEqual({ wide: 1, high: 1 });
});

test("the name of the last column has room beside the plot", () => {
  const named = (last: string) =>
    marginOf({ queryTokens: ["a"], keyTokens: ["a long first one", last] } as Layer).right;
  // Slanted it is seven tenths as wide, and begins in the middle of its column.
  expect(named("[SEP]")).toBeGreaterThanOrEqual(5 * 7 * Math.SQRT1_2 - 8);
  expect([named("."), named("x".repeat(99))]).toEqual([21, 58]);
});

test("the whole is in sight at the zoom of its tighter side", () => {
  expect(wholeZoom(extent, layer)).toBe(0.2);
  expect(wholeZoom(extent, { rows: 1, columns: 1 } as Layer)).toBe(200);
});

test("a viewport stays on the matrix", () => {
  expect(held({ top: -5, left: 900, zoom: 2 }, extent, layer)).toEqual({
    top: 0,
    left: 200,
    zoom: 2,
  });
  expect(held({ top: 990, left: 0, zoom: 2 }, extent, layer).top).toBe(900);
  expect(held({ top: 0, left: 0, zoom: 0.01 }, extent, layer).zoom).toBe(0.2);
  expect(held({ top: 0, left: 0, zoom: 1e6 }, extent, layer).zoom).toBe(64);
});

test("a place of the plot is a cell, unless it is beside the matrix", () => {
  const view = { top: 990, left: 10.5, zoom: 2 };
  expect(cellAt(view, layer, { x: 0, y: 0 })).toEqual({ row: 990, column: 10 });
  expect(cellAt(view, layer, { x: 1, y: 19 })).toEqual({ row: 999, column: 11 });
  expect(cellAt(view, layer, { x: 0, y: 20 })).toBeNull();
  expect(cellAt(view, layer, { x: -1, y: 0 })).toBeNull();
});

test("what lies at a place stays there when it is seen larger", () => {
  const view = { top: 100, left: 50, zoom: 2 };
  // The cell at 40, 20 is row 110, column 70.
  const twice = zoomed(view, extent, layer, 2, { x: 40, y: 20 });
  expect(twice).toEqual({ zoom: 4, top: 105, left: 60 });
  expect(zoomed(view, extent, layer, 1000, { x: 0, y: 0 })).toEqual({ ...view, zoom: 64 });
  expect(zoomed(view, extent, layer, 0.001, { x: 0, y: 0 }).zoom).toBe(0.2);
});

test("the part seen moves no farther than it takes to show a cell", () => {
  // 100 rows and 200 columns are seen.
  const view = { top: 100, left: 50, zoom: 2 };
  expect(showing(view, extent, 150, 60)).toEqual(view);
  expect(showing(view, extent, 90, 60)).toEqual({ ...view, top: 90 });
  expect(showing(view, extent, 200, 250)).toEqual({ ...view, top: 101, left: 51 });
});

test("the level of tiles: blocks of at most a pixel", () => {
  expect([2, 1, 0.9, 0.5, 0.3, 0.25].map((zoom) => levelOf(zoom, 9))).toEqual([0, 0, 0, 1, 1, 2]);
  expect(levelOf(0.001, 3)).toBe(3);
});

test("names of columns stand level, lean, or stand upright", () => {
  expect([turnOf(40, 30), turnOf(30, 30), turnOf(12, 30)]).toEqual([0, -45, -90]);
});
