// The part of the matrix that is in sight as a figure.

import { INKS, paintShades, RAMPS, rampColour, SCALES, type Theme } from "../colour";
import { headName, type Example, type Layer } from "../model";
import { blocksOf, dotOf, overviewTable } from "../overview";
import { levelOf, nice, plot, type Extent, type Rough, type Viewport } from "../matrixCanvas";
import type { Figure, Studio } from "../studio.svelte";
import { grouped, visible } from "../text";
import { lookup, painted, SIDE, type Tiles } from "../tiles";
import { smallPrint } from "./print";
import { EDGE, figure, fitted, line, lines, picture, rect, SMALLEST, text, widthOf } from "./svg";

interface Shown {
  example: Example;
  layer: Layer;
  head: number;
  extent: Extent;
  view: Viewport;
  tiles: Tiles;
  /** A picture of the whole that is shown without tiles. */
  alone: Rough | null;
}

export async function matrixFigure(
  studio: Studio,
  shown: Shown,
  theme: Theme,
  width: number,
): Promise<Figure> {
  const { example, layer, head, extent, view, tiles, alone } = shown;
  const ink = INKS[theme];
  const scale = SCALES[studio.state.scale];
  const { wide, high } = plot(extent);
  const seen = {
    rows: Math.min(high / view.zoom, layer.rows - view.top),
    columns: Math.min(wide / view.zoom, layer.columns - view.left),
  };
  // Tokens name rows and columns where there is room for their letters, else positions do.
  const inSight = (tokens: string[], from: number, count: number) =>
    tokens.slice(Math.floor(from), Math.ceil(from + count));
  const widest = (tokens: string[], most: number) =>
    Math.min(most, Math.max(...tokens.map((token) => widthOf(visible(token, 16), SMALLEST)), 20));
  const names = {
    rows: widest(inSight(layer.queryTokens, view.top, seen.rows), width / 4),
    columns: widest(inSight(layer.keyTokens, view.left, seen.columns), 90),
  };
  const zoomOf = (left: number) =>
    Math.min(44, (width - left - EDGE) / seen.columns, (1.5 * width) / seen.rows);
  const corner = widthOf("queries ↓", SMALLEST, 600) + EDGE + 6;
  const named = zoomOf(Math.max(EDGE + names.rows + 8, corner)) >= SMALLEST * 1.15;
  const side = named ? names.rows : widthOf(grouped(layer.rows), SMALLEST);
  const x0 = Math.max(EDGE + 8 + side, corner);
  const y0 = named ? 30 + names.columns : 44;
  const zoom = zoomOf(x0);
  const box = { x: x0, y: y0, width: seen.columns * zoom, height: seen.rows * zoom };

  const canvas = await cellsInSight(studio, shown, theme, box.width, box.height, zoom);
  const parts = [picture(box, canvas)];
  parts.push(
    text(x0 - 6, y0 - (named ? 10 : 14), "queries ↓", {
      size: SMALLEST,
      fill: ink.query,
      weight: 600,
      anchor: "end",
    }),
    text(x0, 10, "keys →", { size: SMALLEST, fill: ink.key, weight: 600 }),
  );
  const y = (row: number) => y0 + (row + 0.5 - view.top) * zoom;
  const x = (column: number) => x0 + (column + 0.5 - view.left) * zoom;
  const middles = (from: number, count: number) => ({
    from: Math.max(0, Math.ceil(from - 0.5)),
    to: from + count - 0.5,
  });
  const rows = middles(view.top, seen.rows);
  const columns = middles(view.left, seen.columns);
  const label = { size: SMALLEST, fill: ink.faint, middle: true };
  if (named) {
    for (let row = rows.from; row <= rows.to + 1e-6; row++)
      parts.push(
        text(x0 - 6, y(row), fitted(visible(layer.queryTokens[row], 16), SMALLEST, names.rows), {
          ...label,
          anchor: "end",
        }),
      );
    for (let column = columns.from; column <= columns.to + 1e-6; column++)
      parts.push(
        text(
          x(column),
          y0 - 6,
          fitted(visible(layer.keyTokens[column], 16), SMALLEST, names.columns),
          { ...label, turn: -90 },
        ),
      );
  } else {
    const down = nice(40 / zoom);
    const across = nice((widthOf(grouped(layer.columns), SMALLEST) + 16) / zoom);
    for (let row = Math.ceil(rows.from / down) * down; row <= rows.to; row += down)
      parts.push(
        line(x0 - 4, y(row), x0 - 1, y(row), ink.faint),
        text(x0 - 6, y(row), grouped(row), { ...label, anchor: "end" }),
      );
    for (
      let column = Math.ceil(columns.from / across) * across;
      column <= columns.to;
      column += across
    )
      parts.push(
        line(x(column), y0 - 4, x(column), y0 - 1, ink.faint),
        text(Math.min(x(column), width - EDGE - 12), y0 - 8, grouped(column), {
          size: SMALLEST,
          fill: ink.faint,
          anchor: "middle",
        }),
      );
  }
  const bar = y0 + box.height + 10;
  const ramp = Math.min(200, width - x0 - EDGE);
  for (let n = 0; n < 80; n++)
    parts.push(
      rect(
        { x: x0 + (n * ramp) / 80, y: bar, width: ramp / 80 + 0.4, height: 7 },
        rampColour(theme, n / 79),
      ),
    );
  scale.ticks.forEach((weight, n) => {
    const at = studio.state.scale === "log" ? 1 + Math.log10(weight) / 6 : scale.to(weight);
    const name = weight === 0 || weight >= 0.01 ? String(weight) : weight.toExponential(0);
    const anchor = n === 0 ? "start" : n === scale.ticks.length - 1 ? "end" : "middle";
    parts.push(text(x0 + at * ramp, bar + 18, name, { size: SMALLEST, fill: ink.faint, anchor }));
  });
  let end = bar + 20;
  const level = levelOf(view.zoom, tiles.top);
  const block = studio.state.blocks === "max" ? "largest weight" : "mass of a row";
  const coarse = level ? `; a dot is the ${block} in ${2 ** level} × ${2 ** level} cells` : "";
  const says = `weight, ${scale.name} scale${alone ? `; ${dotOf(blocksOf(layer))}` : coarse}`;
  for (const words of lines(says, SMALLEST, width - x0 - EDGE))
    parts.push(text(x0, (end += 12), words, { size: SMALLEST, fill: ink.faint }));
  const range = (from: number, count: number) =>
    `${grouped(Math.floor(from))}–${grouped(Math.ceil(from + count - 1e-6) - 1)}`;
  const ranges = `Rows ${range(view.top, seen.rows)}, columns ${range(view.left, seen.columns)}`;
  return figure({
    width,
    height: end + 4,
    theme,
    title: headName(example, layer, head),
    note: `${ranges} of ${grouped(layer.rows)} × ${grouped(layer.columns)}.`,
    small: smallPrint(studio, example),
    parts,
  });
}

/** The cells in sight on a canvas. */
async function cellsInSight(
  studio: Studio,
  { view, tiles, alone }: Shown,
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
  const colours = lookup(RAMPS[theme].weight, SCALES[studio.state.scale].to);
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
