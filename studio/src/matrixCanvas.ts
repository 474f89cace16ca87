// The matrix on a canvas: how the part that is seen is drawn.

import { ticksOf } from "./axisTicks";
import { INKS, paintShades, SCALES, type Theme } from "./colour";
import type { Layer } from "./description";
import { FONTS, type Pen } from "./figure/pen";
import { plot, type Cell, type Extent, type Viewport } from "./matrixView";
import { overviewTable, type Blocks, type Picture } from "./overview";
import { visible } from "./text";
import { painted, SIDE, type Tiles } from "./tiles";

/** Pixels of a cell from which its number stands in it. */
const NUMBERS_FROM = 36;
/** Pixels of a cell from which tokens, not positions, name it. */
const TOKENS_FROM = 11;

export interface Look {
  theme: Theme;
  colours: Uint32Array;
  /** The selected cell; for a row or column alone the other is -1. */
  cell: Cell | null;
  /** A picture of the whole in blocks, for where tiles are on their way. */
  rough: Rough | null;
  /** Whether that picture is what is shown, without tiles. */
  alone: boolean;
  /** Whether the rows have no names, as those of a matrix beside it. */
  bare?: boolean;
}

/** A picture of the whole, and the cells of its dots. */
export interface Rough {
  picture: HTMLCanvasElement;
  shades: Uint8Array;
  down: number;
  across: number;
}

/** The small picture of a head in the colours of its matrix. */
export function roughOf(
  { rows, columns, down, across }: Blocks,
  { shades }: Picture,
  theme: Theme,
  scale: keyof typeof SCALES,
): Rough {
  const picture = document.createElement("canvas");
  paintShades(picture, shades, rows, columns, overviewTable(theme, scale));
  return { picture, shades, down, across };
}

export const levelOf = (zoom: number, top: number) =>
  Math.min(Math.max(Math.floor(-Math.log2(zoom) + 1e-9), 0), top);

/** How the names of columns stand, so that none touches the next: level, leaning, or upright. */
export function turnOf(zoom: number, widest: number): number {
  if (widest <= zoom - 6) return 0;
  return zoom < 16 ? -90 : -45;
}

/** Draws the visible part; returns whether all of it was loaded. */
export function drawMatrix(
  context: Pen,
  extent: Extent,
  view: Viewport,
  tiles: Tiles,
  look: Look,
): boolean {
  const { layer } = tiles;
  const { margin } = extent;
  const { wide, high } = plot(extent);
  const ink = INKS[look.theme];
  context.fillStyle = ink.card;
  context.fillRect(0, 0, extent.width, extent.height);
  context.save();
  context.beginPath();
  const right = Math.min(wide, (layer.columns - view.left) * view.zoom),
    bottom = Math.min(high, (layer.rows - view.top) * view.zoom);
  context.rect(margin.left, margin.top, right, bottom);
  context.clip();
  context.imageSmoothingEnabled = false;
  const x0 = margin.left - view.left * view.zoom,
    y0 = margin.top - view.top * view.zoom;
  if (look.rough) {
    const { picture, down, across } = look.rough;
    context.drawImage(
      picture,
      x0,
      y0,
      picture.width * across * view.zoom,
      picture.height * down * view.zoom,
    );
  }
  const level = levelOf(view.zoom, tiles.top);
  const whole =
    look.alone || drawLevel(context, tiles, level, view, x0, y0, right, bottom, look.colours);
  if (numbered(view, tiles, look.alone))
    drawNumbers(context, tiles, view, x0, y0, right, bottom, look.colours);
  context.restore();
  drawAxes(context, extent, view, layer, look, right, bottom);
  return whole;
}

