// What figures of matrices are made of: the cells in sight, names of rows and columns, ramps.

import { ticksOf } from "../axisTicks";
import { INKS, paintShades, rampColour, type Theme, type Ticks } from "../colour";
import type { Layer } from "../model";
import { overviewTable } from "../overview";
import {
  bitsOf,
  inkOn,
  levelOf,
  numbered,
  plot,
  type Extent,
  type Rough,
  type Viewport,
} from "../matrixCanvas";
import type { Studio } from "../studio.svelte";
import { grouped, visible } from "../text";
import { painted, SIDE, type Tiles } from "../tiles";
import { EDGE, fitted, line, picture, rect, SMALLEST, text, widthOf } from "./svg";

/** A matrix as a view shows it. */
export interface MatrixShown {
  layer: Layer;
  extent: Extent;
  view: Viewport;
  tiles: Tiles;
  /** A picture of the whole that is shown without tiles. */
  alone: Rough | null;
}

/** Where the cells in sight stand, and how their rows and columns are named. */
export interface Frame {
  x: number;
  y: number;
  /** Pixels of a cell. */
  zoom: number;
  /** Whether tokens name rows and columns; else positions do. */
  named: boolean;
  /** Room for the names. */
  names: { rows: number; columns: number };
  /** Whether the rows have no names, as those of a matrix beside it. */
  bare: boolean;
  /** Where the figure ends. */
  right: number;
}

const SIDE_OF_CELL = 44;

/** Rows and columns in sight. */
export function inSight({ layer, extent, view }: MatrixShown) {
  const { wide, high } = plot(extent);
  return {
    rows: Math.min(high / view.zoom, layer.rows - view.top),
    columns: Math.min(wide / view.zoom, layer.columns - view.left),
  };
}

/** The frame of a matrix from a place on: tokens name its rows where their letters have room.
 *
 * count: how many of its width stand beside each other, so many pixels apart; tall: of its height
 * at most, as a multiple of the figure's width.
 */
export function frameOf(
  shown: MatrixShown,
  y: number,
  width: number,
  count = 1,
  apart = 0,
  tall = 1.5,
): Frame {
  const { layer, view } = shown;
  const seen = inSight(shown);
  // Where more are in sight their names have no room.
  const tokens = (of: string[], from: number, many: number) =>
    of.slice(Math.floor(from), Math.ceil(from + Math.min(many, 2000)));
  const widest = (of: string[], most: number) =>
    Math.min(most, Math.max(...of.map((token) => widthOf(visible(token, 16), SMALLEST)), 20));
  const names = {
    rows: widest(tokens(layer.queryTokens, view.top, seen.rows), width / (count + 3)),
    columns: widest(tokens(layer.keyTokens, view.left, seen.columns), 90),
  };
  const zoomOf = (left: number) =>
    Math.min(
      SIDE_OF_CELL,
      (width - left - EDGE - (count - 1) * apart) / (count * seen.columns),
      (tall * width) / seen.rows,
    );
  const corner = widthOf("queries ↓", SMALLEST, 600) + EDGE + 6;
  const named = zoomOf(Math.max(EDGE + names.rows + 8, corner)) >= SMALLEST * 1.15;
  const side = named ? names.rows : widthOf(grouped(layer.rows), SMALLEST);
  const x = Math.max(EDGE + 8 + side, corner);
  return {
    x,
    y: y + (named ? 30 + names.columns : 44),
    zoom: zoomOf(x),
    named,
    names,
    bare: false,
    right: width - EDGE,
  };
}

