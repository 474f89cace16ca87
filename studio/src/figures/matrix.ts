// The part of the matrix that is in sight as a figure.

import { INKS, RAMPS, rampColour, SCALES, type Theme } from "../colour";
import { headName, type Example, type Layer } from "../model";
import { levelOf, nice, plot, TOKENS_FROM, type Sheet, type Window } from "../sheet";
import type { Figure, Studio } from "../studio.svelte";
import { grouped, visible } from "../text";
import { lookup, painted, SIDE, type Tiles } from "../tiles";
import { smallPrint } from "./print";
import { figure, line, picture, rect, text } from "./svg";

export async function matrixFigure(studio: Studio, example: Example, layer: Layer, head: number, sheet: Sheet, view: Window, tiles: Tiles, theme: Theme): Promise<Figure> {
  const ink = INKS[theme];
  const scale = SCALES[studio.state.scale];
  const { wide, high } = plot(sheet);
  const right = Math.min(wide, (layer.columns - view.left) * view.zoom), bottom = Math.min(high, (layer.rows - view.top) * view.zoom);
  const { left: x0, top: y0 } = sheet.margin;

  const canvas = document.createElement("canvas");
  const named = view.zoom >= TOKENS_FROM;
  // Cells in sight one pixel each where they are few; else as many pixels as the screen has, twice.
  const level = levelOf(view.zoom, tiles.top);
  const per = view.zoom * 2 ** level >= 4 ? 1 / view.zoom : 2;
  canvas.width = Math.max(1, Math.round(right * per));
  canvas.height = Math.max(1, Math.round(bottom * per));
  const context = canvas.getContext("2d")!;
  context.imageSmoothingEnabled = false;
  const colours = lookup(RAMPS[theme].weight, scale.to);
  const block = 2 ** level, step = SIDE * block, k = view.zoom * per;
  for (let row = Math.floor(view.top / step); row * step < view.top + bottom / view.zoom; row++)
    for (let column = Math.floor(view.left / step); column * step < view.left + right / view.zoom; column++) {
      let tile = tiles.get(level, row, column);
      // Those on their way are waited for.
      for (let wait = 0; !tile && wait < 400 && !tiles.problem; wait++) {
        await new Promise((done) => setTimeout(done, 50));
        tile = tiles.get(level, row, column);
      }
      if (!tile) throw new Error("Tiles are still on their way; try again in a moment.");
      const own = { ...tile, canvas: null, painted: null };
      context.drawImage(painted(own, colours), (column * step - view.left) * k, (row * step - view.top) * k, tile.columns * block * k, tile.rows * block * k);
    }
  const parts = [picture(x0, y0, right, bottom, canvas)];
  parts.push(text(x0 - 8, y0 - 12, "queries ↓", { size: 10, fill: ink.query, weight: 600, anchor: "end" }), text(x0, 20, "keys →", { size: 10, fill: ink.key, weight: 600 }));
  const size = Math.min(12, view.zoom * 0.66);
  if (named) {
    for (let row = Math.ceil(view.top - 0.5); row + 0.5 < view.top + bottom / view.zoom && row < layer.rows; row++)
      parts.push(text(x0 - 6, y0 + (row + 0.5 - view.top) * view.zoom, visible(layer.queryTokens[row], 16), { size, fill: ink.faint, anchor: "end", middle: true }));
    for (let column = Math.ceil(view.left - 0.5); column + 0.5 < view.left + right / view.zoom && column < layer.columns; column++)
      parts.push(text(x0 + (column + 0.5 - view.left) * view.zoom + 2, y0 - 6, visible(layer.keyTokens[column], 14), { size, fill: ink.faint, turn: view.zoom < 16 ? -90 : -45, middle: view.zoom < 16 }));
  } else {
    const down = nice(70 / view.zoom), across = nice(90 / view.zoom);
    for (let row = Math.ceil(view.top / down) * down; row < view.top + bottom / view.zoom; row += down) {
      const y = y0 + (row + 0.5 - view.top) * view.zoom;
      parts.push(line(x0 - 5, y, x0 - 1, y, ink.faint), text(x0 - 8, y, grouped(row), { size: 9, fill: ink.faint, anchor: "end", middle: true }));
    }
    for (let column = Math.ceil(view.left / across) * across; column < view.left + right / view.zoom; column += across) {
      const x = x0 + (column + 0.5 - view.left) * view.zoom;
      parts.push(line(x, y0 - 5, x, y0 - 1, ink.faint), text(x, y0 - 9, grouped(column), { size: 9, fill: ink.faint, anchor: "middle" }));
    }
  }
  const bar = y0 + bottom + 16;
  for (let n = 0; n < 80; n++) parts.push(rect(x0 + n * 2.5, bar, 2.8, 8, rampColour(theme, n / 79)));
  scale.ticks.forEach((weight) => {
    const at = studio.state.scale === "log" ? 1 + Math.log10(weight) / 6 : scale.to(weight);
    parts.push(text(x0 + at * 200, bar + 18, weight === 0 || weight >= 0.01 ? String(weight) : weight.toExponential(0), { size: 8, fill: ink.faint, anchor: at === 0 ? "start" : "middle" }));
  });
  parts.push(text(x0 + 216, bar + 8, `weight, ${scale.name} scale${level ? `; a dot is the ${studio.state.blocks === "max" ? "largest weight" : "mass of a row"} in ${block} × ${block} cells` : ""}`, { size: 8.5, fill: ink.faint }));
  const rows = `rows ${grouped(Math.floor(view.top))}–${grouped(Math.min(layer.rows, Math.ceil(view.top + bottom / view.zoom)) - 1)}`;
  const columns = `columns ${grouped(Math.floor(view.left))}–${grouped(Math.min(layer.columns, Math.ceil(view.left + right / view.zoom)) - 1)}`;
  return figure(Math.max(x0 + right + 30, 460), bar + 30, theme, headName(example, layer, head), `${rows}, ${columns} of ${grouped(layer.rows)} × ${grouped(layer.columns)}`, smallPrint(studio, example), parts.join(""));
}