function drawLevel(
  context: Pen,
  tiles: Tiles,
  level: number,
  view: Viewport,
  x0: number,
  y0: number,
  wide: number,
  high: number,
  colours: Uint32Array,
): boolean {
  const step = SIDE * 2 ** level; // cells of a tile
  const first = { row: Math.floor(view.top / step), column: Math.floor(view.left / step) };
  const last = {
    row: Math.floor((view.top + high / view.zoom - 1e-6) / step),
    column: Math.floor((view.left + wide / view.zoom - 1e-6) / step),
  };
  let whole = true;
  for (let row = first.row; row <= last.row; row++)
    for (let column = first.column; column <= last.column; column++) {
      let at = { level, row, column };
      let tile = tiles.get(level, row, column);
      if (!tile) whole = false;
      // While it is on its way, a part of a coarser one.
      while (!tile && at.level < tiles.top) {
        at = { level: at.level + 1, row: at.row >> 1, column: at.column >> 1 };
        tile = tiles.get(at.level, at.row, at.column, at.level === tiles.top);
      }
      if (!tile) continue;
      const block = 2 ** at.level;
      const within =
        at.level === level
          ? null
          : {
              x: (column * step - at.column * SIDE * block) / block,
              y: (row * step - at.row * SIDE * block) / block,
              size: step / block,
            };
      const picture = painted(tile, colours);
      if (!within) {
        const x = x0 + column * step * view.zoom,
          y = y0 + row * step * view.zoom;
        context.drawImage(
          picture,
          x,
          y,
          tile.columns * block * view.zoom,
          tile.rows * block * view.zoom,
        );
      } else {
        const across = Math.min(within.size, tile.columns - within.x),
          down = Math.min(within.size, tile.rows - within.y);
        if (across <= 0 || down <= 0) continue;
        context.drawImage(
          picture,
          within.x,
          within.y,
          across,
          down,
          x0 + column * step * view.zoom,
          y0 + row * step * view.zoom,
          across * block * view.zoom,
          down * block * view.zoom,
        );
      }
    }
  return whole;
}

/** Whether single cells are large enough to show their numbers. */
export const numbered = (view: Viewport, tiles: Tiles, alone: boolean) =>
  !alone && levelOf(view.zoom, tiles.top) === 0 && view.zoom >= NUMBERS_FROM;

/** The number of a cell, in half precision; 0, too, where its tile is on its way. */
export function bitsOf(tiles: Tiles, row: number, column: number): number {
  const tile = tiles.get(0, Math.floor(row / SIDE), Math.floor(column / SIDE), false);
  return tile ? tile.halves[(row % SIDE) * tile.columns + (column % SIDE)] : 0;
}