/** The cells in sight with the names of rows and columns. */
export async function framed(
  studio: Studio,
  shown: MatrixShown,
  theme: Theme,
  frame: Frame,
): Promise<string[]> {
  const { layer, view } = shown;
  const { x: x0, y: y0, zoom, named, names, bare } = frame;
  const ink = INKS[theme];
  const seen = inSight(shown);
  const box = { x: x0, y: y0, width: seen.columns * zoom, height: seen.rows * zoom };
  const canvas = await cellsInSight(studio, shown, theme, box.width, box.height, zoom);
  const parts = [
    picture(box, canvas),
    text(x0, y0 - (named ? names.columns + 20 : 34), "keys →", {
      size: SMALLEST,
      fill: ink.key,
      weight: 600,
    }),
  ];
  if (!bare)
    parts.push(
      text(x0 - 6, y0 - (named ? 10 : 14), "queries ↓", {
        size: SMALLEST,
        fill: ink.query,
        weight: 600,
        anchor: "end",
      }),
    );
  const y = (row: number) => y0 + (row + 0.5 - view.top) * zoom;
  const x = (column: number) => x0 + (column + 0.5 - view.left) * zoom;
  const middles = (from: number, count: number) => ({
    from: Math.max(0, Math.ceil(from - 0.5)),
    to: from + count - 0.5,
  });
  const rows = middles(view.top, bare ? 0 : seen.rows);
  const columns = middles(view.left, seen.columns);
  const label = { size: SMALLEST, fill: ink.faint, middle: true };
  if (numbered(view, shown.tiles, !!shown.alone) && zoom >= widthOf("−0.00", SMALLEST) + 3) {
    const { tiles } = shown;
    const colours = tiles.colours(theme, studio.state.scale);
    const of = { size: SMALLEST, anchor: "middle" as const, middle: true };
    const cells = middles(view.top, seen.rows);
    for (let row = cells.from; row <= cells.to + 1e-6; row++)
      for (let column = columns.from; column <= columns.to + 1e-6; column++) {
        const bits = bitsOf(tiles, row, column);
        const said = bits ? tiles.word(bits) : "";
        if (said) parts.push(text(x(column), y(row), said, { ...of, fill: inkOn(colours[bits]) }));
      }
  }
  if (named) {
    const name = (token: string, room: number) => fitted(visible(token, 16), SMALLEST, room);
    for (let row = rows.from; row <= rows.to + 1e-6; row++)
      parts.push(
        text(x0 - 6, y(row), name(layer.queryTokens[row], names.rows), { ...label, anchor: "end" }),
      );
    const across: string[] = [];
    for (let column = columns.from; column <= columns.to + 1e-6; column++)
      across.push(name(layer.keyTokens[column], names.columns));
    // Short names stand upright: a letter that is turned is read as another.
    const upright = across.every((said) => widthOf(said, SMALLEST) <= zoom);
    across.forEach((said, n) =>
      parts.push(
        text(
          x(columns.from + n),
          upright ? y0 - 10 : y0 - 6,
          said,
          upright ? { ...label, anchor: "middle" } : { ...label, turn: -90 },
        ),
      ),
    );
    return parts;
  }
  for (const { at, text: said } of ticksOf(rows.from, rows.to, 40 / zoom, layer.querySeconds))
    parts.push(
      line(x0 - 4, y(at), x0 - 1, y(at), ink.faint),
      text(x0 - 6, y(at), said, { ...label, anchor: "end" }),
    );
  const across = (widthOf(grouped(layer.columns), SMALLEST) + 16) / zoom;
  for (const { at, text: said } of ticksOf(columns.from, columns.to, across, layer.keySeconds))
    parts.push(
      line(x(at), y0 - 4, x(at), y0 - 1, ink.faint),
      text(Math.min(x(at), frame.right - 12), y0 - 8, said, {
        size: SMALLEST,
        fill: ink.faint,
        anchor: "middle",
      }),
    );
  return parts;
}

/** A ramp of colours with numbers below it. */
export function rampOf(
  theme: Theme,
  of: "weight" | "difference",
  box: { x: number; y: number; width: number },
  ticks: Ticks,
): string[] {
  const { x, y, width } = box;
  const steps = Array.from({ length: 80 }, (_, n) =>
    rect(
      { x: x + (n * width) / 80, y, width: width / 80 + 0.4, height: 7 },
      rampColour(theme, n / 79, of),
    ),
  );
  const last = ticks.length - 1;
  /** Where a number begins and ends. */
  const edges = ([at, said]: Ticks[0], n: number): [number, number] => {
    const start = x + at * width - widthOf(said, SMALLEST) * (n === 0 ? 0 : n === last ? 1 : 0.5);
    return [start, start + widthOf(said, SMALLEST)];
  };
  const [first, end] = [edges(ticks[0], 0)[1], edges(ticks[last], last)[0]];
  const numbers = ticks.map((tick, n) => {
    const [start, stop] = edges(tick, n);
    // Those between the ends have to have room there.
    if (n > 0 && n < last && (start < first + 4 || stop > end - 4)) return "";
    const anchor = n === 0 ? "start" : n === last ? "end" : "middle";
    const [at, said] = tick;
    return text(x + at * width, y + 18, said, { size: SMALLEST, fill: INKS[theme].faint, anchor });
  });
  return [...steps, ...numbers];
}

/** What a dot stands for where it is many cells; "": it is one. */
export function coarseWords(studio: Studio, { view, tiles }: MatrixShown): string {
  const level = levelOf(view.zoom, tiles.top);
  const block = studio.state.blocks === "max" ? "largest weight" : "mass of a row";
  return level ? `a dot is the ${block} in ${2 ** level} × ${2 ** level} cells` : "";
}

/** Which rows and columns are in sight, of how many. */
export function rangeWords(shown: MatrixShown): string {
  const { layer, view } = shown;
  const seen = inSight(shown);
  const range = (from: number, count: number) =>
    `${grouped(Math.floor(from))}–${grouped(Math.ceil(from + count - 1e-6) - 1)}`;
  const ranges = `Rows ${range(view.top, seen.rows)}, columns ${range(view.left, seen.columns)}`;
  return `${ranges} of ${grouped(layer.rows)} × ${grouped(layer.columns)}.`;
}

/** The cells in sight on a canvas. */
async function cellsInSight(
  studio: Studio,
  { view, tiles, alone }: MatrixShown,
  theme: Theme,
  width: number,
  height: number,
  zoom: number,
): Promise<HTMLCanvasElement> {
  const canvas = document.createElement("canvas");
  // Cells in sight one pixel each where they are few; else as many pixels as the screen has, twice.
  const level = levelOf(view.zoom, tiles.top);
  const per = view.zoom * 2 ** level >= 4 ? 1 / zoom : 4;
  canvas.width = Math.max(1, Math.round(width * per));
  canvas.height = Math.max(1, Math.round(height * per));
  const context = canvas.getContext("2d")!;
  context.imageSmoothingEnabled = false;
  const colours = tiles.colours(theme, studio.state.scale);
  const block = 2 ** level;
  const step = SIDE * block;
  const k = zoom * per;
  if (alone) {
    const { picture: whole, down, across } = alone;
    // In this figure's own colours.
    const own = document.createElement("canvas");
    paintShades(
      own,
      alone.shades,
      whole.height,
      whole.width,
      overviewTable(theme, studio.state.scale),
    );
    context.drawImage(
      own,
      -view.left * k,
      -view.top * k,
      whole.width * across * k,
      whole.height * down * k,
    );
  }
  for (
    let row = Math.floor(view.top / step);
    !alone && row * step < view.top + height / zoom;
    row++
  )
    for (
      let column = Math.floor(view.left / step);
      column * step < view.left + width / zoom;
      column++
    ) {
      let tile = tiles.get(level, row, column);
      // Those on their way are waited for.
      for (let wait = 0; !tile && wait < 400 && !tiles.problem; wait++) {
        await new Promise((done) => setTimeout(done, 50));
        tile = tiles.get(level, row, column);
      }
      if (!tile) throw new Error("Tiles are still on their way; try again in a moment.");
      const own = { ...tile, canvas: null, painted: null };
      context.drawImage(
        painted(own, colours),
        (column * step - view.left) * k,
        (row * step - view.top) * k,
        tile.columns * block * k,
        tile.rows * block * k,
      );
    }
  return canvas;
}