/** The weights in their cells; a weight of 0, which may be a hidden one, has no number. */
function drawNumbers(
  context: Pen,
  tiles: Tiles,
  view: Viewport,
  x0: number,
  y0: number,
  wide: number,
  high: number,
  colours: Uint32Array,
): void {
  context.font = `${Math.min(Math.max(view.zoom * 0.3, 11), 22)}px ${FONTS}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  const end = { row: view.top + high / view.zoom, column: view.left + wide / view.zoom };
  for (let row = Math.floor(view.top); row < end.row; row++)
    for (let column = Math.floor(view.left); column < end.column; column++) {
      const bits = bitsOf(tiles, row, column);
      if (!bits) continue;
      context.fillStyle = inkOn(colours[bits]);
      context.fillText(
        tiles.word(bits),
        x0 + (column + 0.5) * view.zoom,
        y0 + (row + 0.5) * view.zoom,
      );
    }
}

/** Black or white, whichever stands out more: at least 4.5 to 1 from any colour. */
export function inkOn(pixel: number): string {
  const part = (shift: number) => {
    const v = ((pixel >> shift) & 255) / 255;
    return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  };
  const luminance = 0.2126 * part(0) + 0.7152 * part(8) + 0.0722 * part(16);
  return luminance > 0.179 ? "#000000" : "#ffffff";
}

function drawAxes(
  context: Pen,
  extent: Extent,
  view: Viewport,
  layer: Layer,
  look: Look,
  wide: number,
  high: number,
): void {
  const { margin } = extent;
  const ink = INKS[look.theme];
  context.font = `600 11.5px ${FONTS}`;
  context.textBaseline = "alphabetic";
  context.textAlign = "left";
  const named = view.zoom >= TOKENS_FROM;
  context.fillStyle = ink.query;
  context.textAlign = "right";
  // Positions of columns begin left of the first one.
  if (!look.bare) context.fillText("queries ↓", margin.left - 8, margin.top - (named ? 12 : 30));
  context.textAlign = "left";
  context.fillStyle = ink.key;
  context.fillText("keys →", margin.left, 22);
  const size = Math.min(13, Math.max(10.5, view.zoom * 0.62));
  context.font = `${size}px ${FONTS}`;
  context.textBaseline = "middle";
  const rows = [
    Math.floor(view.top),
    Math.min(layer.rows - 1, Math.ceil(view.top + high / view.zoom) - 1),
  ];
  const columns = [
    Math.floor(view.left),
    Math.min(layer.columns - 1, Math.ceil(view.left + wide / view.zoom) - 1),
  ];
  const y = (row: number) => margin.top + (row + 0.5 - view.top) * view.zoom;
  const x = (column: number) => margin.left + (column + 0.5 - view.left) * view.zoom;
  if (named) {
    const names = layer.keyTokens
      .slice(columns[0], columns[1] + 1)
      .map((token) => visible(token, 12));
    const turn = turnOf(
      view.zoom,
      Math.max(0, ...names.map((name) => context.measureText(name).width)),
    );
    const room = turn === -45 ? 82 : margin.top - 38;
    context.textAlign = "right";
    for (let row = rows[0]; row <= rows[1]; row++) {
      // The name of a row that is cut off is not to lie on that of the axis.
      if (look.bare || y(row) < margin.top + 4 || y(row) > margin.top + high + 1) continue;
      context.fillStyle = row === look.cell?.row ? ink.query : ink.faint;
      context.fillText(
        visible(layer.queryTokens[row], 14),
        margin.left - 8,
        y(row),
        margin.left - 16,
      );
    }
    for (let column = columns[0]; column <= columns[1]; column++) {
      const name = names[column - columns[0]];
      const begins = x(column) - (turn ? 0 : context.measureText(name).width / 2);
      if (begins < margin.left - 1 || x(column) > margin.left + wide + 1) continue;
      context.fillStyle = column === look.cell?.column ? ink.key : ink.faint;
      context.save();
      context.translate(x(column), margin.top - 8);
      if (turn) context.rotate((turn * Math.PI) / 180);
      context.textAlign = turn ? "left" : "center";
      // A slanted name ends where the canvas does.
      const beside = Math.max((extent.width - x(column) - 6) * Math.SQRT2, 24);
      const longest = turn === -45 ? Math.min(room, beside) : room;
      context.fillText(name, 0, turn ? 0 : -4, turn ? longest : view.zoom);
      context.restore();
    }
  } else {
    context.font = `11px ${FONTS}`;
    context.strokeStyle = ink.line;
    context.lineWidth = 1;
    for (const { at, text } of ticksOf(view.top, rows[1], 70 / view.zoom, layer.querySeconds)) {
      context.fillStyle = ink.faint;
      context.textAlign = "right";
      if (!look.bare) context.fillText(text, margin.left - 10, y(at));
      tick(context, margin.left - 6, y(at), margin.left - 2, y(at));
    }
    for (const { at, text } of ticksOf(view.left, columns[1], 90 / view.zoom, layer.keySeconds)) {
      context.fillStyle = ink.faint;
      context.textAlign = "center";
      context.fillText(text, x(at), margin.top - 14);
      tick(context, x(at), margin.top - 6, x(at), margin.top - 2);
    }
  }
  if (look.cell) {
    const { row, column } = look.cell;
    // Around the cell, which stays as it is.
    const side = Math.max(view.zoom, 5) + 4;
    const [left, across] = column < 0 ? [margin.left, wide] : [x(column) - side / 2, side];
    const [top, down] = row < 0 ? [margin.top, high] : [y(row) - side / 2, side];
    const overlaps = (middle: number, start: number, room: number) =>
      middle + view.zoom / 2 > start && middle - view.zoom / 2 < start + room;
    if (
      (column < 0 || overlaps(x(column), margin.left, wide)) &&
      (row < 0 || overlaps(y(row), margin.top, high))
    ) {
      // Of a cell that is cut off the frame is too.
      context.save();
      context.beginPath();
      context.rect(margin.left - 4, margin.top - 4, wide + 8, high + 8);
      context.clip();
      context.lineWidth = 4;
      context.strokeStyle = ink.card;
      context.strokeRect(left, top, across, down);
      context.lineWidth = 1.6;
      context.strokeStyle = row < 0 ? ink.key : column < 0 ? ink.query : ink.ink;
      context.strokeRect(left, top, across, down);
      context.restore();
    }
  }
}

function tick(context: Pen, x1: number, y1: number, x2: number, y2: number): void {
  context.beginPath();
  context.moveTo(x1, y1);
  context.lineTo(x2, y2);
  context.stroke();
}
